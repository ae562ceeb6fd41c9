"""`recurrent_delta` in Triton: one program a batch row and head, W and the R matrices in registers.

A step has two dependent reductions and no more. The first, over values, is R tanh(y_{t-1}). The second, over keys, takes
W' k, W' q, k · q and the sums of both softmaxes together, on exponentials that are not yet normalised:
    e = beta (v - W' k),  y_t = W' q + e (k · q),  so that writing W_t = W' + e ⊗ k delays nobody.
The shift of the softmaxes is the largest input, known ahead, as long as |R| cannot move an exponent by more than STEEP; heads
with larger R run in a launch of their own.

Forward leaves q, k, e, s, beta and k · q of every step in `trace`. The backward pass is one walk from the last step to the
first, which undoes W_t = W' + e ⊗ k and starts anew from the checkpoint of every segment, so that rounding does not build up.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfwp.ops.gpu import steps
from rfwp.ops.gpu.launch import launch
from rfwp.ops.gpu.steps import (
    bth,
    checkpoints,
    column,
    exp,
    laid,
    padded,
    prefetch,
    reciprocal,
    row,
    segments,
    sigmoid,
    store_row,
    sum_both,
    tanh,
    unit_stride,
    zeros_along,
)

__all__ = ["backward", "checkpoints", "forward", "trace_size"]

FORWARD_WARPS = ((16, 1), (32, 2), (64, 4), (128, 16))
BACKWARD_WARPS = ((16, 1), (32, 4), (64, 8), (128, 16))
"""(largest padded head size, warps a program)"""

FUSED = 64
"""Largest padded head size whose gradients of R are summed in registers; beyond it they are matrix products afterwards."""

STEEP = tl.constexpr(20.0)
"""Bound on the row sums of |R_q| and |R_k| under which exponentials stay in range without the exact maximum."""

# a specialised stride would mean a compilation for every other T
_RUNTIME = [f"{x}{d}" for x in ("sq", "sk", "sv", "sb", "sd") for d in "bth"] + ["sRq", "sRk", "sRv", "sRb", "H", "T", "N"]


def _row(K: int, V: int) -> int:
    """Numbers that a step leaves: q, k, e, s, and beta and k · q in a place of four, so that rows stay aligned."""
    return 2 * padded(K) + 2 * padded(V) + 4


def trace_size(B: int, T: int, H: int, K: int, V: int) -> int:
    return B * H * T * _row(K, V)


@triton.jit
def _load(q, k, v, beta, i, j, o_i, o_j, K: tl.constexpr, V: tl.constexpr):
    """One step's inputs, in float32. Padded keys are -inf, so that no softmax counts them."""
    lowest = float("-inf")
    return (
        laid(tl.load(q + j, mask=j < K, other=lowest), o_j),
        laid(tl.load(k + j, mask=j < K, other=lowest), o_j),
        laid(tl.load(v + i, mask=i < V, other=0.0), o_i),
        tl.load(beta).to(tl.float32),
    )


@triton.jit
def _slow_matrices(R_q, R_k, R_v, R_beta, sRq, sRk, sRv, sRb, h, i, j, l, K: tl.constexpr, V: tl.constexpr):
    """R_q and R_k turned round, inputs along axis 0: their outputs then lie along axis 1, where W wants its keys."""
    turned = column(i) + row(j) * V
    inside = column(i < V) & row(j < K)
    Rq = tl.load(R_q + h * sRq + turned, mask=inside, other=0.0).to(tl.float32)
    Rk = tl.load(R_k + h * sRk + turned, mask=inside, other=0.0).to(tl.float32)
    square = column(i < V) & row(l < V)
    Rv = tl.load(R_v + h * sRv + column(i) * V + row(l), mask=square, other=0.0).to(tl.float32)
    Rb = tl.load(R_beta + h * sRb + i, mask=i < V, other=0.0).to(tl.float32)
    return Rq, Rk, Rv, Rb


@triton.jit(do_not_specialize=_RUNTIME)
def _run(
    q, k, v, beta, R_q, R_k, R_v, R_beta, W_0, y_0, reset, y_out, W_T, y_T, ckW, cky, X,
    sqb, sqt, sqh, skb, skt, skh, svb, svt, svh, sbb, sbt, sbh, sRq, sRk, sRv, sRb, H, T, N,
    K: tl.constexpr, V: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, P: tl.constexpr, S: tl.constexpr,
    AHEAD: tl.constexpr, KEEP: tl.constexpr, RESET: tl.constexpr, UNROLL: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """From the first step to the last, for the heads whose R are steep (EXACT) or those whose R are not."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    i, j, l = tl.arange(0, DV), tl.arange(0, DK), tl.arange(0, DV)
    Rq, Rk, Rv, Rb = _slow_matrices(R_q, R_k, R_v, R_beta, sRq, sRk, sRv, sRb, h, i, j, l, K, V)
    steep = tl.maximum(tl.max(tl.sum(tl.abs(Rq), 0), 0), tl.max(tl.sum(tl.abs(Rk), 0), 0)) > STEEP
    if steep != EXACT:
        return
    tile = column(i) * K + row(j)
    inside = column(i < V) & row(j < K)
    W = tl.load(W_0 + bh * V * K + tile, mask=inside, other=0.0)
    y = tl.load(y_0 + bh * V + i, mask=i < V, other=0.0)
    o_i, o_j = zeros_along(W)
    q += b * sqb + h * sqh
    k += b * skb + h * skh
    v += b * svb + h * svh
    beta += b * sbb + h * sbh
    X += bh * T * P
    y_out += (b * T * H + h) * V
    reset += b * T
    hit_n = tl.load(reset) != 0 if RESET else False
    q_n, k_n, v_n, b_n = _load(q, k, v, beta, i, j, o_i, o_j, K, V)
    for n in range(N):
        if KEEP:
            slot = (b * (N + 1) + n) * H + h
            tl.store(ckW + slot * V * K + tile, W, mask=inside)
            tl.store(cky + slot * V + i, y, mask=i < V)
        for t in tl.range(n * S, tl.minimum(n * S + S, T), loop_unroll_factor=UNROLL):
            q_t, k_t, v_t, b_t = q_n, k_n, v_n, b_n
            # the last step is loaded twice, rather than every load be masked
            more = (t + 1 < T).to(tl.int32)
            q += sqt * more
            k += skt * more
            v += svt * more
            beta += sbt * more
            q_n, k_n, v_n, b_n = _load(q, k, v, beta, i, j, o_i, o_j, K, V)
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
            v_t += tl.sum(Rv * row(s), 1)
            b_t = sigmoid(b_t + tl.sum(Rb * s, 0))
            if EXACT:
                m_q, m_k = tl.max(x_q, 0), tl.max(x_k, 0)
            else:
                m_q, m_k = tl.max(q_t, 0), tl.max(k_t, 0)
            q_e, k_e = exp(x_q - m_q), exp(x_k - m_k)
            z_q, z_k = reciprocal(tl.sum(q_e, 0)), reciprocal(tl.sum(k_e, 0))
            kq = tl.sum(q_e * k_e, 0) * z_k * z_q
            e = b_t * (v_t - tl.sum(W * row(k_e), 1) * z_k)
            y = tl.sum(W * row(q_e), 1) * z_q + e * kq
            k_t = k_e * z_k
            W += column(e) * row(k_t)
            tl.store(y_out + i, y.to(y_out.dtype.element_ty), mask=i < V)
            y_out += H * V
            if KEEP:
                store_row(X, q_e * z_q, i, j, DK)
                store_row(X + DK, k_t, i, j, DK)
                tl.store(X + 2 * DK + i, e)
                tl.store(X + 2 * DK + DV + i, s)
                tl.store(X + 2 * DK + 2 * DV, b_t)
                tl.store(X + 2 * DK + 2 * DV + 1, kq)
                X += P
    if KEEP:
        slot = (b * (N + 1) + N) * H + h
        tl.store(ckW + slot * V * K + tile, W, mask=inside)
        tl.store(cky + slot * V + i, y, mask=i < V)
    tl.store(W_T + bh * V * K + tile, W, mask=inside)
    tl.store(y_T + bh * V + i, y, mask=i < V)


@triton.jit
def _recall(X, dy, i, j, o_i, o_j, DK: tl.constexpr, DV: tl.constexpr, V: tl.constexpr):
    """One step's q, k, e, s, beta, k · q as forward left them, and dy."""
    return (
        laid(tl.load(X + j), o_j),
        laid(tl.load(X + DK + j), o_j),
        laid(tl.load(X + 2 * DK + i), o_i),
        laid(tl.load(X + 2 * DK + DV + i), o_i),
        laid(tl.load(X + 2 * DK + 2 * DV), o_i),
        laid(tl.load(X + 2 * DK + 2 * DV + 1), o_i),
        laid(tl.load(dy + i, mask=i < V, other=0.0), o_i),
    )


@triton.jit(do_not_specialize=_RUNTIME)
def _back(
    dy, dW_T, dy_T, R_q, R_k, R_v, R_beta, reset, ckW, X, dq, dk, dv, dbeta, dR, dW_0, dy_0,
    sqb, sqt, sqh, skb, skt, skh, svb, svt, svh, sbb, sbt, sbh, sdb, sdt, sdh, sRq, sRk, sRv, sRb, H, T, N,
    K: tl.constexpr, V: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, P: tl.constexpr, S: tl.constexpr,
    AHEAD: tl.constexpr, FUSE: tl.constexpr, RESET: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """From the last step to the first. Strides of q, k, v, beta are those of their gradients.

    dW k of the next step is read at the end of this one, beside what the softmaxes' gradients wait for; so a step has two
    dependent reductions: over values (all gradients of q and k), then over keys (ds, with the softmaxes' means inside it).
    """
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    i, j, l = tl.arange(0, DV), tl.arange(0, DK), tl.arange(0, DV)
    Rq, Rk, Rv, Rb = _slow_matrices(R_q, R_k, R_v, R_beta, sRq, sRk, sRv, sRb, h, i, j, l, K, V)
    tile = column(i) * K + row(j)
    inside = column(i < V) & row(j < K)
    W = tl.load(ckW + ((b * (N + 1) + N) * H + h) * V * K + tile, mask=inside, other=0.0)
    dW = tl.load(dW_T + bh * V * K + tile, mask=inside, other=0.0)
    carried = tl.load(dy_T + bh * V + i, mask=i < V, other=0.0)
    if FUSE:
        dRq = tl.zeros((DV, DK), tl.float32)
        dRk = tl.zeros((DV, DK), tl.float32)
        dRv = tl.zeros((DV, DV), tl.float32)
        dRb = tl.zeros((DV,), tl.float32)
    o_i, o_j = zeros_along(W)
    diagonal = column(i) == row(j)
    end = (T - 1).to(tl.int64)
    dy += b * sdb + h * sdh + end * sdt
    dq += b * sqb + h * sqh + end * sqt
    dk += b * skb + h * skh + end * skt
    dv += b * svb + h * svh + end * svt
    dbeta += b * sbb + h * sbh + end * sbt
    X += (bh * T + end) * P
    reset += b * T
    q_n, k_n, e_n, s_n, b_n, kq_n, dy_n = _recall(X, dy, i, j, o_i, o_j, DK, DV, V)
    dWk = tl.sum(dW * row(k_n), 1)
    for m in range(N):
        n = N - 1 - m
        # the state that this segment began with: where the segment before it ended
        W_n = tl.load(ckW + ((b * (N + 1) + n) * H + h) * V * K + tile, mask=inside, other=0.0)
        stop = tl.minimum(n * S + S, T)
        for u in tl.range(0, stop - n * S, loop_unroll_factor=UNROLL):
            t = stop - 1 - u
            if RESET:
                hit = tl.load(reset + t) != 0
            q_t, k_t, e, s, b_t, kq, dy_t = q_n, k_n, e_n, s_n, b_n, kq_n, dy_n
            if FUSE:
                s_l = tl.load(X + 2 * DK + DV + l)
            # the first step is loaded twice, rather than every load be masked
            more = (t > 0).to(tl.int32)
            X -= P * more
            dy -= sdt * more
            q_n, k_n, e_n, s_n, b_n, kq_n, dy_n = _recall(X, dy, i, j, o_i, o_j, DK, DV, V)
            prefetch(X - AHEAD * P, P, t - 1 - AHEAD >= 0, AHEAD)
            prefetch(dy - AHEAD * sdt, DV, t - 1 - AHEAD >= 0, AHEAD)

            dy_t += carried
            W -= column(e) * row(k_t)
            de = dWk + kq * dy_t
            dv_t = b_t * de
            edy, db_t = sum_both(e * dy_t, e * de * (1 - b_t), 0)
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
            store_row(dq, dq_t, i, j, K)
            store_row(dk, dk_t, i, j, K)
            tl.store(dv + i, dv_t.to(dv.dtype.element_ty), mask=i < V)
            tl.store(dbeta, db_t.to(dbeta.dtype.element_ty))
            dq -= sqt
            dk -= skt
            dv -= svt
            dbeta -= sbt
            if RESET:
                if hit:
                    dW = tl.zeros((DV, DK), tl.float32)
                    carried = tl.zeros((DV,), tl.float32)
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
        # the gradients of R_q, R_k, R_v, R_beta of one row of the batch, one below the other
        dR += bh * (2 * K + V + 1) * V
        turned = column(i) + row(j) * V
        tl.store(dR + turned, dRq, mask=inside)
        tl.store(dR + K * V + turned, dRk, mask=inside)
        tl.store(dR + 2 * K * V + column(i) * V + row(l), dRv, mask=column(i < V) & row(l < V))
        tl.store(dR + (2 * K + V) * V + i, dRb, mask=i < V)


def _heads(R: Sequence[Tensor]) -> tuple[list[Tensor], list[int]]:
    """The R matrices, slices of one parameter as they are, and the strides of their heads."""
    # (K, V), (V, V) or (V) of a head, contiguous
    matrices = [x if x.stride()[1:] == (x.shape[-1], 1)[3 - x.dim() :] else x.contiguous() for x in R]
    return matrices, [x.stride(0) for x in matrices]


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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, T, H, K = q.shape
    V = v.shape[-1]
    DK, DV, N = padded(K), padded(V), checkpoints(T) if keep else 0
    y = v.new_empty(B, T, H, V)
    finals = W.new_empty(B, H, V, K), W.new_empty(B, H, V)
    saved = W.new_empty(B, N, H, V, K), W.new_empty(B, N, H, V)
    trace = W.new_empty(trace_size(B, T, H, K, V) if keep else 0)
    R, heads = _heads((R_q, R_k, R_v, R_beta))
    states = W.contiguous(), y0.contiguous()
    q, k, v = unit_stride(q), unit_stride(k), unit_stride(v)
    arguments = (
        q, k, v, beta, *R, *states, steps.flags(reset, W), y, *finals, *saved, trace,
        *bth(q), *bth(k), *bth(v), *bth(beta), *heads, H, T, segments(T),
        K, V, DK, DV, _row(K, V), steps.SEGMENT, steps.AHEAD, keep, reset is not None, steps.unroll(max(DK, DV)),
    )  # fmt: skip
    with torch.cuda.device_of(q):
        # a branch inside the loop would cost more than a second launch, of programs that mostly end at once
        for exact in (False, True):
            launch(_run, B * H, *arguments, exact, **steps.options(FORWARD_WARPS, max(DK, DV)))
    return y, *finals, *saved, trace


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
    trace: Tensor,
    out: tuple[Tensor, ...] | None = None,
) -> tuple[Tensor, ...]:
    """out: where dq, dk, dv, dbeta go, views with any strides but the last, and, if it has five tensors, where the gradients of
    R_q, R_k, R_v, R_beta go, one below the other, (H, 2 K + V + 1, V)."""
    B, T, H, K = q.shape
    V = v.shape[-1]
    DK, DV = padded(K), padded(V)
    R, heads = _heads((R_q, R_k, R_v, R_beta))
    dq, dk, dv, dbeta = steps.gradients_like((q, k, v, beta), out and out[:4])
    dR = W.new_empty(B, H, 2 * K + V + 1, V)
    dW, dy0 = W.new_empty(B, H, V, K), W.new_empty(B, H, V)
    dy = unit_stride(dy)
    fuse = max(DK, DV) <= FUSED
    with torch.cuda.device_of(q):
        launch(_back, B * H,
            dy, dW_T.contiguous(), dy_T.contiguous(), *R, steps.flags(reset, W), ckW, trace, dq, dk, dv, dbeta, dR, dW, dy0,
            *bth(dq), *bth(dk), *bth(dv), *bth(dbeta), *bth(dy), *heads, H, T, segments(T),
            K, V, DK, DV, _row(K, V), steps.SEGMENT, steps.AHEAD, fuse, reset is not None, steps.unroll(max(DK, DV)),
            **steps.options(BACKWARD_WARPS, max(DK, DV)),
        )  # fmt: skip
    if not fuse:
        s = trace.view(B, H, T, -1)[..., 2 * DK + DV :][..., :V]
        parts = dq, dk, dv, dbeta.unsqueeze(-1)
        torch.cat([torch.einsum("bthi,bhtv->bhiv", x.float(), s) for x in parts], dim=2, out=dR)
    parts_of_R = _added(dR, R_q, out[4] if out is not None and len(out) == 5 else None)
    return dq, dk, dv, dbeta, *parts_of_R, dW, dy0


def _added(dR: Tensor, like: Tensor, out: Tensor | None) -> list[Tensor]:
    """The gradients of R_q, R_k, R_v and R_beta, summed over the batch: views of `out`, or four tensors of their own."""
    K, V = like.shape[1:]
    total = dR.sum(0) if out is None else out.copy_(dR.sum(0))
    *matrices, last = total.split([K, K, V, 1], dim=1)
    found = [*matrices, last.squeeze(1)]
    return found if out is not None else [x.to(like.dtype, copy=True, memory_format=torch.contiguous_format) for x in found]
