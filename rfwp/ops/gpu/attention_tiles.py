"""Tiles of attention: operands of products, how one product's result becomes the next one's operand, and dropout's masks."""

import math

import triton
import triton.language as tl

from rfwp.ops.gpu.delta_tiles import INTERPRETED

RAISED = tl.constexpr(math.log2(1 + 0.72 * 2**-11))
"""log2 of the factor that makes up for cutting to TF32: on average that takes half of the last bit, 2^-11 / mantissa."""
HALF_BIT = tl.constexpr(0x1000)
"""Half of TF32's last bit."""
ROUNDS = tl.constexpr(7)
"""Rounds of Philox 2x32, the fewest that its authors find no flaw with."""


@triton.jit
def exp2(x):
    """What is smaller than any normal number is 0."""
    if INTERPRETED:
        return tl.exp2(x)
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)


@triton.jit
def raised(P: tl.constexpr):
    """What is added to the exponents of numbers that products will cut."""
    return RAISED if P == "tf32" and not INTERPRETED else 0.0


@triton.jit
def operand(x, P: tl.constexpr):
    """x as products take it: bfloat16, or rounded to TF32; the maximum is a NaN's way through."""
    if INTERPRETED:
        x = x.to(tl.float32)
    elif P == "bf16":
        x = x.to(tl.bfloat16)
    elif P == "tf32":
        bits = x.to(tl.float32).to(tl.int32, bitcast=True)
        x = tl.maximum(bits + HALF_BIT, bits).to(tl.float32, bitcast=True)
    else:
        x = x.to(tl.float32)
    return x


@triton.jit
def dot(a, b, P: tl.constexpr):
    """a b of two operands"""
    return tl.dot(a, b) if INTERPRETED or P == "bf16" else tl.dot(a, b, input_precision=P)


@triton.jit
def times(a, b, P: tl.constexpr):
    """a b for an `a` that comes from a product, and a `b` with rows in the order of `paired`."""
    M: tl.constexpr = a.shape[0]
    N: tl.constexpr = a.shape[1]
    a = operand(a, P) if P == "bf16" else a.reshape(M, N // 8, 4, 2).permute(0, 1, 3, 2).reshape(M, N)
    return dot(a, b, P)


@triton.jit
def paired(t, P: tl.constexpr):
    """The steps of a tile that is the second factor of `times`: 0 2 4 6 1 3 5 7 of every eight."""
    return t if P == "bf16" else (t & -8) + (t % 4) * 2 + (t % 8) // 4


@triton.jit
def inside(t, T):
    """Beyond T the last step again: no mask is needed where probabilities are zero, or nothing is stored."""
    return tl.minimum(t, T - 1)


@triton.jit
def load(p, stride, t, d, D: tl.constexpr, BD: tl.constexpr, P: tl.constexpr):
    """Steps t of one head as an operand, zeros beyond D."""
    at = p + t[:, None] * stride + d[None, :]
    return operand(tl.load(at, mask=(d < D)[None, :], other=0.0) if D < BD else tl.load(at), P)


@triton.jit
def store(p, stride, x, t, d, T, D: tl.constexpr):
    mask = (t < T)[:, None] & (d < D)[None, :]
    tl.store(p + t[:, None] * stride + d[None, :], x.to(p.dtype.element_ty), mask=mask)


@triton.jit
def generator(seed, bh, threshold, DROP: tl.constexpr):
    """Key and second counter of a head's random numbers, and the smallest word that is kept."""
    key = tl.zeros([], tl.uint32)
    head = key
    if DROP:
        s = tl.load(seed).to(tl.uint64)
        key, head = (s & 0xFFFFFFFF).to(tl.uint32), (s >> 32).to(tl.uint32) ^ bh.to(tl.uint32)
    return key, head, threshold.to(tl.uint32, bitcast=True)


@triton.jit
def philox(key, x, y):
    """Philox 2x32 (Salmon et al., 2011): two random words from a counter of two words"""
    for _ in tl.static_range(ROUNDS):
        product = x.to(tl.uint64) * 0xD256D193
        x, y = (product >> 32).to(tl.uint32) ^ key ^ y, product.to(tl.uint32)
        key = tl.add(key, 0x9E3779B9, sanitize_overflow=False)
    return x, y


@triton.jit
def kept(random, t0, s0, M: tl.constexpr, N: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Which scores of queries t0.. and keys s0.. dropout keeps: (M, N), or with TRANSPOSED keys along the M rows.

    Queries t, t + 8 and keys s, s + 8 of every 16 share a call: the word says the key, its half the query. `random` is what
    `generator` returned. From 2^17 steps on masks repeat.
    """
    key, head, threshold = random
    i, j = tl.arange(0, M // 2)[:, None], tl.arange(0, N // 2)[None, :]
    query, key_step = (j, i) if TRANSPOSED else (i, j)
    counter = (((t0 >> 1) + query) * 0x10000 + ((s0 >> 1) + key_step)).to(tl.uint32, bitcast=True)
    first, second = philox(key, counter, tl.zeros([M // 2, N // 2], tl.uint32) + head)
    x = tl.join(first, second)  # key
    x = tl.join(x, x << 16)  # key, query
    x = x.reshape(M // 16, 8, N // 16, 8, 2, 2)
    x = x.permute(0, 4, 1, 2, 5, 3) if TRANSPOSED else x.permute(0, 5, 1, 2, 4, 3)
    return x.reshape(M, N) >= threshold
