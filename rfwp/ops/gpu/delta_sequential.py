"""`delta` one step at a time: one launch a direction, a program per batch row, head and block of values, W in registers.

Forward, in one pass over the old W:  e = β (v - W k),  y = W q + e (k·q),  W <- W + e ⊗ k.
Backward, segment by segment from the last checkpoint to the first: run the segment again and write down r = v - W k, then
go back through it. W is recovered by subtracting e ⊗ k, which drifts no further than one segment.
Inside the kernels W is kept transposed, (K, V), so that most of a sum over keys stays inside a thread.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfwp.ops.gpu.delta_chunk import SEGMENT, added
from rfwp.ops.gpu.delta_tiles import matrix
from rfwp.ops.gpu.steps import flags


@triton.jit
def _step(p, t, d, stride_t, stride_d, T, D: tl.constexpr):
    """Features d of step t in float32; zeros beyond T and D."""
    return tl.load(p + t * stride_t + d * stride_d, mask=(d < D) & (t < T), other=0.0).to(tl.float32)


@triton.jit(do_not_specialize=["T", "H", "nV"])
def _forward_kernel(
    q, k, v, beta, W, reset, y, W_T, starts, T, H, nV,
    q_b, q_t, q_h, q_d, k_b, k_t, k_h, k_d, v_b, v_t, v_h, v_d, beta_b, beta_t, beta_h,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, SEGMENT: tl.constexpr, RESET: tl.constexpr,
    KEEP: tl.constexpr,
):  # fmt: skip
    bh, iv = tl.program_id(0) // nV, tl.program_id(0) % nV
    b, h = (bh // H).to(tl.int64), bh % H
    dk, dv = tl.arange(0, BK), iv * BV + tl.arange(0, BV)
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    beta += b * beta_b + h * beta_h
    reset += b * T
    y += (b * T * H + h) * V + dv
    starts += (b * ((T + SEGMENT - 1) // SEGMENT) * H + h) * V * K
    matrices = H.to(tl.int64) * V * K
    at, inside = matrix(W + (b * H + h) * V * K, dk, dv, K, V)
    S = tl.load(at, mask=inside, other=0.0)
    # the next step's loads are under way while this one is computed
    q_next, k_next = _step(q, 0, dk, q_t, q_d, T, K), _step(k, 0, dk, k_t, k_d, T, K)
    v_next, b_next = _step(v, 0, dv, v_t, v_d, T, V), tl.load(beta).to(tl.float32)
    for t in range(T):
        q_n, k_n, v_n, b_n = q_next, k_next, v_next, b_next
        q_next, k_next = _step(q, t + 1, dk, q_t, q_d, T, K), _step(k, t + 1, dk, k_t, k_d, T, K)
        v_next = _step(v, t + 1, dv, v_t, v_d, T, V)
        b_next = tl.load(beta + (t + 1) * beta_t, mask=t + 1 < T, other=0.0).to(tl.float32)
        if KEEP and t % SEGMENT == 0:
            at, inside = matrix(starts + (t // SEGMENT) * matrices, dk, dv, K, V)
            tl.store(at, S, mask=inside)
        if RESET:
            S = tl.where(tl.load(reset + t) != 0, 0.0, S)
        e = b_n * (v_n - tl.sum(S * k_n[:, None], 0))
        y_n = tl.sum(S * q_n[:, None], 0) + e * tl.sum(k_n * q_n, 0)
        tl.store(y + t * H * V, y_n.to(y.dtype.element_ty), mask=dv < V)
        S += k_n[:, None] * e[None, :]
    at, inside = matrix(W_T + (b * H + h) * V * K, dk, dv, K, V)
    tl.store(at, S, mask=inside)


@triton.jit(do_not_specialize=["T", "H", "nV"])
def _backward_kernel(
    dy, dW_T, q, k, v, beta, reset, starts, r, dq, dk_, dv_, dbeta, dW, T, H, nV, steps,
    dy_b, dy_t, dy_h, dy_d, q_b, q_t, q_h, q_d, k_b, k_t, k_h, k_d, v_b, v_t, v_h, v_d, beta_b, beta_t, beta_h,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, SEGMENT: tl.constexpr, RESET: tl.constexpr,
):  # fmt: skip
    bh, iv = tl.program_id(0) // nV, tl.program_id(0) % nV
    b, h = (bh // H).to(tl.int64), bh % H
    dk, dv = tl.arange(0, BK), iv * BV + tl.arange(0, BV)
    dy += b * dy_b + h * dy_h
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    beta += b * beta_b + h * beta_h
    reset += b * T
    # dq, dk, dβ: one part for every block of values; `steps` is B T H
    part = iv.to(tl.int64) * steps + b * T * H + h
    dq += part * K + dk
    dk_ += part * K + dk
    dbeta += part
    r += (b * T * H + h) * V + dv
    dv_ += (b * T * H + h) * V + dv
    segments = (T + SEGMENT - 1) // SEGMENT
    starts += (b * segments * H + h) * V * K
    matrices = H.to(tl.int64) * V * K
    at, inside = matrix(dW_T + (b * H + h) * V * K, dk, dv, K, V)
    dS = tl.load(at, mask=inside, other=0.0)
    for m in range(segments):
        first = (segments - 1 - m) * SEGMENT
        after = tl.minimum(first + SEGMENT, T)
        at, inside = matrix(starts + (segments - 1 - m) * matrices, dk, dv, K, V)
        S = tl.load(at, mask=inside, other=0.0)
        for t in range(first, after):
            k_n, v_n = _step(k, t, dk, k_t, k_d, T, K), _step(v, t, dv, v_t, v_d, T, V)
            if RESET:
                S = tl.where(tl.load(reset + t) != 0, 0.0, S)
            r_n = v_n - tl.sum(S * k_n[:, None], 0)
            tl.store(r + t * H * V, r_n, mask=dv < V)
            S += k_n[:, None] * (tl.load(beta + t * beta_t).to(tl.float32) * r_n)[None, :]
        # r was written by one thread and may be read by another
        tl.debug_barrier()
        for back in range(after - first):
            t = after - 1 - back
            q_n, k_n = _step(q, t, dk, q_t, q_d, T, K), _step(k, t, dk, k_t, k_d, T, K)
            dy_n, b_n = _step(dy, t, dv, dy_t, dy_d, T, V), tl.load(beta + t * beta_t).to(tl.float32)
            r_n = tl.load(r + t * H * V, mask=dv < V, other=0.0)
            dS += q_n[:, None] * dy_n[None, :]
            dq_n = tl.sum(S * dy_n[None, :], 1)
            e, de = b_n * r_n, tl.sum(dS * k_n[:, None], 0)
            S -= k_n[:, None] * e[None, :]
            if RESET:
                forgotten = tl.load(reset + t) != 0
                S = tl.where(forgotten, 0.0, S)
            dk_n = tl.sum(dS * e[None, :] - S * (b_n * de)[None, :], 1)
            dS -= k_n[:, None] * (b_n * de)[None, :]
            tl.store(dq + t * H * K, dq_n.to(dq.dtype.element_ty), mask=dk < K)
            tl.store(dk_ + t * H * K, dk_n.to(dk_.dtype.element_ty), mask=dk < K)
            tl.store(dv_ + t * H * V, (b_n * de).to(dv_.dtype.element_ty), mask=dv < V)
            tl.store(dbeta + t * H, tl.sum(de * r_n, 0).to(dbeta.dtype.element_ty))
            if RESET:
                dS = tl.where(forgotten, 0.0, dS)
                # what a reset has forgotten cannot be subtracted: add the segment up again to there
                if forgotten:
                    S = tl.load(at, mask=inside, other=0.0)
                    for j in range(first, t):
                        e = tl.load(beta + j * beta_t).to(tl.float32) * tl.load(r + j * H * V, mask=dv < V, other=0.0)
                        S = tl.where(tl.load(reset + j) != 0, 0.0, S)
                        S += _step(k, j, dk, k_t, k_d, T, K)[:, None] * e[None, :]
    at, inside = matrix(dW + (b * H + h) * V * K, dk, dv, K, V)
    tl.store(at, dS, mask=inside)


def _blocks(K: int, V: int) -> tuple[int, int, int]:
    """Padded keys, values a program, warps: W takes about 16 registers a thread."""
    BK = max(8, triton.next_power_of_2(K))
    BV = min(max(8, triton.next_power_of_2(V)), max(8, 2048 // BK))
    return BK, BV, max(1, min(4, BK * BV // 512))


def forward(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, W: Tensor, reset: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the final W, and W at the start of every segment."""
    B, T, H, K, V = *q.shape, v.shape[-1]
    BK, BV, warps = _blocks(K, V)
    nV = -(-V // BV)
    W = W.contiguous()
    y, W_T = v.new_empty(B, T, H, V), torch.empty_like(W)
    starts = W.new_empty(B, -(-T // SEGMENT) if keep else 0, H, V, K)
    with torch.cuda.device_of(q):
        _forward_kernel[(B * H * nV,)](
            q, k, v, beta, W, flags(reset, q), y, W_T, starts, T, H, nV,
            *q.stride(), *k.stride(), *v.stride(), *beta.stride(),
            K=K, V=V, BK=BK, BV=BV, SEGMENT=SEGMENT, RESET=reset is not None, KEEP=keep, num_warps=warps,
        )  # fmt: skip
    return y, W_T, starts


def backward(
    dy: Tensor, dW_T: Tensor, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, reset: Tensor | None, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, beta and the first W."""
    B, T, H, K, V = *q.shape, v.shape[-1]
    BK, BV, warps = _blocks(K, V)
    nV = -(-V // BV)
    parts = q.dtype if nV == 1 else torch.float32
    dq, dk = (q.new_empty(nV, B, T, H, K, dtype=parts) for _ in range(2))
    dbeta = q.new_empty(nV, B, T, H, dtype=parts)
    dv, r = v.new_empty(B, T, H, V), starts.new_empty(B, T, H, V)
    dW = torch.empty_like(dW_T, memory_format=torch.contiguous_format)
    with torch.cuda.device_of(q):
        _backward_kernel[(B * H * nV,)](
            dy, dW_T.contiguous(), q, k, v, beta, flags(reset, q), starts, r, dq, dk, dv, dbeta, dW, T, H, nV, B * T * H,
            *dy.stride(), *q.stride(), *k.stride(), *v.stride(), *beta.stride(),
            K=K, V=V, BK=BK, BV=BV, SEGMENT=SEGMENT, RESET=reset is not None, num_warps=warps,
        )  # fmt: skip
    return added(dq, q.dtype), added(dk, q.dtype), dv, added(dbeta, q.dtype), dW
