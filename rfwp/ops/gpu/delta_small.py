"""`sum` and `delta` in chunks of 16 steps, where tiles fit into one warp: a walk over chunks with W (V, K) in registers.

At this size time goes into moving tiles between threads, from the layout of a product's result to that of an operand. So every
product is rows(a, b) = a bᵀ, which takes results as they are, as long as the summed index runs along their columns. A tile that
is needed in both orientations is computed twice, a product being cheaper than an exchange: rows(b, a) = rows(a, b)ᵀ. Some are
loaded twice, since Triton fetches no tile ahead whose transpose is a left operand. Transposed tiles end in _t.

    A = causal Q Kᵀ,  x = V - K Wᵀ,  U = X diag(β) x  with X = (I + L)^-1  (sum: U = V),  Y = Q Wᵀ + A U,  W <- W + Uᵀ K
    dU = Aᵀ dY + K dWᵀ,  dX = Xᵀ dU,  dV = β dX,  dA = causal dY Uᵀ,  dL = -strictly lower dX Uᵀ,  dQ = dY W + dA K
    dK = dAᵀ Q + U dW + (β dL + (β dL)ᵀ) K - dV W,  dβ = Σ dX x + Σ dL K Kᵀ,  dW <- dW + dYᵀ Q - dVᵀ K
"""

import triton
import triton.language as tl

from rfwp.ops.gpu.delta_tiles import (
    half_bit,
    head,
    inverse_by_rows,
    load,
    load_rate,
    mapped,
    only,
    only_columns,
    prepared,
    raw_gradient,
    rows,
    segments,
    store,
    zeros_of_rows,
)

C = tl.constexpr(16)
"""Steps a chunk."""


@triton.jit
def _matrix(p, dv, dk, V: tl.constexpr, K: tl.constexpr):
    """Pointers and mask of a W (V, K)."""
    return p + dv[:, None] * K + dk[None, :], (dv < V)[:, None] & (dk < K)[None, :]


@triton.jit
def _load_t(p, strides, t, d, T, D: tl.constexpr):
    """`load` with steps along the columns."""
    return tl.load(p + t[None, :] * strides[1] + d[:, None] * strides[4], mask=(t < T)[None, :] & (d < D)[:, None], other=0.0)


@triton.jit
def _inverse(X, n, k_n, b_n, together, half, READY: tl.constexpr, KEEP: tl.constexpr, P: tl.constexpr):
    """(I + L)^-1 of chunk n: from memory where it is ready, otherwise computed, and left there if asked for."""
    if READY:
        X_n = prepared(X, n, C)
    else:
        X_n = inverse_by_rows(k_n, b_n, together, half, P, "tf32x3")
        if KEEP:
            i = tl.arange(0, C)
            tl.store(X + n * C * C + i[:, None] * C + i[None, :], X_n)
    return X_n


@triton.jit(do_not_specialize=["T", "N", "H", "nV"])
def forward_kernel(
    q, k, v, beta, X, W, reset, y, W_T, starts, T, N, H, nV, q_s, k_s, v_s, beta_s, y_s,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, G: tl.constexpr, EVERY: tl.constexpr,
    MAP: tl.constexpr, SIGMOID: tl.constexpr, DELTA: tl.constexpr, READY: tl.constexpr, RESET: tl.constexpr, KEEP: tl.constexpr,
    P: tl.constexpr,
):  # fmt: skip
    bh, iv = tl.program_id(0) // nV, tl.program_id(0) % nV
    b, h = (bh // H).to(tl.int64), bh % H
    dk, dv, i = tl.arange(0, BK), iv * BV + tl.arange(0, BV), tl.arange(0, C)
    causal = i[:, None] >= i[None, :]
    half = half_bit(reset, T)
    zeros = zeros_of_rows(half, C, BK) if MAP != "identity" else 0.0
    q, k, v = head(q, q_s, b, h, G), head(k, k_s, b, h, G), head(v, v_s, b, h, G)
    beta, y = head(beta, beta_s, b, h, G), head(y, y_s, b, h, G)
    X += bh.to(tl.int64) * N * C * C
    reset += b * T
    starts += (b * ((N + EVERY - 1) // EVERY) * H + h) * V * K
    matrices = H.to(tl.int64) * V * K
    at, inside = _matrix(W + (b * H + h) * V * K, dv, dk, V, K)
    W_n = tl.load(at, mask=inside, other=0.0)
    for n in range(N):
        t = n * C + i
        q_n, _ = mapped(load(q, q_s, t, dk, T, K), t, dk, T, K, MAP, zeros)
        k_n, _ = mapped(load(k, k_s, t, dk, T, K), t, dk, T, K, MAP, zeros)
        U_t = tl.trans(load(v, v_s, t, dv, T, V).to(tl.float32))
        together, start, end, through = segments(reset, t, T, C, RESET)
        if KEEP and n % EVERY == 0:
            at, inside = _matrix(starts + (n // EVERY) * matrices, dv, dk, V, K)
            tl.store(at, W_n, mask=inside)
        if DELTA:
            b_n = load_rate(beta, beta_s, t, T, SIGMOID)
            X_n = _inverse(X, n, k_n, b_n, together, half, READY, KEEP, P)
            U_t = rows(b_n[None, :] * (U_t - only_columns(start, rows(W_n, k_n, half, P))), X_n, half, P)
        A = tl.where(together & causal, rows(q_n, k_n, half, P), 0.0)
        store(y, y_s, only(start, rows(q_n, W_n, half, P)) + rows(A, U_t, half, P), t, dv, T, V)
        W_n = tl.where(through, W_n, 0.0) + rows(only_columns(end, U_t), tl.trans(k_n), half, P)
    at, inside = _matrix(W_T + (b * H + h) * V * K, dv, dk, V, K)
    tl.store(at, W_n, mask=inside)


@triton.jit(do_not_specialize=["T", "N", "H", "nV"])
def restart_kernel(
    k, v, beta, X, reset, starts, chunks, T, N, H, nV, k_s, v_s, beta_s,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, G: tl.constexpr, EVERY: tl.constexpr,
    MAP: tl.constexpr, SIGMOID: tl.constexpr, DELTA: tl.constexpr, RESET: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """From the state at the start of every few chunks to the state at every chunk's start, all stretches at once."""
    stretches = (N + EVERY - 1) // EVERY
    iv, s, bh = tl.program_id(0) % nV, tl.program_id(0) // nV % stretches, tl.program_id(0) // nV // stretches
    b, h = (bh // H).to(tl.int64), bh % H
    dk, dv, i = tl.arange(0, BK), iv * BV + tl.arange(0, BV), tl.arange(0, C)
    half = half_bit(reset, T)
    zeros = zeros_of_rows(half, C, BK) if MAP != "identity" else 0.0
    k, v, beta = head(k, k_s, b, h, G), head(v, v_s, b, h, G), head(beta, beta_s, b, h, G)
    X += bh.to(tl.int64) * N * C * C
    reset += b * T
    chunks += (b * N * H + h) * V * K
    matrices = H.to(tl.int64) * V * K
    at, inside = _matrix(starts + ((b * stretches + s) * H + h) * V * K, dv, dk, V, K)
    W_n = tl.load(at, mask=inside, other=0.0)
    for n in range(s * EVERY, tl.minimum(s * EVERY + EVERY, N)):
        at, inside = _matrix(chunks + n * matrices, dv, dk, V, K)
        tl.store(at, W_n, mask=inside)
        t = n * C + i
        k_n, _ = mapped(load(k, k_s, t, dk, T, K), t, dk, T, K, MAP, zeros)
        U_t = tl.trans(load(v, v_s, t, dv, T, V).to(tl.float32))
        _, start, end, through = segments(reset, t, T, C, RESET)
        if DELTA:
            b_n = load_rate(beta, beta_s, t, T, SIGMOID)
            X_n = prepared(X, n, C)
            U_t = rows(b_n[None, :] * (U_t - only_columns(start, rows(W_n, k_n, half, P))), X_n, half, P)
        W_n = tl.where(through, W_n, 0.0) + rows(only_columns(end, U_t), tl.trans(k_n), half, P)


@triton.jit(do_not_specialize=["T", "N", "H"])
def backward_kernel(
    dy, dW_T, q, k, v, beta, X, reset, starts, dq, dk_, dv_, dbeta, dW, T, N, H,
    dy_s, q_s, k_s, v_s, beta_s, dq_s, dk_s, dv_s, dbeta_s,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, G: tl.constexpr,
    MAP: tl.constexpr, SIGMOID: tl.constexpr, DELTA: tl.constexpr, RESET: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(0)
    b, h = (bh // H).to(tl.int64), bh % H
    dk, dv, i = tl.arange(0, BK), tl.arange(0, BV), tl.arange(0, C)
    row, column = i[:, None], i[None, :]
    half = half_bit(reset, T)
    zeros = zeros_of_rows(half, C, BK) if MAP != "identity" else 0.0
    dy, q, k, v = head(dy, dy_s, b, h, G), head(q, q_s, b, h, G), head(k, k_s, b, h, G), head(v, v_s, b, h, G)
    dq, dk_, dv_ = head(dq, dq_s, b, h, G), head(dk_, dk_s, b, h, G), head(dv_, dv_s, b, h, G)
    beta, dbeta = head(beta, beta_s, b, h, G), head(dbeta, dbeta_s, b, h, G)
    X += bh.to(tl.int64) * N * C * C
    reset += b * T
    starts += (b * N * H + h) * V * K
    matrices = H.to(tl.int64) * V * K
    at, inside = _matrix(dW_T + (b * H + h) * V * K, dv, dk, V, K)
    dW_n = tl.load(at, mask=inside, other=0.0)
    for m in range(N):
        n = N - 1 - m
        t = n * C + i
        at, inside = _matrix(starts + n * matrices, dv, dk, V, K)
        W_n = tl.load(at, mask=inside, other=0.0)
        q_n, q_scale = mapped(load(q, q_s, t, dk, T, K), t, dk, T, K, MAP, zeros)
        k_n, k_scale = mapped(load(k, k_s, t, dk, T, K), t, dk, T, K, MAP, zeros)
        U = load(v, v_s, t, dv, T, V).to(tl.float32)
        dy_n = load(dy, dy_s, t, dv, T, V)
        q_t, k_t, W_t = tl.trans(q_n), tl.trans(k_n), tl.trans(W_n)
        dy_t = _load_t(dy, dy_s, t, dv, T, V)
        together, start, end, through = segments(reset, t, T, C, RESET)

        A_t = tl.where(together & (row <= column), rows(k_n, q_n, half, P), 0.0)
        if DELTA:
            dU_t = rows(dy_t, A_t, half, P) + only_columns(end, rows(dW_n, k_n, half, P))
            b_n = load_rate(beta, beta_s, t, T, SIGMOID)
            X_n = prepared(X, n, C)
            X_t = tl.load(X + n * C * C + i[:, None] + i[None, :] * C)
            x_t = _load_t(v, v_s, t, dv, T, V).to(tl.float32) - only_columns(start, rows(W_n, k_n, half, P))
            U = rows(X_n, b_n[None, :] * x_t, half, P)
            dX, dX_t = rows(X_t, dU_t, half, P), rows(dU_t, tl.trans(X_n), half, P)
            dv_n, dv_t = b_n[:, None] * dX, b_n[None, :] * dX_t
        else:
            dv_n = rows(A_t, dy_t, half, P) + only(end, rows(k_n, dW_n, half, P))
        store(dv_, dv_s, dv_n, t, dv, T, V)

        dA = tl.where(together & (row >= column), rows(dy_n, U, half, P), 0.0)
        dA_t = tl.where(together & (row <= column), rows(U, dy_n, half, P), 0.0)
        dq_n = only(start, rows(dy_n, W_t, half, P)) + rows(dA, k_t, half, P)
        dk_n = rows(dA_t, q_t, half, P) + only(end, rows(U, tl.trans(dW_n), half, P))
        if DELTA:
            dXU, UdX = rows(dX, U, half, P), rows(U, dX, half, P)
            dL = tl.where(together & (row > column), -dXU, 0.0)
            dL_t = tl.where(together & (row < column), -UdX, 0.0)
            dk_n += rows(b_n[:, None] * dL + b_n[None, :] * dL_t, k_t, half, P) - only(start, rows(dv_n, W_t, half, P))
            if SIGMOID:
                # dβ = Σ dX r with r_i = v_i - W_{i-1} k_i, and U = β r is at hand: no division, as the sigmoid has the factor β
                db_n = (1 - b_n) * tl.sum(tl.where(row == column, dXU, 0.0), 0)
            else:
                db_n = tl.sum(dX_t * x_t, 0) + tl.sum(dL_t * rows(k_n, k_n, half, P), 0)
            tl.store(dbeta + t * dbeta_s[1], db_n.to(dbeta.dtype.element_ty), mask=t < T)
        store(dq, dq_s, raw_gradient(dq_n, q_n, q_scale, MAP), t, dk, T, K)
        store(dk_, dk_s, raw_gradient(dk_n, k_n, k_scale, MAP), t, dk, T, K)

        dW_n = tl.where(through, dW_n, 0.0) + rows(only_columns(start, dy_t), q_t, half, P)
        if DELTA:
            dW_n -= rows(only_columns(start, dv_t), k_t, half, P)
    at, inside = _matrix(dW + (b * H + h) * V * K, dv, dk, V, K)
    tl.store(at, dW_n, mask=inside)
