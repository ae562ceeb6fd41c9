"""What the sequential kernels share: paddings, strides, activations that do not overflow, and the delta rule's gradient.

Inside a kernel the fast matrix is one tile with outputs along axis 0 and keys along axis 1, held in registers for the
whole sequence. Vectors of outputs (v, y, e) live along axis 0, vectors of keys (k, q) along axis 1, so that reading the
matrix, its transpose and writing to it need no exchange of layouts between threads.
"""

from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfwp.ops.gpu.layout import room

SEGMENT = 32
"""Steps between two checkpoints: T · d² / SEGMENT of memory, and the longest stretch over which W is walked backwards."""

AHEAD = 0 if triton.knobs.runtime.interpret else 8
"""Steps ahead that inputs are called into the L2 cache; the loads into registers run one step ahead."""

COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)
"""The interpreter knows no machine instructions, and would run reductions of pairs element by element."""


def segments(T: int) -> int:
    return -(-T // SEGMENT)


def checkpoints(T: int) -> int:
    """One at the start of every segment, and the final state, from which the walk back sets out."""
    return segments(T) + 1


def padded(n: int) -> int:
    """Tiles are powers of two."""
    return max(8, triton.next_power_of_2(n))


def unit_stride(x: Tensor) -> Tensor:
    """Kernels take any strides but the last, which is 1 for every slice of a projection."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def bth(x: Tensor) -> tuple[int, ...]:
    """Strides of B, T and H."""
    return x.stride()[:3]


def bthg(x: Tensor) -> tuple[int, ...]:
    """Strides of B, T, H and the gates."""
    return x.stride()[:4]


def gradients_like(inputs: Sequence[Tensor], out: Sequence[Tensor] | None) -> tuple[Tensor, ...]:
    """Where the gradients of the inputs go: into `out`, views with any strides but the last, or into new tensors."""
    if out is None:
        return tuple(room(x) for x in inputs)
    assert all(o.shape == x.shape for o, x in zip(out, inputs, strict=True))
    assert all(o.stride(-1) == 1 or o.shape[-1] == 1 for o in out[:-1])
    return tuple(out)


@cache
def options(table: tuple[tuple[int, int], ...], size: int) -> dict[str, int]:
    """Launch options for tiles of size × size, from pairs (largest size, warps a program).

    All registers are offered: left alone, ptxas saves them for more programs on a multiprocessor than there are, and lets
    shuffles wait for one another that could run at once.
    """
    warps = next(w for largest, w in table if size <= largest)
    return {"num_warps": warps, "maxnreg": min(255, 65536 // (32 * warps))}


def unroll(size: int) -> int:
    """Steps in one turn of the loop: two, where registers last, so that work no one waits for fills the gaps of the next step."""
    return 2 if size <= 16 else 1


def flags(reset: Tensor | None, like: Tensor) -> Tensor:
    """The reset mask as bytes; any pointer where there is none."""
    return like if reset is None else reset.contiguous().view(torch.uint8)


@triton.jit
def _call(address, on):
    """Call the sectors at these addresses into L2: a request without a result, so nothing waits for it."""
    tl.inline_asm_elementwise(
        "{ .reg .pred go; setp.ne.b32 go, $2, 0; @go prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l,r",
        [address, on.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def prefetch(p, D: tl.constexpr, on, AHEAD: tl.constexpr):
    """Call D numbers at p into L2. One request a 32-byte sector."""
    if AHEAD > 0:
        o = tl.arange(0, triton.next_power_of_2((D + 7) // 8)) * 8
        _call((p + o).to(tl.int64), (o < D) & on)


@triton.jit
def _bytes(p, offset):
    """offset numbers as bytes."""
    return offset.to(tl.int64) * (p.dtype.element_ty.primitive_bitwidth // 8)


@triton.jit
def sectors_of(z, k, v, szg, skg, svg, szt, skt, svt, G: tl.constexpr, D: tl.constexpr):
    """Addresses of the 32-byte sectors of a step's z, k, v of G gates, how far they move a step, and which there are."""
    M: tl.constexpr = (D + 7) // 8
    lane = tl.arange(0, triton.next_power_of_2(3 * G * M))
    which, gate, number = lane // (G * M), lane // M % G, lane % M * 8
    from_z = z.to(tl.int64) + _bytes(z, gate * szg + number)
    from_k = k.to(tl.int64) + _bytes(k, gate * skg + number)
    from_v = v.to(tl.int64) + _bytes(v, gate * svg + number)
    at = tl.where(which == 0, from_z, tl.where(which == 1, from_k, from_v))
    by = tl.where(which == 0, _bytes(z, szt), tl.where(which == 1, _bytes(k, skt), _bytes(v, svt)))
    return at, by, which < 3


@triton.jit
def prefetch_ahead(at, by, inside, on, AHEAD: tl.constexpr):
    """Call the sectors of AHEAD steps on: one request for all slices of a step."""
    if AHEAD > 0:
        _call(at + AHEAD * by, inside & on)


@triton.jit
def exp(x):
    """exp(x) = 2^(x / log 2); tl.exp takes five instructions more, for results below 1e-38, which are 0 here."""
    if not COMPILED:
        # infinity is right on the GPU, but a warning in the interpreter
        x = tl.minimum(x, 80.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def reciprocal(x):
    """1 / x in one instruction, to the last bit but one; 0 for results below 1e-38."""
    if COMPILED:
        x = tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        x = 1 / x
    return x


@triton.jit
def tanh(x):
    """1 - 2 / (exp(2x) + 1), and its series around 0, where that difference would cancel."""
    x2 = x * x
    series = x + x * x2 * (-0.33333334 + x2 * (0.13333334 + x2 * (-0.053968254 + x2 * 0.021869488)))
    return tl.where(x2 < 0.0625, series, 1 - 2 * reciprocal(exp(2 * x) + 1))


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))"""
    return reciprocal(1 + exp(-x))


@triton.jit
def exponentials(x, inside):
    """exp(x - max x), zero on padding, and 1 / their sum: a softmax that is normalised after it has been used."""
    e = tl.where(inside, exp(x - tl.max(tl.where(inside, x, float("-inf")), 0)), 0.0)
    return e, reciprocal(tl.sum(e, 0))


@triton.jit
def column(x):
    """A vector along axis 0, to be multiplied with a tile."""
    return tl.expand_dims(x, 1)


@triton.jit
def row(x):
    """A vector along axis 1, to be multiplied with a tile."""
    return tl.expand_dims(x, 0)


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def sum_both(a, b, axis: tl.constexpr):
    """The sums of a and b along an axis. Where warps must meet for a sum, they meet once for both."""
    if COMPILED:
        a, b = tl.reduce((a, b), axis, _add_pairs)
    else:
        a, b = tl.sum(a, axis), tl.sum(b, axis)
    return a, b


@triton.jit
def zeros_along(W):
    """Integer zeros along axis 0 and along axis 1 of a tile, in its layout, for `laid`."""
    never = (tl.abs(W) < 0).to(tl.int32)
    return tl.sum(never, 1), tl.sum(never, 0)


@triton.jit
def laid(x, zeros):
    """x in float32, in the layout of the zeros. Added to its bits they cost nothing: the sum goes away after layouts are fixed.

    So a load can run a step ahead and still arrive where it is used; otherwise Triton carries it to the next step in a
    layout of its own and exchanges it between threads there.
    """
    return (x.to(tl.float32).to(tl.int32, bitcast=True) + zeros).to(tl.float32, bitcast=True)


@triton.jit
def store_row(p, x, i, j, n):
    """The first n numbers of a vector along axis 1, stored by the threads that hold the tile's first row: no exchange."""
    tile = column(i) * 0 + row(j)
    tl.store(p + tile, tl.broadcast_to(row(x), tile.shape).to(p.dtype.element_ty), mask=column(i == 0) & row(j < n))


@triton.jit
def store_columns(p, a, b, c, d, i, j):
    """Four vectors along axis 0, side by side: a_0 b_0 c_0 d_0 a_1 …, by the threads that hold the tile's first four columns."""
    which = row(j & 3)
    x = tl.where(which == 0, column(a), tl.where(which == 1, column(b), tl.where(which == 2, column(c), column(d))))
    tl.store(p + column(i) * 4 + row(j), x, mask=tl.broadcast_to(row(j < 4), x.shape))


@triton.jit
def load_program(z, k, v, beta, i, l, o_i, o_l, V: tl.constexpr):
    """One step's z, k, v, beta of a recurrent matrix, in float32."""
    return (
        laid(tl.load(z + i, mask=i < V, other=0.0), o_i),
        laid(tl.load(k + l, mask=l < V, other=0.0), o_l),
        laid(tl.load(v + i, mask=i < V, other=0.0), o_i),
        tl.load(beta).to(tl.float32),
    )


@triton.jit
def activated(program, inside, RAW: tl.constexpr):
    """k through softmax and beta through sigmoid, if they come before their activations."""
    z, k, v, beta = program
    if RAW:
        k, scale = exponentials(k, inside)
        k *= scale
        beta = sigmoid(beta)
    return z, k, v, beta


@triton.jit
def delta_write(R, program):
    """R_t = R + beta r ⊗ k,  r = v - R k. Returns R_t and r."""
    _, k, v, beta = program
    r = v - tl.sum(R * row(k), 1)
    return R + column(beta * r) * row(k), r


@triton.jit
def delta_back(R, dR, k, r, beta, RAW: tl.constexpr):
    """Gradients of R_t = R + beta r ⊗ k,  r = v - R k, given R_t and dR of R_t. RAW: of k and beta before their activations.

    Returns dk, dv, dbeta, R and its gradient.
    """
    e = beta * r
    R -= column(e) * row(k)
    de = tl.sum(dR * row(k), 1)
    dv = beta * de
    # both reads of dk in one reduction
    dk = tl.sum(dR * column(e) - R * column(dv), 0)
    if RAW:
        dk = k * (dk - tl.sum(k * dk, 0))
        dbeta = tl.sum(de * (e - beta * e), 0)
    else:
        dbeta = tl.sum(de * r, 0)
    return dk, dv, dbeta, R, dR - column(dv) * row(k)


@triton.jit
def turned(x, diagonal):
    """From axis 1 to axis 0 as a diagonal: no barrier between threads."""
    return tl.sum(tl.where(diagonal, row(x), 0.0), 1)


@triton.jit
def softmax_back(ds, s, s_i, diagonal):
    """s ⊙ (ds - s · ds) of ds and s along axis 1, brought to axis 0, where s is s_i. Its two sums do not wait for one another."""
    p = s * ds
    return turned(p, diagonal) - s_i * tl.sum(p, 0)
