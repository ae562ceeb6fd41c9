"""`delta_rnn` in Triton: one program a batch row and head, R in registers.

Two chains run side by side. R follows its own delta rule, which never waits for y. y_t = z_t + R_t softmax(y_{t-1}) needs
y along the other axis of R, so it changes layout once a step; the softmax is normalised after R has been read.

Forward leaves s, k, r = v - R_{t-1} k, beta (and y, version A) of every step in `trace`. The backward pass is one walk from
the last step to the first, which undoes R_t = R_{t-1} + beta r ⊗ k and starts anew from the checkpoint of every segment.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfwp.ops.gpu import steps
from rfwp.ops.gpu.launch import launch
from rfwp.ops.gpu.steps import (
    activated,
    bth,
    checkpoints,
    column,
    delta_back,
    delta_write,
    exponentials,
    laid,
    load_program,
    padded,
    prefetch,
    prefetch_ahead,
    row,
    sectors_of,
    segments,
    softmax_back,
    store_row,
    turned,
    unit_stride,
    zeros_along,
)

__all__ = ["backward", "checkpoints", "forward", "trace_size"]

FORWARD_WARPS = ((16, 1), (32, 2), (64, 4), (128, 8))
BACKWARD_WARPS = ((16, 1), (32, 2), (64, 4), (128, 16))
"""(largest padded head size, warps a program)"""

# a specialised stride would mean a compilation for every other T
_RUNTIME = [f"{x}{d}" for x in ("sz", "sk", "sv", "sb", "sd") for d in "bth"] + ["H", "T", "N"]


def _row(V: int, version: str) -> int:
    """Numbers that a step leaves: s, k, r (and y, version A), and beta in a place of four, so that rows stay aligned."""
    return (4 if version == "A" else 3) * padded(V) + 4


def trace_size(B: int, T: int, H: int, V: int, version: str) -> int:
    return B * H * T * _row(V, version)


@triton.jit(do_not_specialize=_RUNTIME)
def _run(
    z, k, v, beta, R_0, y_0, reset, y_out, R_T, y_T, ckR, cky, X,
    szb, szt, szh, skb, skt, skh, svb, svt, svh, sbb, sbt, sbh, H, T, N,
    V: tl.constexpr, D: tl.constexpr, P: tl.constexpr, S: tl.constexpr, AHEAD: tl.constexpr,
    A: tl.constexpr, RAW: tl.constexpr, KEEP: tl.constexpr, RESET: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """From the first step to the last."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    i, l = tl.arange(0, D), tl.arange(0, D)
    tile = column(i) * V + row(l)
    inside = column(i < V) & row(l < V)
    R = tl.load(R_0 + bh * V * V + tile, mask=inside, other=0.0)
    y = tl.load(y_0 + bh * V + i, mask=i < V, other=0.0)
    o_i, o_l = zeros_along(R)
    z += b * szb + h * szh
    k += b * skb + h * skh
    v += b * svb + h * svh
    beta += b * sbb + h * sbh
    X += bh * T * P
    y_out += (b * T * H + h) * V
    reset += b * T
    hit_n = tl.load(reset) != 0 if RESET else False
    # inputs are loaded two steps ahead and activated one step ahead
    program_n = activated(load_program(z, k, v, beta, i, l, o_i, o_l, V), l < V, RAW)
    more = (T > 1).to(tl.int32)
    z += szt * more
    k += skt * more
    v += svt * more
    beta += sbt * more
    loaded = load_program(z, k, v, beta, i, l, o_i, o_l, V)
    at, by, sectors = sectors_of(z, k, v, 0, 0, 0, szt, skt, svt, 1, V)
    for n in range(N):
        if KEEP:
            slot = (b * (N + 1) + n) * H + h
            tl.store(ckR + slot * V * V + tile, R, mask=inside)
            tl.store(cky + slot * V + i, y, mask=i < V)
        for t in tl.range(n * S, tl.minimum(n * S + S, T), loop_unroll_factor=UNROLL):
            program = program_n
            program_n = activated(loaded, l < V, RAW)
            # the last step is loaded again, rather than every load be masked
            more = (t + 2 < T).to(tl.int32)
            z += szt * more
            k += skt * more
            v += svt * more
            beta += sbt * more
            loaded = load_program(z, k, v, beta, i, l, o_i, o_l, V)
            at += by * more
            prefetch_ahead(at, by, sectors, t + 2 + AHEAD < T, AHEAD)
            if RESET:
                hit = hit_n
                hit_n = tl.load(reset + t + 1, mask=t + 1 < T, other=0) != 0
                R = tl.where(hit, 0.0, R)
                y = tl.where(hit, 0.0, y)

            R, r = delta_write(R, program)
            if A:
                s = y
                y_e, scale = exponentials(program[0] + tl.sum(R * row(s), 1), i < V)
                y = y_e * scale
            else:
                s_e, scale = exponentials(y, i < V)
                s = s_e * scale
                y = program[0] + tl.sum(R * row(s_e), 1) * scale
            tl.store(y_out + i, y.to(y_out.dtype.element_ty), mask=i < V)
            y_out += H * V
            if KEEP:
                tl.store(X + i, s)
                store_row(X + D, program[1], i, l, D)
                tl.store(X + 2 * D + i, r)
                if A:
                    tl.store(X + 3 * D + i, y)
                tl.store(X + (P - 4), program[3])
                X += P
    if KEEP:
        slot = (b * (N + 1) + N) * H + h
        tl.store(ckR + slot * V * V + tile, R, mask=inside)
        tl.store(cky + slot * V + i, y, mask=i < V)
    tl.store(R_T + bh * V * V + tile, R, mask=inside)
    tl.store(y_T + bh * V + i, y, mask=i < V)


@triton.jit
def _recall(X, dy, i, l, o_i, o_l, A: tl.constexpr, P: tl.constexpr, D: tl.constexpr, V: tl.constexpr):
    """One step's s along both axes, k, r, y (version A) and beta as forward left them, and dy."""
    return (
        laid(tl.load(X + l), o_l),
        laid(tl.load(X + i), o_i),
        laid(tl.load(X + D + l), o_l),
        laid(tl.load(X + 2 * D + i), o_i),
        laid(tl.load(X + (3 * D if A else 0) + i), o_i),
        laid(tl.load(X + (P - 4)), o_i),
        laid(tl.load(dy + i, mask=i < V, other=0.0), o_i),
    )


@triton.jit(do_not_specialize=_RUNTIME)
def _back(
    dy, dR_T, dy_T, reset, ckR, X, dz, dk, dv, dbeta, dR_0, dy_0,
    szb, szt, szh, skb, skt, skh, svb, svt, svh, sbb, sbt, sbh, sdb, sdt, sdh, H, T, N,
    V: tl.constexpr, D: tl.constexpr, P: tl.constexpr, S: tl.constexpr, AHEAD: tl.constexpr,
    A: tl.constexpr, RAW: tl.constexpr, RESET: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """From the last step to the first. Strides of z, k, v, beta are those of their gradients."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    i, l = tl.arange(0, D), tl.arange(0, D)
    tile = column(i) * V + row(l)
    inside = column(i < V) & row(l < V)
    R = tl.load(ckR + ((b * (N + 1) + N) * H + h) * V * V + tile, mask=inside, other=0.0)
    dR = tl.load(dR_T + bh * V * V + tile, mask=inside, other=0.0)
    carried = tl.load(dy_T + bh * V + i, mask=i < V, other=0.0)
    o_i, o_l = zeros_along(R)
    diagonal = column(i) == row(l)
    end = (T - 1).to(tl.int64)
    dy += b * sdb + h * sdh + end * sdt
    dz += b * szb + h * szh + end * szt
    dk += b * skb + h * skh + end * skt
    dv += b * svb + h * svh + end * svt
    dbeta += b * sbb + h * sbh + end * sbt
    X += (bh * T + end) * P
    reset += b * T
    s_n, si_n, k_n, r_n, y_n, b_n, dy_n = _recall(X, dy, i, l, o_i, o_l, A, P, D, V)
    for m in range(N):
        n = N - 1 - m
        # the state that this segment began with: where the segment before it ended
        R_n = tl.load(ckR + ((b * (N + 1) + n) * H + h) * V * V + tile, mask=inside, other=0.0)
        stop = tl.minimum(n * S + S, T)
        for u in tl.range(0, stop - n * S, loop_unroll_factor=UNROLL):
            t = stop - 1 - u
            if RESET:
                hit = tl.load(reset + t) != 0
            s, s_i, k_t, r, y_t, b_t, dy_t = s_n, si_n, k_n, r_n, y_n, b_n, dy_n
            # the first step is loaded twice, rather than every load be masked
            more = (t > 0).to(tl.int32)
            X -= P * more
            dy -= sdt * more
            s_n, si_n, k_n, r_n, y_n, b_n, dy_n = _recall(X, dy, i, l, o_i, o_l, A, P, D, V)
            prefetch(X - AHEAD * P, P, t - 1 - AHEAD >= 0, AHEAD)
            prefetch(dy - AHEAD * sdt, D, t - 1 - AHEAD >= 0, AHEAD)

            dy_t += carried
            if A:
                dy_t = y_t * (dy_t - tl.sum(dy_t * y_t, 0))
            ds = tl.sum(R * column(dy_t), 0)
            carried = turned(ds, diagonal) if A else softmax_back(ds, s, s_i, diagonal)
            dk_t, dv_t, db_t, R, dR = delta_back(R, dR + column(dy_t) * row(s), k_t, r, b_t, RAW)
            tl.store(dz + i, dy_t.to(dz.dtype.element_ty), mask=i < V)
            store_row(dk, dk_t, i, l, V)
            tl.store(dv + i, dv_t.to(dv.dtype.element_ty), mask=i < V)
            tl.store(dbeta, db_t.to(dbeta.dtype.element_ty))
            dz -= szt
            dk -= skt
            dv -= svt
            dbeta -= sbt
            if RESET:
                if hit:
                    dR = tl.zeros((D, D), tl.float32)
                    carried = tl.zeros((D,), tl.float32)
                    # what a reset erased cannot be undone: written again from the segment's start
                    R = R_n
                    for o in range(n * S, t):
                        x = X - (t - 1 - o) * P
                        R = tl.where(tl.load(reset + o) != 0, 0.0, R)
                        R += column(tl.load(x + (P - 4)) * tl.load(x + 2 * D + i)) * row(tl.load(x + D + l))
        R = R_n
    tl.store(dR_0 + bh * V * V + tile, dR, mask=inside)
    tl.store(dy_0 + bh * V + i, carried, mask=i < V)


def forward(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R: Tensor,
    y0: Tensor,
    reset: Tensor | None,
    keep: bool,
    version: str,
    raw: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """raw: k comes before its softmax and beta before its sigmoid."""
    B, T, H, V = z.shape
    D, N = padded(V), checkpoints(T) if keep else 0
    y = z.new_empty(B, T, H, V)
    finals = R.new_empty(B, H, V, V), R.new_empty(B, H, V)
    saved = R.new_empty(B, N, H, V, V), R.new_empty(B, N, H, V)
    trace = R.new_empty(trace_size(B, T, H, V, version) if keep else 0)
    z, k, v = unit_stride(z), unit_stride(k), unit_stride(v)
    with torch.cuda.device_of(z):
        launch(_run, B * H,
            z, k, v, beta, R.contiguous(), y0.contiguous(), steps.flags(reset, R), y, *finals, *saved, trace,
            *bth(z), *bth(k), *bth(v), *bth(beta), H, T, segments(T),
            V, D, _row(V, version), steps.SEGMENT, steps.AHEAD, version == "A", raw, keep, reset is not None, steps.unroll(D),
            **steps.options(FORWARD_WARPS, D),
        )  # fmt: skip
    return y, *finals, *saved, trace


def backward(
    dy: Tensor,
    dR_T: Tensor,
    dy_T: Tensor,
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R: Tensor,
    y0: Tensor,
    reset: Tensor | None,
    y: Tensor,
    ckR: Tensor,
    cky: Tensor,
    trace: Tensor,
    version: str,
    raw: bool = False,
    out: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """raw as in forward; out: where dz, dk, dv, dbeta go, views with any strides but the last."""
    B, T, H, V = z.shape
    D = padded(V)
    dz, dk, dv, dbeta = steps.gradients_like((z, k, v, beta), out)
    dR, dy0 = R.new_empty(B, H, V, V), R.new_empty(B, H, V)
    dy = unit_stride(dy)
    with torch.cuda.device_of(z):
        launch(_back, B * H,
            dy, dR_T.contiguous(), dy_T.contiguous(), steps.flags(reset, R), ckR, trace, dz, dk, dv, dbeta, dR, dy0,
            *bth(dz), *bth(dk), *bth(dv), *bth(dbeta), *bth(dy), H, T, segments(T),
            V, D, _row(V, version), steps.SEGMENT, steps.AHEAD, version == "A", raw, reset is not None, steps.unroll(D),
            **steps.options(BACKWARD_WARPS, D),
        )  # fmt: skip
    return dz, dk, dv, dbeta, dR, dy0
