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

from rfwp.ops.gpu.delta_tiles import (
    chunk_of,
    head,
    load,
    load_rate,
    mapped,
    matrix,
    mm,
    only,
    prepared,
    raw_gradient,
    segments,
    store,
    store_rate,
    walk_of,
    written,
)
from rfwp.ops.gpu.launch import launch
from rfwp.ops.gpu.layout import Sizes, Strides, room, vector_strides


@triton.jit(do_not_specialize=["T", "N", "H", "nV"])
def _walk_kernel(
    dy, dW_T, q, k, beta, X, reset, ends, dX, dW, T, N, H, nV, dy_s, q_s, k_s, beta_s, dX_s,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, G: tl.constexpr, C: tl.constexpr,
    MAP: tl.constexpr, SIGMOID: tl.constexpr, DELTA: tl.constexpr, RESET: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    bh, b, h, dk, dv, i = walk_of(nV, H, BK, BV, C)
    causal = i[:, None] >= i[None, :]
    dy, q, k = head(dy, dy_s, b, h, G), head(q, q_s, b, h, G), head(k, k_s, b, h, G)
    beta, dX = head(beta, beta_s, b, h, G), head(dX, dX_s, b, h, G)
    X += bh.to(tl.int64) * N * C * C
    reset += b * T
    ends += (b * N * H + h) * V * K
    matrices = H.to(tl.int64) * V * K
    at, inside = matrix(dW_T + (b * H + h) * V * K, dk, dv, K, V)
    dS = tl.load(at, mask=inside, other=0.0)
    for m in range(N):
        n = N - 1 - m
        end_n, inside = matrix(ends + n * matrices, dk, dv, K, V)
        tl.store(end_n, dS.to(ends.dtype.element_ty), mask=inside)
        t = n * C + i
        q_n, _ = mapped(load(q, q_s, t, dk, T, K), t, dk, T, K, MAP)
        k_n, _ = mapped(load(k, k_s, t, dk, T, K), t, dk, T, K, MAP)
        dy_n = load(dy, dy_s, t, dv, T, V)
        together, start, end, through = segments(reset, t, T, C, RESET)
        A = tl.where(together & causal, mm(q_n, tl.trans(k_n), P), 0.0)
        dU = mm(tl.trans(A), dy_n, P) + only(end, mm(k_n, dS, P))
        added = mm(tl.trans(q_n), only(start, dy_n), P)
        if DELTA:
            b_n = load_rate(beta, beta_s, t, T, SIGMOID)
            X_n = prepared(X, n, C)
            dU = mm(tl.trans(X_n), dU, P)
            added -= mm(tl.trans(k_n), only(start, b_n[:, None] * dU), P)
        store(dX, dX_s, dU, t, dv, T, V)
        dS = tl.where(through, dS, 0.0) + added
    at, inside = matrix(dW + (b * H + h) * V * K, dk, dv, K, V)
    tl.store(at, dS, mask=inside)


@triton.jit(do_not_specialize=["T", "N", "H"])
def _chunks_kernel(
    dy, q, k, v, beta, X, reset, starts, ends, dX, dq, dk_, dv_, dbeta, T, N, H,
    dy_s, q_s, k_s, v_s, beta_s, dX_s, dq_s, dk_s, dv_s, dbeta_s,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, G: tl.constexpr, C: tl.constexpr,
    MAP: tl.constexpr, SIGMOID: tl.constexpr, DELTA: tl.constexpr, RESET: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    b, h, dk, i, t = chunk_of(tl.program_id(0), N, H, BK, C)
    q_n, q_scale = mapped(load(head(q, q_s, b, h, G), q_s, t, dk, T, K), t, dk, T, K, MAP)
    k_n, k_scale = mapped(load(head(k, k_s, b, h, G), k_s, t, dk, T, K), t, dk, T, K, MAP)
    together, start, end, _ = segments(reset + b * T, t, T, C, RESET)
    if DELTA:
        b_n = load_rate(head(beta, beta_s, b, h, G), beta_s, t, T, SIGMOID)
        X_n = prepared(X, tl.program_id(0).to(tl.int64), C)
        dL = tl.zeros((C, C), tl.float32)
        db_n = tl.zeros((C,), tl.float32)
    v, dy = head(v, v_s, b, h, G), head(dy, dy_s, b, h, G)
    dX, dv_ = head(dX, dX_s, b, h, G), head(dv_, dv_s, b, h, G)
    here = ((b * N + tl.program_id(0) % N) * H + h) * V * K
    dA = tl.zeros((C, C), tl.float32)
    dq_n = tl.zeros((C, BK), tl.float32)
    dk_n = tl.zeros((C, BK), tl.float32)
    for iv in range((V + BV - 1) // BV):
        dv = iv * BV + tl.arange(0, BV)
        at, inside = matrix(starts + here, dk, dv, K, V)
        S = tl.load(at, mask=inside, other=0.0)
        at, inside = matrix(ends + here, dk, dv, K, V)
        dS = tl.load(at, mask=inside, other=0.0)
        v_n = load(v, v_s, t, dv, T, V).to(tl.float32)
        dy_n = load(dy, dy_s, t, dv, T, V)
        U = v_n
        if DELTA:
            dX_n = load(dX, dX_s, t, dv, T, V).to(tl.float32)
            U, x = written(S, k_n, v_n, b_n, X_n, start, P)
            dL -= mm(dX_n, tl.trans(U), P)
            db_n += tl.sum(dX_n * x, 1)
            dv_n = b_n[:, None] * dX_n
            dk_n -= only(start, mm(dv_n, tl.trans(S), P))
            store(dv_, dv_s, dv_n, t, dv, T, V)
        dA += mm(dy_n, tl.trans(U), P)
        dq_n += only(start, mm(dy_n, tl.trans(S), P))
        dk_n += only(end, mm(U, tl.trans(dS), P))
    dA = tl.where(together & (i[:, None] >= i[None, :]), dA, 0.0)
    dq_n += mm(dA, k_n, P)
    dk_n += mm(tl.trans(dA), q_n, P)
    if DELTA:
        dL = tl.where(together & (i[:, None] > i[None, :]), dL, 0.0)
        db_n += tl.sum(dL * mm(k_n, tl.trans(k_n), P), 1)
        dL = b_n[:, None] * dL
        dk_n += mm(dL + tl.trans(dL), k_n, P)
        store_rate(head(dbeta, dbeta_s, b, h, G), dbeta_s, db_n, b_n, t, T, SIGMOID)
    store(head(dq, dq_s, b, h, G), dq_s, raw_gradient(dq_n, q_n, q_scale, MAP), t, dk, T, K)
    store(head(dk_, dk_s, b, h, G), dk_s, raw_gradient(dk_n, k_n, k_scale, MAP), t, dk, T, K)


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
    strides: Strides,
    sizes: Sizes,
    meta: dict[str, Any],
) -> None:
    """Fills dq, dk, dv, dbeta and dW; `starts` is W at the start of every chunk, `strides` are of dy, q, k, v, beta, dq, …"""
    B, T, H, _, _, V = sizes
    N, nV = -(-T // meta["C"]), -(-V // meta["BV"])
    # what the products round to bf16 anyway is kept so; the sum rule has no X, its dX is dV
    ends = torch.empty_like(starts, dtype=torch.bfloat16 if meta["P"] == "bf16" else torch.float32)
    dX = room(v) if meta["DELTA"] else dv
    dy_s, q_s, k_s, v_s, beta_s, dX_s = *strides[:5], vector_strides(dX)
    launch(_walk_kernel, B * H * nV,
        dy, dW_T, q, k, beta, X, reset, ends, dX, dW, T, N, H, nV, dy_s, q_s, k_s, beta_s, dX_s, **meta,
    )  # fmt: skip
    launch(_chunks_kernel, B * H * N,
        dy, q, k, v, beta, X, reset, starts, ends, dX, dq, dk, dv, dbeta, T, N, H,
        dy_s, q_s, k_s, v_s, beta_s, dX_s, *strides[5:], **meta,
    )  # fmt: skip
