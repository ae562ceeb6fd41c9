"""Chunks of `sum` and `delta` as small matrices in registers: what their kernels share.

C steps a chunk, i for its rows; S is the fast matrix transposed, (K, V), so that products with K and Q need no transposition.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
"""Triton's interpreter has no products of bf16, and rounds towards zero: there all products are float32."""


@triton.jit
def _rounded(x):
    """To the nearest TF32 number: the tensor cores themselves cut the last 13 bits off, which doubles the error."""
    bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    return ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def mm(a, b, PRECISION: tl.constexpr):
    """a b, accumulated in float32"""
    if INTERPRETED:
        c = tl.dot(a.to(tl.float32), b.to(tl.float32))
    elif PRECISION == "bf16":
        c = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    elif PRECISION == "tf32":
        c = tl.dot(_rounded(a), _rounded(b), input_precision="tf32")
    else:
        c = tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=PRECISION)
    return c


@triton.jit
def load(p, t, d, stride_t, stride_d, T, D: tl.constexpr):
    """Steps t and features d of one head; zeros beyond T and D."""
    return tl.load(p + t[:, None] * stride_t + d[None, :] * stride_d, mask=(t < T)[:, None] & (d < D)[None, :], other=0.0)


@triton.jit
def store(p, x, t, d, stride_t, T, D: tl.constexpr):
    mask = (t < T)[:, None] & (d < D)[None, :]
    tl.store(p + t[:, None] * stride_t + d[None, :], x.to(p.dtype.element_ty), mask=mask)


@triton.jit
def matrix(p, dk, dv, K: tl.constexpr, V: tl.constexpr):
    """Pointers and mask of a W (V, K) in memory, seen as (K, V)."""
    return p + dv[None, :] * K + dk[:, None], (dk < K)[:, None] & (dv < V)[None, :]


@triton.jit
def segments(reset, t, T, C: tl.constexpr, RESET: tl.constexpr):
    """Who sees whom between resets: j <= i in one segment; the chunk's start; its end; and start to end."""
    i = tl.arange(0, C)
    causal = i[:, None] >= i[None, :]
    start = tl.full([C], 1.0, tl.float32)
    end = start
    through = 1.0
    if RESET:
        here = tl.load(reset + t, mask=t < T, other=0).to(tl.int32)
        segment = tl.cumsum(here, 0)
        last = tl.sum(here, 0)
        causal = causal & (segment[:, None] == segment[None, :])
        start = (segment == 0).to(tl.float32)
        end = (segment == last).to(tl.float32)
        through = (last == 0).to(tl.float32)
    return causal, start, end, through


@triton.jit
def _merged(X, L, e: tl.constexpr, C: tl.constexpr, P: tl.constexpr):
    """[[I+A, 0], [B, I+D]]^-1 = X - X B X with X = diag((I+A)^-1, (I+D)^-1), for all blocks of 2^e at once."""
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    between = ((row >> (e + 1)) == (column >> (e + 1))) & ((row >> e) != (column >> e))
    return X - mm(mm(X, tl.where(between, L, 0.0), P), X, P)


@triton.jit
def inverse(k, b, causal, C: tl.constexpr, P: tl.constexpr, PX: tl.constexpr):
    """(I + L)^-1 with L the strictly lower part of diag(β) K Kᵀ: pairs at once, then blocks merged two by two.

    As stable as forward substitution, which powers of L are not: for repeated keys they grow like binomial coefficients.
    """
    row, column = tl.arange(0, C)[:, None], tl.arange(0, C)[None, :]
    L = tl.where(causal & (row > column), b[:, None] * mm(k, tl.trans(k), P), 0.0)
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
def prepared(X, n, C: tl.constexpr):
    """The inverse of chunk n, from memory."""
    i = tl.arange(0, C)
    return tl.load(X + n * C * C + i[:, None] * C + i[None, :])


@triton.jit
def written(S, k, v, b, X, start, P: tl.constexpr):
    """What a chunk that starts with S writes: U, and on the way x = v - W k"""
    x = v - start[:, None] * mm(k, S, P)
    return mm(X, b[:, None] * x, P), x
