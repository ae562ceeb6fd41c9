"""What the sequential kernels share: paddings, strides, activations that do not overflow, and the delta rule's gradient.

Inside a kernel the fast matrix is one tile with outputs along axis 0 and keys along axis 1, held in registers for the
whole sequence. Vectors of outputs (v, y, e) live along axis 0, vectors of keys (k, q) along axis 1, so that reading the
matrix, its transpose and writing to it need no exchange of layouts between threads.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import triton
import triton.language as tl
from torch import Tensor

SEGMENT = 32
"""Steps between two checkpoints: T · d² / SEGMENT of memory, and the longest stretch over which W is walked backwards."""

AHEAD = 0 if triton.knobs.runtime.interpret else 8
"""Steps ahead that inputs are called into the L2 cache; the loads into registers run one step ahead."""

MERGE = tl.constexpr(not triton.knobs.runtime.interpret)
"""Reductions of pairs in one: the interpreter would run them element by element."""


def checkpoints(T: int) -> int:
    return -(-T // SEGMENT)


def padded(n: int) -> int:
    """Tiles are powers of two."""
    return max(8, triton.next_power_of_2(n))


def unit_stride(x: Tensor) -> Tensor:
    """Kernels take any strides but the last, which is 1 for every slice of a projection."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def bth(x: Tensor) -> tuple[int, int, int]:
    """Strides of B, T and H."""
    return x.stride(0), x.stride(1), x.stride(2)


def warps(table: Sequence[tuple[int, int]], size: int) -> int:
    """The number of warps for tiles of size × size, from pairs (largest size, warps)."""
    return next(w for largest, w in table if size <= largest)


def device_of(x: Tensor) -> AbstractContextManager[object]:
    """Kernels launch on the current device: make it that of x."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


def flags(reset: Tensor | None, like: Tensor) -> Tensor:
    """The reset mask as bytes; any pointer where there is none."""
    return like if reset is None else reset.contiguous().view(torch.uint8)


@triton.jit
def prefetch(p, D: tl.constexpr, on, AHEAD: tl.constexpr):
    """Call D numbers at p into L2: a request without a result, so nothing waits for it. One request a 32-byte sector."""
    if AHEAD > 0:
        SECTORS: tl.constexpr = triton.next_power_of_2((D + 7) // 8)
        o = tl.arange(0, SECTORS) * 8
        tl.inline_asm_elementwise(
            "{ .reg .pred go; setp.ne.b32 go, $2, 0; @go prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
            "=r,l,r",
            [(p + o).to(tl.int64), ((o < D) & on).to(tl.int32)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def bounded_exp(x):
    """exp(min(x, 80)), which stays finite; not a number stays so."""
    return tl.exp(tl.minimum(x, 80.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def tanh(x):
    """1 - 2 / (exp(2x) + 1), and its series around 0, where that difference would cancel."""
    x2 = x * x
    series = x + x * x2 * (-0.33333334 + x2 * (0.13333334 + x2 * (-0.053968254 + x2 * 0.021869488)))
    return tl.where(x2 < 0.0625, series, 1 - 2 / (bounded_exp(2 * x) + 1))


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))"""
    return 1 / (1 + bounded_exp(-x))


@triton.jit
def exponentials(x, inside):
    """exp(x - max x), zero on padding, and 1 / their sum: a softmax that is normalised after it has been used."""
    e = tl.where(inside, tl.exp(x - tl.max(tl.where(inside, x, float("-inf")), 0)), 0.0)
    return e, 1 / tl.sum(e, 0)


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
    if MERGE:
        a, b = tl.reduce((a, b), axis, _add_pairs)
    else:
        a, b = tl.sum(a, axis), tl.sum(b, axis)
    return a, b


@triton.jit
def zeros_along(W):
    """Zeros along axis 0 and along axis 1 of a tile, in its layout.

    What is added to one of them is computed in that layout. So a load can run a step ahead and still arrive where it is
    used; otherwise Triton carries it to the next step in a layout of its own and exchanges it between threads there.
    """
    never = tl.where(tl.abs(W) < 0, 1.0, 0.0)
    return tl.sum(never, 1), tl.sum(never, 0)


@triton.jit
def store_row(p, x, i, j, n):
    """The first n numbers of a vector along axis 1, stored by the threads that hold the tile's first row: no exchange."""
    tile = column(i) * 0 + row(j)
    tl.store(p + tile, tl.broadcast_to(row(x), tile.shape).to(p.dtype.element_ty), mask=column(i == 0) & row(j < n))


@triton.jit
def delta_back(R, dR, k, r, beta):
    """Gradients of R_t = R + beta r ⊗ k,  r = v - R k, given dR of R_t.

    Returns dk, dv, dbeta and the gradient of R.
    """
    de = tl.sum(dR * row(k), 1)
    dv = beta * de
    # both reads of dk in one reduction
    dk = tl.sum(dR * column(beta * r) - R * column(dv), 0)
    return dk, dv, tl.sum(de * r, 0), dR - column(dv) * row(k)
