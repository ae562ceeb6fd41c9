"""A vector of eight numbers as one value inside compiled kernels: one number for each of eight (batch, head) pairs.

Kernels walk eight pairs at once. Their scratch arrays end in a dimension of LANES, and `load(A, i)` reads A[i] as one
value; + - * / act on all lanes. So a kernel reads like the scalar maths of one pair, sums stay in registers, and no step
needs a sum across lanes. Vectors are written in LLVM's own types and not left to its loop vectoriser, which gives up
where it cannot prove that scratch arrays do not overlap. LLVM maps them to whatever the machine has.
"""

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

LANES = 8
"""One AVX register of float32, two of NEON."""


class Lanes(types.Type):
    def __init__(self, dtype: types.Float) -> None:
        self.dtype = dtype
        super().__init__(name=f"Lanes({dtype})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, ir.VectorType(manager.lookup(lanes.dtype).get_value_type(), LANES))


def _address(context: Any, builder: Any, sig: Any, args: Any) -> tuple[Any, int]:
    """Where A[i] or A[i, j] starts, and the alignment that is certain: that of one number."""
    array = context.make_array(sig.args[0])(context, builder, args[0])
    row = args[1]
    if sig.args[0].ndim == 3:
        row = builder.add(builder.mul(row, builder.extract_value(array.shape, 1)), args[2])
    start = builder.gep(array.data, [builder.mul(row, ir.Constant(row.type, LANES))])
    vector = context.get_value_type(Lanes(sig.args[0].dtype))
    return builder.bitcast(start, vector.as_pointer()), sig.args[0].dtype.bitwidth // 8


def _load(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    address, align = _address(context, builder, sig, args)
    return builder.load(address, align=align)


def _store(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    address, align = _address(context, builder, sig, args)
    builder.store(args[-1], address, align=align)
    return context.get_dummy_value()


@intrinsic
def load(typing: Any, A: Any, i: Any) -> Any:
    """A[i] of a contiguous (n, LANES) array"""
    return Lanes(A.dtype)(A, types.intp), _load


@intrinsic
def load2(typing: Any, A: Any, i: Any, j: Any) -> Any:
    """A[i, j] of a contiguous (n, m, LANES) array"""
    return Lanes(A.dtype)(A, types.intp, types.intp), _load


@intrinsic
def store(typing: Any, A: Any, i: Any, x: Any) -> Any:
    """A[i] = x"""
    return types.void(A, types.intp, x), _store


@intrinsic
def store2(typing: Any, A: Any, i: Any, j: Any, x: Any) -> Any:
    """A[i, j] = x"""
    return types.void(A, types.intp, types.intp, x), _store


def _rows(context: Any, builder: Any, sig: Any, args: Any) -> tuple[list[Any], Any, Any]:
    """The address of x[b, h] for the pair of every lane, the length of these rows, and the stride along them, in bytes."""
    x = context.make_array(sig.args[0])(context, builder, args[0])
    pairs = context.make_array(sig.args[1])(context, builder, args[1])
    byte = ir.IntType(8).as_pointer()
    strides = [builder.extract_value(x.strides, i) for i in range(3)]
    addresses = []
    for lane in range(LANES):
        b, h = (builder.load(builder.gep(pairs.data, [ir.Constant(ir.IntType(64), 2 * lane + i)])) for i in range(2))
        offset = builder.add(builder.mul(b, strides[0]), builder.mul(h, strides[1]))
        addresses.append(builder.gep(builder.bitcast(x.data, byte), [offset]))
    return addresses, builder.extract_value(x.shape, 2), strides[2]


def _number(builder: Any, sig: Any, context: Any, row: Any, offset: Any) -> Any:
    kind = context.get_value_type(sig.args[0].dtype)
    return builder.bitcast(builder.gep(row, [offset]), kind.as_pointer())


@intrinsic
def prefetch(typing: Any, x: Any, pairs: Any) -> Any:
    """Ask for the rows x[b, h] of every lane, x (B, H, n). Rows of one step lie far apart: no machine guesses the next."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        rows, n, stride = _rows(context, builder, sig, args)
        last = builder.mul(builder.sub(n, ir.Constant(n.type, 1)), stride)
        integer, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, integer, integer, integer])
        ask = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        # to read, into the innermost cache, data
        how = [ir.Constant(integer, flag) for flag in (0, 3, 1)]
        for row in rows:
            builder.call(ask, [row, *how])
            builder.call(ask, [builder.gep(row, [last]), *how])
        return context.get_dummy_value()

    return types.void(x, pairs), emit


@intrinsic
def gather(typing: Any, x: Any, pairs: Any, column: Any) -> Any:
    """column[i] = x[b, h, i] of every lane, x (B, H, n) with any strides

    Lanes meet in a register: eight single numbers in memory would stall the vector load that follows.
    """

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        rows, n, stride = _rows(context, builder, sig, args)
        vector = context.get_value_type(Lanes(sig.args[0].dtype))
        with cgutils.for_range(builder, n) as loop:
            offset, value = builder.mul(loop.index, stride), ir.Constant(vector, ir.Undefined)
            for lane, row in enumerate(rows):
                number = builder.load(_number(builder, sig, context, row, offset))
                value = builder.insert_element(value, number, ir.Constant(ir.IntType(32), lane))
            column_type = types.void(sig.args[2], types.intp, Lanes(sig.args[0].dtype))
            _store(context, builder, column_type, (args[2], loop.index, value))
        return context.get_dummy_value()

    return types.void(x, pairs, column), emit


@intrinsic
def scatter(typing: Any, column: Any, pairs: Any, x: Any) -> Any:
    """x[b, h, i] = column[i] of every lane"""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        swapped = types.void(sig.args[2], sig.args[1])
        rows, n, stride = _rows(context, builder, swapped, (args[2], args[1]))
        with cgutils.for_range(builder, n) as loop:
            offset = builder.mul(loop.index, stride)
            value = _load(context, builder, types.void(sig.args[0], types.intp), (args[0], loop.index))
            for lane, row in enumerate(rows):
                number = builder.extract_element(value, ir.Constant(ir.IntType(32), lane))
                builder.store(number, _number(builder, swapped, context, row, offset))
        return context.get_dummy_value()

    return types.void(column, pairs, x), emit


@intrinsic
def splat(typing: Any, number: Any) -> Any:
    """The same number in every lane."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = context.get_value_type(sig.return_type)
        first = builder.insert_element(ir.Constant(vector, ir.Undefined), args[0], ir.Constant(ir.IntType(32), 0))
        order = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), order)

    return Lanes(number)(number), emit


@intrinsic
def zeros(typing: Any, like: Any) -> Any:
    """Zero in every lane, in the dtype of an array or a vector."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(sig.return_type), None)

    return Lanes(like.dtype)(like), emit


@intrinsic
def one(typing: Any, like: Any) -> Any:
    """One in every lane."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(context.get_value_type(sig.return_type), [1.0] * LANES)

    return Lanes(like.dtype)(like), emit


@intrinsic
def maximum(typing: Any, a: Any, b: Any) -> Any:
    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return a(a, b), emit


def _operator(symbol: Callable[..., Any], instruction: str) -> None:
    @intrinsic
    def act(typing: Any, a: Any, b: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            # a product and the sum it goes into may become one fused instruction; nothing else is reordered
            return getattr(builder, instruction)(*args, flags=("contract",))

        return a(a, b), emit

    @overload(symbol)
    def _(a, b):  # numba compares this signature with the lambda's
        return (lambda a, b: act(a, b)) if isinstance(a, Lanes) and a == b else None


_operator(operator.add, "fadd")
_operator(operator.sub, "fsub")
_operator(operator.mul, "fmul")
_operator(operator.truediv, "fdiv")


_LN2 = Fraction("0.693147180559945309417232121458176568")


class _Exponential:
    """e^x = 2^n (1 + p),  n = round(x / ln 2),  p = e^r - 1 by Taylor,  r = x - n ln 2 in [-0.35, 0.35]

    LLVM has no vector exponential of its own. x is clamped to where 2^n is a normal number; NaN stays NaN.
    """

    def __init__(self, builder: Any, vector: Any) -> None:
        self.builder, self.vector = builder, vector
        single = isinstance(vector.element, ir.FloatType)
        self.integers = ir.VectorType(ir.IntType(32 if single else 64), LANES)
        self.mantissa, self.bias, self.degree = (23, 127, 7) if single else (52, 1023, 13)
        self.low, self.high = (-87.3, 88.3) if single else (-708.0, 709.0)
        # n times the upper part of ln 2 is exact
        bits = 9 if single else 32
        self.ln2_high = round(math.log(2) * 2**bits) / 2**bits
        self.ln2_low = float(_LN2 - Fraction(self.ln2_high))

    def constant(self, number: float) -> Any:
        return ir.Constant(self.vector, [number] * LANES)

    def integer(self, number: int) -> Any:
        return ir.Constant(self.integers, [number] * LANES)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        return self.builder.fadd(self.builder.fmul(a, b, flags=("contract",)), c, flags=("contract",))

    def parts(self, x: Any) -> tuple[Any, Any]:
        """(2^n, p)"""
        build = self.builder
        x = build.select(build.fcmp_ordered("<", x, self.constant(self.low)), self.constant(self.low), x)
        x = build.select(build.fcmp_ordered(">", x, self.constant(self.high)), self.constant(self.high), x)
        # adding 1.5 · 2^mantissa leaves the rounded n in the lowest bits
        magic = self.constant(1.5 * 2**self.mantissa)
        shifted = self.multiply_add(x, self.constant(1 / math.log(2)), magic)
        n = build.fsub(shifted, magic)
        r = self.multiply_add(n, self.constant(-self.ln2_high), x)
        r = self.multiply_add(n, self.constant(-self.ln2_low), r)
        q = self.constant(1 / math.factorial(self.degree))
        for i in range(self.degree - 1, 0, -1):
            q = self.multiply_add(q, r, self.constant(1 / math.factorial(i)))
        exponent = build.add(build.bitcast(shifted, self.integers), self.integer(self.bias))
        return build.bitcast(build.shl(exponent, self.integer(self.mantissa)), self.vector), build.fmul(q, r)


@intrinsic
def exp(typing: Any, x: Any) -> Any:
    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = _Exponential(builder, args[0].type)
        scale, p = e.parts(args[0])
        return e.multiply_add(scale, p, scale)

    return x(x), emit


@intrinsic
def sigmoid(typing: Any, x: Any) -> Any:
    """σ(x) = 1 / (1 + e^-x)"""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = _Exponential(builder, args[0].type)
        scale, p = e.parts(builder.fsub(e.constant(-0.0), args[0]))
        return builder.fdiv(e.constant(1.0), builder.fadd(e.constant(1.0), e.multiply_add(scale, p, scale)))

    return x(x), emit


@intrinsic
def tanh(typing: Any, x: Any) -> Any:
    """tanh x = m / (m + 2),  m = e^2x - 1 = 2^n p + (2^n - 1): exact near zero too"""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        e = _Exponential(builder, args[0].type)
        # tanh is ±1 to the last bit long before e^2x overflows
        scale, p = e.parts(builder.fadd(args[0], args[0]))
        m = e.multiply_add(scale, p, builder.fsub(scale, e.constant(1.0)))
        return builder.fdiv(m, builder.fadd(m, e.constant(2.0)))

    return x(x), emit
