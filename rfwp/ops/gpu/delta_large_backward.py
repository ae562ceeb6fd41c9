"""Kernels of the backward pass for heads of 65 to 128 keys; delta_large.py has their equations and launches them."""

import triton
import triton.language as tl

from rfwp.ops.gpu.delta_tiles import (
    as_stored,
    chunk_of,
    head,
    load,
    load_rate,
    mapped,
    matrix,
    mm,
    only,
    rate,
    raw_gradient,
    segments,
    store,
    store_rate,
    tile,
    walk_of,
)


@triton.jit(do_not_specialize=["T", "N", "H", "nV"])
def back_kernel(
    dy, dW_T, q, k, beta, w, A, reset, ends, dU, dv_, dW, T, N, H, nV, dy_s, q_s, k_s, beta_s, dv_s,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, VP: tl.constexpr, G: tl.constexpr, C: tl.constexpr,
    SIGMOID: tl.constexpr, DELTA: tl.constexpr, RESET: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """dS at the end of every chunk, and dU (of the sum rule: dV)."""
    bh, b, h, dk, dv, i = walk_of(nV, H, BK, BV, C)
    dy, q, k = head(dy, dy_s, b, h, G), head(q, q_s, b, h, G), head(k, k_s, b, h, G)
    beta, dv_ = head(beta, beta_s, b, h, G), head(dv_, dv_s, b, h, G)
    reset += b * T
    at, inside = matrix(dW_T + (b * H + h) * V * K, dk, dv, K, V)
    dS = tl.load(at, mask=inside, other=0.0)
    last = (N - 1) * C + i
    b_next = tl.load(beta + last * beta_s[1], mask=last < T, other=0.0)
    for m in range(N):
        n = N - 1 - m
        here = bh.to(tl.int64) * N + n
        t = n * C + i
        _, start, end, through = segments(reset, t, T, C, RESET)
        tl.store(tile(ends, here, dk, dv, BK, VP), as_stored(dS, ends))
        dy_n = load(dy, dy_s, t, dv, T, V)
        dU_n = mm(tl.trans(tl.load(tile(A, here, i, i, C, C))), dy_n, P)
        dU_n += only(end, mm(load(k, k_s, t, dk, T, K), dS, P))
        dS = tl.where(through, dS, 0.0) + mm(tl.trans(load(q, q_s, t, dk, T, K)), only(start, dy_n), P)
        if DELTA:
            b_n = tl.where(t < T, rate(b_next.to(tl.float32), SIGMOID), 0.0)
            b_next = tl.load(beta + (t - C) * beta_s[1], mask=t >= C, other=0.0)
            w_n = tl.load(tile(w, here, i, dk, C, BK))
            tl.store(tile(dU, here, i, dv, C, VP), as_stored(dU_n, dU))
            dS += mm(tl.trans(w_n), only(start, -b_n[:, None] * dU_n), P)
        else:
            store(dv_, dv_s, dU_n, t, dv, T, V)
    at, inside = matrix(dW + (b * H + h) * V * K, dk, dv, K, V)
    tl.store(at, dS, mask=inside)


@triton.jit(do_not_specialize=["T", "N", "H"])
def chunks_kernel(
    dy, q, k, phi_q, phi_k, v, beta, X, e, reset, starts, ends, dU, dq, dk_, dv_, dbeta, T, N, H,
    dy_s, q_s, k_s, phi_q_s, phi_k_s, v_s, beta_s, dq_s, dk_s, dv_s, dbeta_s,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, VP: tl.constexpr, G: tl.constexpr, C: tl.constexpr,
    MAP: tl.constexpr, SIGMOID: tl.constexpr, DELTA: tl.constexpr, RESET: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """The gradients of a chunk that sum over all values."""
    here = tl.program_id(0)
    b, h, dk, i, t = chunk_of(here, N, H, BK, C)
    reset += b * T
    v, dy, dv_ = head(v, v_s, b, h, G), head(dy, dy_s, b, h, G), head(dv_, dv_s, b, h, G)
    # three loops over the values, one after the other: what they sum would not fit in registers together
    dA = tl.zeros((C, C), tl.float32)
    if DELTA:
        b_n = load_rate(head(beta, beta_s, b, h, G), beta_s, t, T, SIGMOID)
        X_n = tl.load(tile(X, here, i, i, C, C))
        dL = tl.zeros((C, C), tl.float32)
        db_n = tl.zeros((C,), tl.float32)
    for iv in range(VP // BV):
        dv = iv * BV + tl.arange(0, BV)
        dy_n = load(dy, dy_s, t, dv, T, V)
        if DELTA:
            e_n = tl.load(tile(e, here, i, dv, C, VP)).to(tl.float32)
            dX = mm(tl.trans(X_n), tl.load(tile(dU, here, i, dv, C, VP)), P)
            U = b_n[:, None] * e_n
            db_n += tl.sum(dX * e_n, 1)
            store(dv_, dv_s, b_n[:, None] * dX, t, dv, T, V)
            dL += mm(dX, tl.trans(U), P)
        else:
            U = load(v, v_s, t, dv, T, V)
        dA += mm(dy_n, tl.trans(U), P)
    # asked for again: masks held over the loop would not fit either
    together, start, end, _ = segments(reset, t, T, C, RESET)
    dA = tl.where(together & (i[:, None] >= i[None, :]), dA, 0.0)
    dk_n = mm(tl.trans(dA), load(head(phi_q, phi_q_s, b, h, G), phi_q_s, t, dk, T, K), P)
    k_n = load(head(phi_k, phi_k_s, b, h, G), phi_k_s, t, dk, T, K)
    if DELTA:
        dL = tl.where(together & (i[:, None] > i[None, :]), -b_n[:, None] * dL, 0.0)
        dk_n += mm(dL + tl.trans(dL), k_n, P)
        store_rate(head(dbeta, dbeta_s, b, h, G), dbeta_s, db_n, b_n, t, T, SIGMOID)
    dq_n = mm(dA, k_n, P)
    for iv in range(VP // BV):
        dv = iv * BV + tl.arange(0, BV)
        S = tl.load(tile(starts, here, dk, dv, BK, VP))
        dq_n += only(start, mm(load(dy, dy_s, t, dv, T, V), tl.trans(S), P))
    x, scale = mapped(load(head(q, q_s, b, h, G), q_s, t, dk, T, K), t, dk, T, K, MAP)
    store(head(dq, dq_s, b, h, G), dq_s, raw_gradient(dq_n, x, scale, MAP), t, dk, T, K)
    for iv in range(VP // BV):
        dv = iv * BV + tl.arange(0, BV)
        U = b_n[:, None] * tl.load(tile(e, here, i, dv, C, VP)).to(tl.float32) if DELTA else load(v, v_s, t, dv, T, V)
        dk_n += only(end, mm(U, tl.trans(tl.load(tile(ends, here, dk, dv, BK, VP))), P))
        if DELTA:
            dX = mm(tl.trans(X_n), tl.load(tile(dU, here, i, dv, C, VP)), P)
            S = tl.load(tile(starts, here, dk, dv, BK, VP))
            dk_n += only(start, mm(-b_n[:, None] * dX, tl.trans(S), P))
    x, scale = mapped(load(head(k, k_s, b, h, G), k_s, t, dk, T, K), t, dk, T, K, MAP)
    store(head(dk_, dk_s, b, h, G), dk_s, raw_gradient(dk_n, x, scale, MAP), t, dk, T, K)
