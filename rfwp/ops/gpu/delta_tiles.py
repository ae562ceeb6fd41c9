"""Chunks of `sum` and `delta` as small matrices in registers: what their kernels share.

C steps a chunk, i for its rows. Tensors of steps are (B, T, H, G, d), rates (B, T, H, G): heads in two levels, so that several
gates inside one projection are one tensor; their strides come as one tuple. `h` counts all H · G heads.
"""

import triton
import triton.language as tl

from rfwp.ops.gpu.steps import reciprocal

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Triton's interpreter has no products of bf16, and rounds towards zero: there all products are float32."""


@triton.jit
def _rounded(x, half):
    """Half of TF32's last bit is added, and the tensor cores cut the 13 bits behind it off: rounding to nearest.

    Without it the error doubles. The maximum is a NaN's way through: 0x7fffffff would overflow to zero. 16-bit numbers fit.
    """
    if x.dtype.primitive_bitwidth == 16:
        x = x.to(tl.float32)
    else:
        bits = x.to(tl.int32, bitcast=True)
        x = tl.maximum(bits + half, bits).to(tl.float32, bitcast=True)
    return x


@triton.jit
def mm(a, b, PRECISION: tl.constexpr):
    """a b, accumulated in float32"""
    if INTERPRETED:
        c = tl.dot(a.to(tl.float32), b.to(tl.float32))
    elif PRECISION == "bf16":
        c = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    elif PRECISION == "tf32":
        c = tl.dot(_rounded(a, 0x1000), _rounded(b, 0x1000), input_precision="tf32")
    elif PRECISION == "bf16x3":
        a_high, a_low = _halves(a)
        b_high, b_low = _halves(b)
        c = tl.dot(a_high, b_high, tl.dot(a_high, b_low, tl.dot(a_low, b_high)))
    else:
        c = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=PRECISION)
    return c


@triton.jit
def _halves(x):
    """x = high + low to 16 bits, both bf16: five more than TF32 has. Bits are cut off: single roundings to bf16 are slow."""
    high, low = _split(x, 0x8000)
    return high.to(tl.bfloat16), low.to(tl.bfloat16)


@triton.jit
def half_bit(p, T):
    """0x1000 for `rows`: a 16-bit number that is loaded, though never from memory (T is not negative).

    A 16-bit load behind an operand makes Triton give each thread pairs of neighbours along the summed index. That is how a
    product's result lies across threads too: the next product can take it as it is.
    """
    o = tl.zeros([1, 1], tl.int32)
    if not INTERPRETED:
        o = tl.load(p.to(tl.pointer_type(tl.int16), bitcast=True) + o, mask=o + T < 0, other=0x1000).to(tl.int32)
    return o


@triton.jit
def zeros_of_rows(half, M: tl.constexpr, N: tl.constexpr):
    """Zeros laid out as `rows` leaves a result: what is added to them is computed in that layout."""
    o = (half & 0xFFF).to(tl.float32)
    return rows(tl.broadcast_to(o, [M, 16]), tl.broadcast_to(o, [N, 16]), half, "tf32")


@triton.jit
def rows(a, b, half, PRECISION: tl.constexpr):
    """a bᵀ: sums along the columns of both. Tiles of 16: what `rows` returns, it takes without exchange between threads."""
    # transposed first and rounded after: a transposed operand as such would go through shared memory
    b = tl.trans(b)
    if INTERPRETED:
        c = tl.dot(a.to(tl.float32), b.to(tl.float32))
    elif PRECISION == "tf32":
        c = tl.dot(_rounded(a, half), _rounded(b, half), input_precision="tf32")
    else:
        tl.static_assert(PRECISION == "tf32x3")
        a_high, a_low = _split(a, half)
        b_high, b_low = _split(b, half)
        c = tl.dot(a_low, b_high, input_precision="tf32")
        c = tl.dot(a_high, b_low, c, input_precision="tf32")
        c = tl.dot(a_high, b_high, c, input_precision="tf32")
    return c


@triton.jit
def _split(x, half):
    """x = high + low, where TF32 (half = 0x1000) or bf16 (0x8000) holds high."""
    x = x.to(tl.float32)
    high = (x.to(tl.int32, bitcast=True) & (-2 * half)).to(tl.float32, bitcast=True)
    return high, x - high


@triton.jit
def head(p, strides, b, h, G: tl.constexpr):
    """The first step of batch row b and head h."""
    return p + b * strides[0] + (h // G) * strides[2] + (h % G) * strides[3]


@triton.jit
def load(p, strides, t, d, T, D: tl.constexpr):
    """Steps t and features d of one head; zeros beyond T and D."""
    return tl.load(p + t[:, None] * strides[1] + d[None, :] * strides[4], mask=(t < T)[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def as_stored(x, p):
    """x in the type that p points to, rounded to nearest: the interpreter would cut bits off."""
    if INTERPRETED and p.dtype.element_ty == tl.bfloat16:
        x = _rounded(x, 0x8000)
    return x.to(p.dtype.element_ty)


@triton.jit
def store(p, strides, x, t, d, T, D: tl.constexpr):
    mask = (t < T)[:, None] & (d < D)[None, :]
    tl.store(p + t[:, None] * strides[1] + d[None, :] * strides[4], as_stored(x, p), mask=mask)


@triton.jit
def _exp(x):
    """exp in two instructions; what is smaller than any normal number is 0."""
    x *= 1.4426950408889634
    if INTERPRETED:
        return tl.exp2(x)
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def rate(b, SIGMOID: tl.constexpr):
    """A learning rate from what the slow net wrote for it."""
    if SIGMOID:
        b = reciprocal(1 + _exp(tl.minimum(-b, 80.0, propagate_nan=tl.PropagateNan.ALL)))
    return b


@triton.jit
def load_rate(p, strides, t, T, SIGMOID: tl.constexpr):
    """Learning rates of steps t; zeros beyond T."""
    b = tl.load(p + t * strides[1], mask=t < T, other=0.0).to(tl.float32)
    return tl.where(t < T, rate(b, SIGMOID), 0.0)


@triton.jit
def store_rate(p, strides, db, b, t, T, SIGMOID: tl.constexpr):
    """The gradient of the learning rates, or of what goes into their sigmoid."""
    if SIGMOID:
        db *= b * (1 - b)
    tl.store(p + t * strides[1], as_stored(db, p), mask=t < T)


@triton.jit
def mapped(x, t, d, T, D: tl.constexpr, MAP: tl.constexpr, zeros=0.0):
    """φ of the steps of a chunk, zeros beyond T and D; and one over the sum that φ divides by."""
    scale = tl.full([x.shape[0]], 1.0, tl.float32)
    if MAP != "identity":
        x = x.to(tl.float32) + zeros
        if MAP == "softmax":
            x = tl.where((d < D)[None, :], x, float("-inf"))
            x = _exp(x - tl.max(x, 1)[:, None])
        else:
            # elu(x) + 1; exp never sees a positive number
            x = tl.where((d < D)[None, :], tl.where(x > 0, x + 1, _exp(tl.minimum(x, 0.0))), 0.0)
        if MAP != "elu":
            scale = reciprocal(tl.sum(x, 1) + (1e-5 if MAP == "elu_sum_eps" else 0.0))
            x *= scale[:, None]
        x = tl.where((t < T)[:, None], x, 0.0)
    return x, scale


@triton.jit
def raw_gradient(dx, x, scale, MAP: tl.constexpr):
    """From the gradient of x = φ(raw) to that of raw; elu'(raw) = min(elu(raw) + 1, 1)"""
    if MAP != "identity" and MAP != "elu":
        dx -= tl.sum(dx * x, 1)[:, None]
    if MAP == "softmax":
        dx *= x
    elif MAP != "identity":
        dx *= tl.minimum(x, scale[:, None])
    return dx


@triton.jit
def matrix(p, dk, dv, K: tl.constexpr, V: tl.constexpr):
    """Pointers and mask of a W (V, K) in memory, seen as (K, V)."""
    return p + dv[None, :] * K + dk[:, None], (dk < K)[:, None] & (dv < V)[None, :]


@triton.jit
def chunk_of(here, N, H, BK: tl.constexpr, C: tl.constexpr):
    """Of program number `here`, which has one chunk: its batch row and head; its keys; its steps in the chunk and in all."""
    bh, n = here // N, here % N
    b, h = (bh // H).to(tl.int64), bh % H
    dk, i = tl.arange(0, BK), tl.arange(0, C)
    t = n * C + i
    return b, h, dk, i, t


@triton.jit
def walk_of(nV, H, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr):
    """Of a program that walks over all chunks: its pair, batch row and head; its keys and its part of the values; steps."""
    bh, iv = tl.program_id(0) // nV, tl.program_id(0) % nV
    return bh, (bh // H).to(tl.int64), bh % H, tl.arange(0, BK), iv * BV + tl.arange(0, BV), tl.arange(0, C)


@triton.jit
def tile(p, number, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Pointers into tile `number` of the tiles (ROWS, COLUMNS) that lie one behind the other."""
    return p + number.to(tl.int64) * (ROWS * COLUMNS) + rows[:, None] * COLUMNS + columns[None, :]


@triton.jit
def segments(reset, t, T, C: tl.constexpr, RESET: tl.constexpr):
    """Between resets: which steps are together; which see the chunk's start; which reach its end; whether the start does."""
    together = tl.full([C, C], True, tl.int1)
    start = tl.full([C], True, tl.int1)
    end = start
    through = True
    if RESET:
        here = tl.load(reset + t, mask=t < T, other=0).to(tl.int32)
        segment = tl.cumsum(here, 0)
        last = tl.sum(here, 0)
        together = segment[:, None] == segment[None, :]
        start = segment == 0
        end = segment == last
        through = last == 0
    return together, start, end, through


@triton.jit
def only(mask, x):
    """x where the mask holds, along axis 0; a product with 0 would let a NaN through."""
    return tl.where(mask[:, None], x, 0.0)


@triton.jit
def only_columns(mask, x):
    return tl.where(mask[None, :], x, 0.0)


@triton.jit
def _merged(X, L, e: tl.constexpr, C: tl.constexpr, P: tl.constexpr):
    """[[I+A, 0], [B, I+D]]^-1 = X - X B X with X = diag((I+A)^-1, (I+D)^-1), for all blocks of 2^e at once."""
    return X - mm(mm(X, tl.where(_between(e, C), L, 0.0), P), X, P)


@triton.jit
def _between(e: tl.constexpr, C: tl.constexpr):
    """Where two blocks of 2^e meet in a block of 2^(e+1)."""
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    return ((row >> (e + 1)) == (column >> (e + 1))) & ((row >> e) != (column >> e))


@triton.jit
def inverse(k, b, together, C: tl.constexpr, P: tl.constexpr, PX: tl.constexpr):
    """(I + L)^-1 with L the strictly lower part of diag(β) K Kᵀ: pairs at once, then blocks merged two by two.

    As stable as forward substitution, which powers of L are not: for repeated keys they grow like binomial coefficients.
    """
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    L = tl.where(together & (row > column), b[:, None] * mm(k, tl.trans(k), P), 0.0)
    X = tl.where(row == column, 1.0, 0.0) - tl.where((row >> 1) == (column >> 1), L, 0.0)
    X = _merged(X, L, 1, C, PX)
    X = _merged(X, L, 2, C, PX)
    X = _merged(X, L, 3, C, PX)
    if C > 16:
        X = _merged(X, L, 4, C, PX)
    if C > 32:
        X = _merged(X, L, 5, C, PX)
    return X


@triton.jit
def inverse_by_rows(k, b, together, half, P: tl.constexpr, PX: tl.constexpr):
    """`inverse` of 16 steps by `rows`, which wants X and Xᵀ; K Kᵀ is its own transpose."""
    row, column = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    KK = tl.where(together, rows(k, k, half, P), 0.0)
    L = tl.where(row > column, b[:, None] * KK, 0.0)
    L_t = tl.where(row < column, b[None, :] * KK, 0.0)
    one, pair = tl.where(row == column, 1.0, 0.0), (row >> 1) == (column >> 1)
    X, X_t = one - tl.where(pair, L, 0.0), one - tl.where(pair, L_t, 0.0)
    for e in tl.static_range(1, 4):
        XB = rows(X, tl.where(_between(e, 16), L_t, 0.0), half, PX)
        X -= rows(XB, X_t, half, PX)
        if e < 3:
            X_t -= rows(X_t, XB, half, PX)
    return X


@triton.jit
def prepared(X, n, C: tl.constexpr):
    """The inverse of chunk n, from memory."""
    i = tl.arange(0, C)
    return tl.load(X + n * C * C + i[:, None] * C + i[None, :])


@triton.jit
def written(S, k, v, b, X, start, P: tl.constexpr):
    """What a chunk that starts with S (K, V) writes: U, and on the way x = v - W k"""
    x = v - only(start, mm(k, S, P))
    return mm(X, b[:, None] * x, P), x
