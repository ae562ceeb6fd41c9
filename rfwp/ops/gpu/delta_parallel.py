"""The backward pass of `sum` and `delta` for large heads: only dW walks over chunks, all else is taken for all chunks at once.

With X = (I + L)^-1, x = V - K Wᵀ, U = X diag(β) x as in the forward pass, and dW at the chunk's end:

    dU = Aᵀ dY + K dWᵀ,  dX = Xᵀ dU,  dW <- dW + dYᵀ Q - (β dX)ᵀ K                         walks, a block of values a program
    dA = causal dY Uᵀ,  dL = - strictly lower dX Uᵀ,  dV = β dX                            the rest sums over all values
    dQ = dY W + dA K,  dK = dAᵀ Q + U dW + (β dL + (β dL)ᵀ) K - β dX W,  dβ = Σ dX x + Σ dL K Kᵀ
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfwp.ops.gpu.delta_tiles import load, matrix, mm, prepared, segments, store, written


@triton.jit(do_not_specialize=["T", "N", "H", "nV"])
def _walk_kernel(
    dy, dW_T, q, k, beta, X, reset, ends, dX, dW, T, N, H, nV,
    dy_b, dy_t, dy_h, dy_d, q_b, q_t, q_h, q_d, k_b, k_t, k_h, k_d, beta_b, beta_t, beta_h,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    DELTA: tl.constexpr, RESET: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    bh, iv = tl.program_id(0) // nV, tl.program_id(0) % nV
    b, h = (bh // H).to(tl.int64), bh % H
    dk, dv, i = tl.arange(0, BK), iv * BV + tl.arange(0, BV), tl.arange(0, C)
    dy += b * dy_b + h * dy_h
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    beta += b * beta_b + h * beta_h
    X += bh.to(tl.int64) * N * C * C
    reset += b * T
    dX += (b * T * H + h) * V
    ends += (b * N * H + h) * V * K
    matrices = H.to(tl.int64) * V * K
    at, inside = matrix(dW_T + (b * H + h) * V * K, dk, dv, K, V)
    dS = tl.load(at, mask=inside, other=0.0)
    for m in range(N):
        n = N - 1 - m
        end_n, inside = matrix(ends + n * matrices, dk, dv, K, V)
        tl.store(end_n, dS.to(ends.dtype.element_ty), mask=inside)
        t = n * C + i
        q_n = load(q, t, dk, q_t, q_d, T, K)
        k_n = load(k, t, dk, k_t, k_d, T, K)
        dy_n = load(dy, t, dv, dy_t, dy_d, T, V)
        causal, start, end, through = segments(reset, t, T, C, RESET)
        A = tl.where(causal, mm(q_n, tl.trans(k_n), P), 0.0)
        dU = mm(tl.trans(A), dy_n, P) + end[:, None] * mm(k_n, dS, P)
        added = mm(tl.trans(q_n), start[:, None] * dy_n, P)
        if DELTA:
            b_n = tl.load(beta + t * beta_t, mask=t < T, other=0.0).to(tl.float32)
            X_n = prepared(X, n, C)
            dU = mm(tl.trans(X_n), dU, P)
            added -= mm(tl.trans(k_n), (start * b_n)[:, None] * dU, P)
        store(dX, dU, t, dv, H * V, T, V)
        dS = through * dS + added
    at, inside = matrix(dW + (b * H + h) * V * K, dk, dv, K, V)
    tl.store(at, dS, mask=inside)


@triton.jit(do_not_specialize=["T", "N", "H"])
def _chunks_kernel(
    dy, q, k, v, beta, X, reset, starts, ends, dX, dq, dk_, dv_, dbeta, T, N, H,
    dy_b, dy_t, dy_h, dy_d, q_b, q_t, q_h, q_d, k_b, k_t, k_h, k_d, v_b, v_t, v_h, v_d, beta_b, beta_t, beta_h,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    DELTA: tl.constexpr, RESET: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    bh, n = tl.program_id(0) // N, tl.program_id(0) % N
    b, h = (bh // H).to(tl.int64), bh % H
    dk, i = tl.arange(0, BK), tl.arange(0, C)
    t = n * C + i
    q_n = load(q + b * q_b + h * q_h, t, dk, q_t, q_d, T, K)
    k_n = load(k + b * k_b + h * k_h, t, dk, k_t, k_d, T, K)
    causal, start, end, _ = segments(reset + b * T, t, T, C, RESET)
    if DELTA:
        b_n = tl.load(beta + b * beta_b + h * beta_h + t * beta_t, mask=t < T, other=0.0).to(tl.float32)
        X_n = prepared(X, tl.program_id(0).to(tl.int64), C)
        dL = tl.zeros((C, C), tl.float32)
        db_n = tl.zeros((C,), tl.float32)
    v += b * v_b + h * v_h
    dy += b * dy_b + h * dy_h
    first = (b * T * H + h) * V
    here = ((b * N + n) * H + h) * V * K
    dA = tl.zeros((C, C), tl.float32)
    dq_n = tl.zeros((C, BK), tl.float32)
    dk_n = tl.zeros((C, BK), tl.float32)
    for iv in range((V + BV - 1) // BV):
        dv = iv * BV + tl.arange(0, BV)
        at, inside = matrix(starts + here, dk, dv, K, V)
        S = tl.load(at, mask=inside, other=0.0)
        at, inside = matrix(ends + here, dk, dv, K, V)
        dS = tl.load(at, mask=inside, other=0.0)
        v_n = load(v, t, dv, v_t, v_d, T, V).to(tl.float32)
        dy_n = load(dy, t, dv, dy_t, dy_d, T, V)
        U = v_n
        if DELTA:
            dX_n = load(dX + first, t, dv, H * V, 1, T, V).to(tl.float32)
            U, x = written(S, k_n, v_n, b_n, X_n, start, P)
            dL -= mm(dX_n, tl.trans(U), P)
            db_n += tl.sum(dX_n * x, 1)
            dv_n = b_n[:, None] * dX_n
            dk_n -= start[:, None] * mm(dv_n, tl.trans(S), P)
            store(dv_ + first, dv_n, t, dv, H * V, T, V)
        dA += mm(dy_n, tl.trans(U), P)
        dq_n += mm(dy_n, tl.trans(S), P)
        dk_n += end[:, None] * mm(U, tl.trans(dS), P)
    dA = tl.where(causal, dA, 0.0)
    dq_n = start[:, None] * dq_n + mm(dA, k_n, P)
    dk_n += mm(tl.trans(dA), q_n, P)
    if DELTA:
        dL = tl.where(causal & (i[:, None] > i[None, :]), dL, 0.0)
        db_n += tl.sum(dL * mm(k_n, tl.trans(k_n), P), 1)
        dL = b_n[:, None] * dL
        dk_n += mm(dL + tl.trans(dL), k_n, P)
        tl.store(dbeta + b * T * H + h + t * H, db_n.to(dbeta.dtype.element_ty), mask=t < T)
    store(dq + (b * T * H + h) * K, dq_n, t, dk, H * K, T, K)
    store(dk_ + (b * T * H + h) * K, dk_n, t, dk, H * K, T, K)


def backward_kernels(
    dy: Tensor,
    dW_T: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    X: Tensor,
    reset: Tensor,
    starts: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dbeta: Tensor,
    dW: Tensor,
    meta: dict[str, Any],
) -> None:
    """Fills dq, dk, dv, dbeta and dW; `starts` is W at the start of every chunk."""
    B, T, H, _ = q.shape
    meta = dict(meta)
    assert meta.pop("READY") or not meta["DELTA"]
    meta.pop("PX")
    N, nV = -(-T // meta["C"]), -(-meta["V"] // meta["BV"])
    low = meta["P"] == "bf16"
    # what the products round to bf16 anyway is kept so; the sum rule has no X, its dX is dV
    ends = torch.empty_like(starts, dtype=torch.bfloat16 if low else torch.float32)
    dX = torch.empty_like(dv) if meta["DELTA"] else dv
    _walk_kernel[(B * H * nV,)](
        dy, dW_T, q, k, beta, X, reset, ends, dX, dW, T, N, H, nV,
        *dy.stride(), *q.stride(), *k.stride(), *beta.stride(), **meta,
    )  # fmt: skip
    _chunks_kernel[(B * H * N,)](
        dy, q, k, v, beta, X, reset, starts, ends, dX, dq, dk, dv, dbeta, T, N, H,
        *dy.stride(), *q.stride(), *k.stride(), *v.stride(), *beta.stride(), **meta,
    )  # fmt: skip
