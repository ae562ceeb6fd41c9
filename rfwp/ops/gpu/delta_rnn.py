"""`delta_rnn` in Triton: one program a batch row and head, R in registers.

Two chains run side by side. R follows its own delta rule, which never waits for y. y_t = z_t + R_t softmax(y_{t-1}) needs
y along the other axis of R, so it changes layout once a step; the softmax is normalised after R has been read.

The backward pass first runs all segments again, in parallel, from their checkpoints, and leaves s, r = v - R_{t-1} k (and
y, version A) of every step. Then one walk from the last step to the first undoes R_t = R_{t-1} + beta r ⊗ k, starting anew
from the checkpoint of every segment.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from rfwp.ops.gpu import steps
from rfwp.ops.gpu.steps import (
    bth,
    checkpoints,
    column,
    delta_back,
    exponentials,
    padded,
    prefetch,
    row,
    store_row,
    unit_stride,
    zeros_along,
)

__all__ = ["backward", "checkpoints", "forward"]

FORWARD_WARPS = ((16, 1), (32, 2), (64, 4), (128, 8))
BACKWARD_WARPS = ((16, 1), (32, 2), (64, 4), (128, 16))
"""(largest padded head size, warps a program)"""

# a specialised stride would mean a compilation for every other T
_RUNTIME = [f"{x}{d}" for x in ("sz", "sk", "sv", "sb", "sd") for d in "bth"] + ["H", "T", "N"]


@triton.jit
def _load(z, k, v, beta, i, l, o_i, o_l, on, V: tl.constexpr):
    """One step's inputs, in float32."""
    return (
        o_i + tl.load(z + i, mask=(i < V) & on, other=0.0).to(tl.float32),
        o_l + tl.load(k + l, mask=(l < V) & on, other=0.0).to(tl.float32),
        o_i + tl.load(v + i, mask=(i < V) & on, other=0.0).to(tl.float32),
        tl.load(beta, mask=on, other=0.0).to(tl.float32),
    )


@triton.jit(do_not_specialize=_RUNTIME)
def _run(
    z, k, v, beta, R_0, y_0, reset, y_out, R_T, y_T, ckR, cky, X,
    szb, szt, szh, skb, skt, skh, svb, svt, svh, sbb, sbt, sbh, H, T, N,
    V: tl.constexpr, D: tl.constexpr, S: tl.constexpr, AHEAD: tl.constexpr,
    A: tl.constexpr, KEEP: tl.constexpr, AGAIN: tl.constexpr, RESET: tl.constexpr,
):  # fmt: skip
    """All segments of a row and head in turn; or, AGAIN, one segment from its checkpoint, leaving its vectors in X."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    i, l = tl.arange(0, D), tl.arange(0, D)
    tile = column(i) * V + row(l)
    inside = column(i < V) & row(l < V)
    first = tl.program_id(1)
    if AGAIN:
        last = first + 1
        slot = (b * N + first) * H + h
        R = tl.load(ckR + slot * V * V + tile, mask=inside, other=0.0)
        y = tl.load(cky + slot * V + i, mask=i < V, other=0.0)
    else:
        last = N
        R = tl.load(R_0 + bh * V * V + tile, mask=inside, other=0.0)
        y = tl.load(y_0 + bh * V + i, mask=i < V, other=0.0)
    o_i, o_l = zeros_along(R)
    start = (first * S).to(tl.int64)
    z += b * szb + h * szh + start * szt
    k += b * skb + h * skh + start * skt
    v += b * svb + h * svh + start * svt
    beta += b * sbb + h * sbh + start * sbt
    P: tl.constexpr = 3 * D if A else 2 * D
    X += (bh * T + start) * P
    y_out += ((b * T + start) * H + h) * V
    reset += b * T
    hit_n = tl.load(reset + start) != 0 if RESET else False
    z_n, k_n, v_n, b_n = _load(z, k, v, beta, i, l, o_i, o_l, True, V)
    for n in range(first, last):
        if KEEP:
            slot = (b * N + n) * H + h
            tl.store(ckR + slot * V * V + tile, R, mask=inside)
            tl.store(cky + slot * V + i, y, mask=i < V)
        for t in range(n * S, tl.minimum(n * S + S, T)):
            z_t, k_t, v_t, b_t = z_n, k_n, v_n, b_n
            z += szt
            k += skt
            v += svt
            beta += sbt
            z_n, k_n, v_n, b_n = _load(z, k, v, beta, i, l, o_i, o_l, t + 1 < T, V)
            prefetch(z + AHEAD * szt, D, t + 1 + AHEAD < T, AHEAD)
            prefetch(k + AHEAD * skt, D, t + 1 + AHEAD < T, AHEAD)
            prefetch(v + AHEAD * svt, D, t + 1 + AHEAD < T, AHEAD)
            if RESET:
                hit = hit_n
                hit_n = tl.load(reset + t + 1, mask=t + 1 < T, other=0) != 0
                R = tl.where(hit, 0.0, R)
                y = tl.where(hit, 0.0, y)

            r = v_t - tl.sum(R * row(k_t), 1)
            R += column(b_t * r) * row(k_t)
            if A:
                s = y
                y_e, scale = exponentials(z_t + tl.sum(R * row(s), 1), i < V)
                y = y_e * scale
            else:
                s_e, scale = exponentials(y, i < V)
                s = s_e * scale
                y = z_t + tl.sum(R * row(s_e), 1) * scale
            if AGAIN:
                tl.store(X + i, s)
                tl.store(X + D + i, r)
                if A:
                    tl.store(X + 2 * D + i, y)
                X += P
            else:
                tl.store(y_out + i, y.to(y_out.dtype.element_ty), mask=i < V)
                y_out += H * V
    if last == N:
        tl.store(R_T + bh * V * V + tile, R, mask=inside)
        tl.store(y_T + bh * V + i, y, mask=i < V)


@triton.jit
def _recall(X, k, beta, dy, i, l, o_i, o_l, on, A: tl.constexpr, D: tl.constexpr, V: tl.constexpr):
    """One step's s, r, y (version A) as the run from the checkpoints left them, its k, beta, and dy."""
    return (
        o_l + tl.load(X + l, mask=(l < D) & on, other=0.0),
        o_i + tl.load(X + D + i, mask=(i < D) & on, other=0.0),
        o_i + tl.load(X + (2 * D if A else 0) + i, mask=(i < D) & on, other=0.0),
        o_l + tl.load(k + l, mask=(l < V) & on, other=0.0).to(tl.float32),
        tl.load(beta, mask=on, other=0.0).to(tl.float32),
        o_i + tl.load(dy + i, mask=(i < V) & on, other=0.0).to(tl.float32),
    )


@triton.jit(do_not_specialize=_RUNTIME)
def _back(
    dy, dR_T, dy_T, k, beta, reset, R_T, ckR, X, dz, dk, dv, dbeta, dR_0, dy_0,
    skb, skt, skh, sbb, sbt, sbh, sdb, sdt, sdh, H, T, N,
    V: tl.constexpr, D: tl.constexpr, S: tl.constexpr, AHEAD: tl.constexpr, A: tl.constexpr, RESET: tl.constexpr,
):  # fmt: skip
    """From the last step to the first."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    i, l = tl.arange(0, D), tl.arange(0, D)
    tile = column(i) * V + row(l)
    inside = column(i < V) & row(l < V)
    R = tl.load(R_T + bh * V * V + tile, mask=inside, other=0.0)
    dR = tl.load(dR_T + bh * V * V + tile, mask=inside, other=0.0)
    carried = tl.load(dy_T + bh * V + i, mask=i < V, other=0.0)
    P: tl.constexpr = 3 * D if A else 2 * D
    o_i, o_l = zeros_along(R)
    diagonal = column(i) == row(l)
    end = (T - 1).to(tl.int64)
    dy += b * sdb + h * sdh + end * sdt
    k += b * skb + h * skh + end * skt
    beta += b * sbb + h * sbh + end * sbt
    X += (bh * T + end) * P
    at = (b * T + end) * H + h
    reset += b * T
    s_n, r_n, y_n, k_n, b_n, dy_n = _recall(X, k, beta, dy, i, l, o_i, o_l, True, A, D, V)
    for m in range(N):
        n = N - 1 - m
        # the state that this segment began with: where the segment before it ended
        R_n = tl.load(ckR + ((b * N + n) * H + h) * V * V + tile, mask=inside, other=0.0)
        stop = tl.minimum(n * S + S, T)
        for u in range(stop - n * S):
            t = stop - 1 - u
            if RESET:
                hit = tl.load(reset + t) != 0
            s, r, y_t, k_t, b_t, dy_t = s_n, r_n, y_n, k_n, b_n, dy_n
            X -= P
            k -= skt
            beta -= sbt
            dy -= sdt
            s_n, r_n, y_n, k_n, b_n, dy_n = _recall(X, k, beta, dy, i, l, o_i, o_l, t > 0, A, D, V)
            prefetch(X - AHEAD * P, P, t - 1 - AHEAD >= 0, AHEAD)
            prefetch(k - AHEAD * skt, D, t - 1 - AHEAD >= 0, AHEAD)
            prefetch(dy - AHEAD * sdt, D, t - 1 - AHEAD >= 0, AHEAD)

            dy_t += carried
            if A:
                dy_t = y_t * (dy_t - tl.sum(dy_t * y_t, 0))
            ds = tl.sum(R * column(dy_t), 0)
            ds = ds if A else s * (ds - tl.sum(s * ds, 0))
            # from axis 1 to axis 0 as a diagonal: the only change of layout, and no barrier between warps
            carried = tl.sum(tl.where(diagonal, row(ds), 0.0), 1)
            dR += column(dy_t) * row(s)
            R -= column(b_t * r) * row(k_t)
            dk_t, dv_t, db_t, dR = delta_back(R, dR, k_t, r, b_t)
            tl.store(dz + at * V + i, dy_t.to(dz.dtype.element_ty), mask=i < V)
            store_row(dk + at * V, dk_t, i, l, V)
            tl.store(dv + at * V + i, dv_t.to(dv.dtype.element_ty), mask=i < V)
            tl.store(dbeta + at, db_t.to(dbeta.dtype.element_ty))
            at -= H
            if RESET:
                if hit:
                    dR = tl.zeros((D, D), tl.float32)
                    carried = o_i
                    # what a reset erased cannot be undone: written again from the segment's start
                    R = R_n
                    for o in range(n * S, t):
                        R = tl.where(tl.load(reset + o) != 0, 0.0, R)
                        back = t - 1 - o
                        b_o = tl.load(beta - back * sbt).to(tl.float32)
                        k_o = tl.load(k - back * skt + l, mask=l < V, other=0.0).to(tl.float32)
                        R += column(b_o * tl.load(X - back * P + D + i)) * row(k_o)
        R = R_n
    tl.store(dR_0 + bh * V * V + tile, dR, mask=inside)
    tl.store(dy_0 + bh * V + i, carried, mask=i < V)


def _launch(
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    reset: Tensor | None,
    y: Tensor,
    finals: Sequence[Tensor],
    saved: Sequence[Tensor],
    X: Tensor,
    version: str,
    keep: bool,
    again: bool,
) -> None:
    """Forward over everything, or again from the checkpoints into X."""
    z, k, v, beta = inputs
    B, T, H, V = z.shape
    z, k, v = unit_stride(z), unit_stride(k), unit_stride(v)
    N = checkpoints(T)
    _run[(B * H, N if again else 1)](
        z, k, v, beta, *states, steps.flags(reset, X), y, *finals, *saved, X,
        *bth(z), *bth(k), *bth(v), *bth(beta), H, T, N,
        V, padded(V), steps.SEGMENT, steps.AHEAD, version == "A", keep, again, reset is not None,
        num_warps=steps.warps(FORWARD_WARPS, padded(V)),
    )  # fmt: skip


def forward(
    z: Tensor, k: Tensor, v: Tensor, beta: Tensor, R: Tensor, y0: Tensor, reset: Tensor | None, keep: bool, version: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, T, H, V = z.shape
    N = checkpoints(T) if keep else 0
    y = z.new_empty(B, T, H, V)
    finals = R.new_empty(B, H, V, V), R.new_empty(B, H, V)
    saved = R.new_empty(B, N, H, V, V), R.new_empty(B, N, H, V)
    states = R.contiguous(), y0.contiguous()
    with steps.device_of(z):
        _launch((z, k, v, beta), states, reset, y, finals, saved, finals[0], version, keep, False)
    return y, *finals, *saved


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
    version: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, T, H, V = z.shape
    D = padded(V)
    X = R.new_empty(B, H, T, (3 if version == "A" else 2) * D)
    finals = R.new_empty(B, H, V, V), R.new_empty(B, H, V)
    dz, dk, dv, dbeta = (x.new_empty(x.shape) for x in (z, k, v, beta))
    dR, dy0 = R.new_empty(B, H, V, V), R.new_empty(B, H, V)
    dy, k = unit_stride(dy), unit_stride(k)
    with steps.device_of(z):
        _launch((z, k, v, beta), (R, y0), reset, y, finals, (ckR, cky), X, version, False, True)
        _back[(B * H,)](
            dy, dR_T.contiguous(), dy_T.contiguous(), k, beta, steps.flags(reset, R), finals[0], ckR, X,
            dz, dk, dv, dbeta, dR, dy0,
            *bth(k), *bth(beta), *bth(dy), H, T, checkpoints(T),
            V, D, steps.SEGMENT, steps.AHEAD, version == "A", reset is not None,
            num_warps=steps.warps(BACKWARD_WARPS, D),
        )  # fmt: skip
    return dz, dk, dv, dbeta, dR, dy0
