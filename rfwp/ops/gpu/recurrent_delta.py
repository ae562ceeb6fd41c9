"""`recurrent_delta` in Triton: one program a batch row and head, W and the R matrices in registers.

A step has two dependent reductions and no more. The first, over values, is R tanh(y_{t-1}). The second, over keys, takes
W' k, W' q, k · q and the sums of both softmaxes together, on exponentials that are not yet normalised:
    e = beta (v - W' k),  y_t = W' q + e (k · q),  so that writing W_t = W' + e ⊗ k delays nobody.
The shift of the softmaxes is the largest input, known ahead, as long as |R| cannot move an exponent by more than STEEP.

The backward pass first runs all segments again, in parallel, from their checkpoints, and leaves q, k, e, s of every step
(T · d of memory). Then one walk from the last step to the first undoes W_t = W' + e ⊗ k, starting anew from the checkpoint
of every segment so that rounding does not build up.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfwp.ops.gpu import steps
from rfwp.ops.gpu.steps import (
    bth,
    checkpoints,
    column,
    padded,
    prefetch,
    row,
    sigmoid,
    store_row,
    sum_both,
    tanh,
    unit_stride,
    zeros_along,
)

__all__ = ["backward", "checkpoints", "forward"]

FORWARD_WARPS = ((16, 1), (32, 2), (64, 4), (128, 16))
BACKWARD_WARPS = ((16, 1), (32, 4), (64, 8), (128, 16))
"""(largest padded head size, warps a program)"""

FUSED = 64
"""Largest padded head size whose gradients of R are summed in registers; beyond it they are matrix products afterwards."""

STEEP = tl.constexpr(20.0)
"""Bound on the row sums of |R_q| and |R_k| under which exponentials stay in range without the exact maximum."""

# a specialised stride would mean a compilation for every other T
_RUNTIME = [f"{x}{d}" for x in ("sq", "sk", "sv", "sb", "sd") for d in "bth"] + ["H", "T", "N"]


@triton.jit
def _load(q, k, v, beta, i, j, o_i, o_j, on, K: tl.constexpr, V: tl.constexpr):
    """One step's inputs, in float32. Padded keys are -inf, so that no softmax counts them."""
    lowest = float("-inf")
    return (
        o_j + tl.load(q + j, mask=(j < K) & on, other=lowest).to(tl.float32),
        o_j + tl.load(k + j, mask=(j < K) & on, other=lowest).to(tl.float32),
        o_i + tl.load(v + i, mask=(i < V) & on, other=0.0).to(tl.float32),
        tl.load(beta, mask=on, other=0.0).to(tl.float32),
    )


@triton.jit
def _slow_matrices(R_q, R_k, R_v, R_beta, h, i, j, l, K: tl.constexpr, V: tl.constexpr):
    """R_q and R_k turned round, inputs along axis 0: their outputs then lie along axis 1, where W wants its keys."""
    turned = h * K * V + column(i) + row(j) * V
    inside = column(i < V) & row(j < K)
    Rq = tl.load(R_q + turned, mask=inside, other=0.0).to(tl.float32)
    Rk = tl.load(R_k + turned, mask=inside, other=0.0).to(tl.float32)
    square = column(i < V) & row(l < V)
    Rv = tl.load(R_v + h * V * V + column(i) * V + row(l), mask=square, other=0.0).to(tl.float32)
    Rb = tl.load(R_beta + h * V + i, mask=i < V, other=0.0).to(tl.float32)
    return Rq, Rk, Rv, Rb


@triton.jit(do_not_specialize=_RUNTIME)
def _run(
    q, k, v, beta, R_q, R_k, R_v, R_beta, W_0, y_0, reset, y_out, W_T, y_T, ckW, cky, X,
    sqb, sqt, sqh, skb, skt, skh, svb, svt, svh, sbb, sbt, sbh, H, T, N,
    K: tl.constexpr, V: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, S: tl.constexpr, AHEAD: tl.constexpr,
    KEEP: tl.constexpr, AGAIN: tl.constexpr, RESET: tl.constexpr,
):  # fmt: skip
    """All segments of a row and head in turn; or, AGAIN, one segment from its checkpoint, leaving its vectors in X."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    i, j, l = tl.arange(0, DV), tl.arange(0, DK), tl.arange(0, DV)
    Rq, Rk, Rv, Rb = _slow_matrices(R_q, R_k, R_v, R_beta, h, i, j, l, K, V)
    steep = tl.maximum(tl.max(tl.sum(tl.abs(Rq), 0), 0), tl.max(tl.sum(tl.abs(Rk), 0), 0)) > STEEP
    tile = column(i) * K + row(j)
    inside = column(i < V) & row(j < K)
    first = tl.program_id(1)
    if AGAIN:
        last = first + 1
        slot = (b * N + first) * H + h
        W = tl.load(ckW + slot * V * K + tile, mask=inside, other=0.0)
        y = tl.load(cky + slot * V + i, mask=i < V, other=0.0)
    else:
        last = N
        W = tl.load(W_0 + bh * V * K + tile, mask=inside, other=0.0)
        y = tl.load(y_0 + bh * V + i, mask=i < V, other=0.0)
    o_i, o_j = zeros_along(W)
    start = (first * S).to(tl.int64)
    q += b * sqb + h * sqh + start * sqt
    k += b * skb + h * skh + start * skt
    v += b * svb + h * svh + start * svt
    beta += b * sbb + h * sbh + start * sbt
    P: tl.constexpr = 2 * DK + 2 * DV + 4
    X += (bh * T + start) * P
    y_out += ((b * T + start) * H + h) * V
    reset += b * T
    hit_n = tl.load(reset + start) != 0 if RESET else False
    q_n, k_n, v_n, b_n = _load(q, k, v, beta, i, j, o_i, o_j, True, K, V)
    for n in range(first, last):
        if KEEP:
            slot = (b * N + n) * H + h
            tl.store(ckW + slot * V * K + tile, W, mask=inside)
            tl.store(cky + slot * V + i, y, mask=i < V)
        for t in range(n * S, tl.minimum(n * S + S, T)):
            q_t, k_t, v_t, b_t = q_n, k_n, v_n, b_n
            q += sqt
            k += skt
            v += svt
            beta += sbt
            q_n, k_n, v_n, b_n = _load(q, k, v, beta, i, j, o_i, o_j, t + 1 < T, K, V)
            prefetch(q + AHEAD * sqt, DK, t + 1 + AHEAD < T, AHEAD)
            prefetch(k + AHEAD * skt, DK, t + 1 + AHEAD < T, AHEAD)
            prefetch(v + AHEAD * svt, DV, t + 1 + AHEAD < T, AHEAD)
            if RESET:
                hit = hit_n
                hit_n = tl.load(reset + t + 1, mask=t + 1 < T, other=0) != 0
                W = tl.where(hit, 0.0, W)
                y = tl.where(hit, 0.0, y)

            s = tanh(y)
            x_q, x_k = sum_both(Rq * column(s), Rk * column(s), 0)
            x_q += q_t
            x_k += k_t
            m_q, m_k = tl.max(q_t, 0), tl.max(k_t, 0)
            if steep:
                m_q, m_k = tl.max(x_q, 0), tl.max(x_k, 0)
            q_e, k_e = tl.exp(x_q - m_q), tl.exp(x_k - m_k)
            v_t += tl.sum(Rv * row(s), 1)
            b_t = sigmoid(b_t + tl.sum(Rb * s, 0))
            z_q, z_k = 1 / tl.sum(q_e, 0), 1 / tl.sum(k_e, 0)
            kq = tl.sum(q_e * k_e, 0) * z_k * z_q
            e = b_t * (v_t - tl.sum(W * row(k_e), 1) * z_k)
            y = tl.sum(W * row(q_e), 1) * z_q + e * kq
            k_t = k_e * z_k
            W += column(e) * row(k_t)
            if AGAIN:
                store_row(X, q_e * z_q, i, j, DK)
                store_row(X + DK, k_t, i, j, DK)
                tl.store(X + 2 * DK + i, e)
                tl.store(X + 2 * DK + DV + i, s)
                tl.store(X + 2 * DK + 2 * DV, b_t)
                tl.store(X + 2 * DK + 2 * DV + 1, kq)
                X += P
            else:
                tl.store(y_out + i, y.to(y_out.dtype.element_ty), mask=i < V)
                y_out += H * V
    if last == N:
        tl.store(W_T + bh * V * K + tile, W, mask=inside)
        tl.store(y_T + bh * V + i, y, mask=i < V)


@triton.jit
def _recall(X, dy, i, j, o_i, o_j, on, DK: tl.constexpr, DV: tl.constexpr, V: tl.constexpr):
    """One step's q, k, e, s, beta, k · q as the run from the checkpoints left them, and dy."""
    return (
        o_j + tl.load(X + j, mask=(j < DK) & on, other=0.0),
        o_j + tl.load(X + DK + j, mask=(j < DK) & on, other=0.0),
        o_i + tl.load(X + 2 * DK + i, mask=(i < DV) & on, other=0.0),
        o_i + tl.load(X + 2 * DK + DV + i, mask=(i < DV) & on, other=0.0),
        tl.load(X + 2 * DK + 2 * DV, mask=on, other=0.0),
        tl.load(X + 2 * DK + 2 * DV + 1, mask=on, other=0.0),
        o_i + tl.load(dy + i, mask=(i < V) & on, other=0.0).to(tl.float32),
    )


@triton.jit(do_not_specialize=_RUNTIME)
def _back(
    dy, dW_T, dy_T, R_q, R_k, R_v, R_beta, reset, W_T, ckW, X,
    dq, dk, dv, dbeta, dR_q, dR_k, dR_v, dR_beta, dW_0, dy_0,
    sdb, sdt, sdh, H, T, N,
    K: tl.constexpr, V: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, S: tl.constexpr, AHEAD: tl.constexpr,
    FUSE: tl.constexpr, RESET: tl.constexpr,
):  # fmt: skip
    """From the last step to the first.

    dW k of the next step is read at the end of this one, beside what the softmaxes' gradients wait for; so a step has two
    dependent reductions: over values (all gradients of q and k), then over keys (ds, with the softmaxes' means inside it).
    """
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    i, j, l = tl.arange(0, DV), tl.arange(0, DK), tl.arange(0, DV)
    Rq, Rk, Rv, Rb = _slow_matrices(R_q, R_k, R_v, R_beta, h, i, j, l, K, V)
    tile = column(i) * K + row(j)
    inside = column(i < V) & row(j < K)
    W = tl.load(W_T + bh * V * K + tile, mask=inside, other=0.0)
    dW = tl.load(dW_T + bh * V * K + tile, mask=inside, other=0.0)
    carried = tl.load(dy_T + bh * V + i, mask=i < V, other=0.0)
    if FUSE:
        dRq = tl.zeros((DV, DK), tl.float32)
        dRk = tl.zeros((DV, DK), tl.float32)
        dRv = tl.zeros((DV, DV), tl.float32)
        dRb = tl.zeros((DV,), tl.float32)
    P: tl.constexpr = 2 * DK + 2 * DV + 4
    o_i, o_j = zeros_along(W)
    diagonal = column(i) == row(j)
    end = (T - 1).to(tl.int64)
    dy += b * sdb + h * sdh + end * sdt
    X += (bh * T + end) * P
    at = (b * T + end) * H + h
    reset += b * T
    q_n, k_n, e_n, s_n, b_n, kq_n, dy_n = _recall(X, dy, i, j, o_i, o_j, True, DK, DV, V)
    dWk = tl.sum(dW * row(k_n), 1)
    for m in range(N):
        n = N - 1 - m
        # the state that this segment began with: where the segment before it ended
        W_n = tl.load(ckW + ((b * N + n) * H + h) * V * K + tile, mask=inside, other=0.0)
        stop = tl.minimum(n * S + S, T)
        for u in range(stop - n * S):
            t = stop - 1 - u
            if RESET:
                hit = tl.load(reset + t) != 0
            q_t, k_t, e, s, b_t, kq, dy_t = q_n, k_n, e_n, s_n, b_n, kq_n, dy_n
            if FUSE:
                s_l = tl.load(X + 2 * DK + DV + l)
            X -= P
            dy -= sdt
            q_n, k_n, e_n, s_n, b_n, kq_n, dy_n = _recall(X, dy, i, j, o_i, o_j, t > 0, DK, DV, V)
            prefetch(X - AHEAD * P, P, t - 1 - AHEAD >= 0, AHEAD)
            prefetch(dy - AHEAD * sdt, DV, t - 1 - AHEAD >= 0, AHEAD)

            dy_t += carried
            W -= column(e) * row(k_t)
            de = dWk + kq * dy_t
            dv_t = b_t * de
            edy, ede = sum_both(e * dy_t, e * de, 0)
            db_t = (1 - b_t) * ede
            dq_t, dk_t = sum_both(W * column(dy_t), dW * column(e) - W * column(dv_t), 0)
            dq_t = q_t * (dq_t + k_t * edy)
            dk_t = k_t * (dk_t + q_t * edy)
            mean_q, mean_k = tl.sum(dq_t, 0), tl.sum(dk_t, 0)
            ds_v = tl.sum(Rv * column(dv_t), 0)
            if DK == DV:
                # ds_v lies along axis 1: as a diagonal it joins a sum that brings it to axis 0 anyway
                ds = tl.sum(Rq * row(dq_t) + Rk * row(dk_t) + tl.where(diagonal, row(ds_v), 0.0), 1) + Rb * db_t
            else:
                ds = tl.sum(Rq * row(dq_t) + Rk * row(dk_t), 1) + Rb * db_t + ds_v
            ds -= mean_q * tl.sum(Rq * row(q_t), 1) + mean_k * tl.sum(Rk * row(k_t), 1)
            carried = ds * (1 - s * s)
            dW += column(dy_t) * row(q_t) - column(dv_t) * row(k_t)
            dq_t -= mean_q * q_t
            dk_t -= mean_k * k_t
            if FUSE:
                dRq += column(s) * row(dq_t)
                dRk += column(s) * row(dk_t)
                dRv += column(dv_t) * row(s_l)
                dRb += db_t * s
            store_row(dq + at * K, dq_t, i, j, K)
            store_row(dk + at * K, dk_t, i, j, K)
            tl.store(dv + at * V + i, dv_t.to(dv.dtype.element_ty), mask=i < V)
            tl.store(dbeta + at, db_t.to(dbeta.dtype.element_ty))
            at -= H
            if RESET:
                if hit:
                    dW = tl.zeros((DV, DK), tl.float32)
                    carried = o_i
                    # what a reset erased cannot be undone: written again from the segment's start
                    W = W_n
                    for o in range(n * S, t):
                        W = tl.where(tl.load(reset + o) != 0, 0.0, W)
                        x = X + (o - t + 1) * P
                        W += column(tl.load(x + 2 * DK + i)) * row(tl.load(x + DK + j))
            dWk = tl.sum(dW * row(k_n), 1)
        W = W_n
    tl.store(dW_0 + bh * V * K + tile, dW, mask=inside)
    tl.store(dy_0 + bh * V + i, carried, mask=i < V)
    if FUSE:
        turned = bh * K * V + column(i) + row(j) * V
        tl.store(dR_q + turned, dRq, mask=inside)
        tl.store(dR_k + turned, dRk, mask=inside)
        tl.store(dR_v + bh * V * V + column(i) * V + row(l), dRv, mask=column(i < V) & row(l < V))
        tl.store(dR_beta + bh * V + i, dRb, mask=i < V)


def _launch(
    inputs: Sequence[Tensor],
    R: Sequence[Tensor],
    states: Sequence[Tensor],
    reset: Tensor | None,
    y: Tensor,
    finals: Sequence[Tensor],
    saved: Sequence[Tensor],
    X: Tensor,
    keep: bool,
    again: bool,
) -> None:
    """Forward over everything, or again from the checkpoints into X."""
    q, k, v, beta = inputs
    B, T, H, K = q.shape
    V = v.shape[-1]
    DK, DV = padded(K), padded(V)
    q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
    N = checkpoints(T)
    _run[(B * H, N if again else 1)](
        q, k, v, beta, *R, *states, steps.flags(reset, X), y, *finals, *saved, X,
        *bth(q), *bth(k), *bth(v), *bth(beta), H, T, N,
        K, V, DK, DV, steps.SEGMENT, steps.AHEAD, keep, again, reset is not None,
        num_warps=steps.warps(FORWARD_WARPS, max(DK, DV)),
    )  # fmt: skip


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R_q: Tensor,
    R_k: Tensor,
    R_v: Tensor,
    R_beta: Tensor,
    W: Tensor,
    y0: Tensor,
    reset: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, T, H, K = q.shape
    V = v.shape[-1]
    N = checkpoints(T) if keep else 0
    y = v.new_empty(B, T, H, V)
    finals = W.new_empty(B, H, V, K), W.new_empty(B, H, V)
    saved = W.new_empty(B, N, H, V, K), W.new_empty(B, N, H, V)
    R = [x.contiguous() for x in (R_q, R_k, R_v, R_beta)]
    states = W.contiguous(), y0.contiguous()
    with steps.device_of(q):
        _launch((q, k, v, beta), R, states, reset, y, finals, saved, finals[0], keep, False)
    return y, *finals, *saved


def backward(
    dy: Tensor,
    dW_T: Tensor,
    dy_T: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R_q: Tensor,
    R_k: Tensor,
    R_v: Tensor,
    R_beta: Tensor,
    W: Tensor,
    y0: Tensor,
    reset: Tensor | None,
    y: Tensor,
    ckW: Tensor,
    cky: Tensor,
) -> tuple[Tensor, ...]:
    B, T, H, K = q.shape
    V = v.shape[-1]
    DK, DV = padded(K), padded(V)
    R = [x.contiguous() for x in (R_q, R_k, R_v, R_beta)]
    X = W.new_empty(B, H, T, 2 * DK + 2 * DV + 4)
    finals = W.new_empty(B, H, V, K), W.new_empty(B, H, V)
    dq, dk, dv, dbeta = (x.new_empty(x.shape) for x in (q, k, v, beta))
    dR = [W.new_empty(B, *x.shape) for x in R]
    dW, dy0 = W.new_empty(B, H, V, K), W.new_empty(B, H, V)
    dy = unit_stride(dy)
    fuse = max(DK, DV) <= FUSED
    with steps.device_of(q):
        _launch((q, k, v, beta), R, (W, y0), reset, y, finals, (ckW, cky), X, False, True)
        _back[(B * H,)](
            dy, dW_T.contiguous(), dy_T.contiguous(), *R, steps.flags(reset, W), finals[0], ckW, X,
            dq, dk, dv, dbeta, *dR, dW, dy0,
            *bth(dy), H, T, checkpoints(T),
            K, V, DK, DV, steps.SEGMENT, steps.AHEAD, fuse, reset is not None,
            num_warps=steps.warps(BACKWARD_WARPS, max(DK, DV)),
        )  # fmt: skip
    if not fuse:
        s = X[..., 2 * DK + DV :][..., :V]
        dR = [torch.einsum("bth...,bhtv->bh...v", x.float(), s) for x in (dq, dk, dv, dbeta)]
    return dq, dk, dv, dbeta, *(g.sum(0).to(x.dtype) for g, x in zip(dR, R, strict=True)), dW, dy0
