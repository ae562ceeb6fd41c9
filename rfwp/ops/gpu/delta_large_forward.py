"""Kernels of the forward pass for heads of 65 to 128 keys; delta_large.py has their equations and launches them."""

import triton
import triton.language as tl

from rfwp.ops.gpu.delta_tiles import (
    as_stored,
    chunk_of,
    head,
    inverse,
    load,
    load_rate,
    mapped,
    matrix,
    mm,
    only,
    rate,
    segments,
    store,
    tile,
    walk_of,
)


@triton.jit(do_not_specialize=["T", "N", "H"])
def map_kernel(
    x, out, T, N, H, x_s, out_s, K: tl.constexpr, BK: tl.constexpr, G: tl.constexpr, C: tl.constexpr, MAP: tl.constexpr,
):  # fmt: skip
    """φ of every step."""
    b, h, dk, _, t = chunk_of(tl.program_id(0), N, H, BK, C)
    x_n, _ = mapped(load(head(x, x_s, b, h, G), x_s, t, dk, T, K), t, dk, T, K, MAP)
    store(head(out, out_s, b, h, G), out_s, x_n, t, dk, T, K)


@triton.jit(do_not_specialize=["T", "N", "H"])
def prepare_kernel(
    k, v, beta, reset, X, w, u, T, N, H, k_s, v_s, beta_s,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, VP: tl.constexpr, G: tl.constexpr, C: tl.constexpr,
    SIGMOID: tl.constexpr, RESET: tl.constexpr, P: tl.constexpr, PX: tl.constexpr, INVERT: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """X, w and u of a chunk: what does not depend on the state. X alone, or the rest, where both would not fit in registers."""
    here = tl.program_id(0)
    b, h, dk, i, t = chunk_of(here, N, H, BK, C)
    k = head(k, k_s, b, h, G)
    b_n = load_rate(head(beta, beta_s, b, h, G), beta_s, t, T, SIGMOID)
    together, _, _, _ = segments(reset + b * T, t, T, C, RESET)
    if INVERT:
        X_n = inverse(load(k, k_s, t, dk, T, K), b_n, together, C, P, PX)
        tl.store(tile(X, here, i, i, C, C), as_stored(X_n, X))
    else:
        X_n = tl.load(tile(X, here, i, i, C, C))
    if REST:
        # loaded again: held over the inverse, it would not fit either
        k_n = load(k, k_s, t, dk, T, K)
        KK = tl.where(together & (i[:, None] > i[None, :]), mm(k_n, tl.trans(k_n), P), 0.0)
        # M without its diagonal: ones need no rounding
        M = -mm(KK, X_n * b_n[None, :], P)
        tl.store(tile(w, here, i, dk, C, BK), as_stored(k_n.to(tl.float32) + mm(M, k_n, P), w))
        v = head(v, v_s, b, h, G)
        for iv in range(VP // BV):
            dv = iv * BV + tl.arange(0, BV)
            v_n = load(v, v_s, t, dv, T, V)
            tl.store(tile(u, here, i, dv, C, VP), as_stored(v_n.to(tl.float32) + mm(M, v_n, P), u))


@triton.jit(do_not_specialize=["T", "N", "H", "nV"])
def walk_kernel(
    k, v, beta, w, e, W, reset, W_T, starts, T, N, H, nV, k_s, v_s, beta_s,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, VP: tl.constexpr, G: tl.constexpr, C: tl.constexpr,
    SIGMOID: tl.constexpr, DELTA: tl.constexpr, RESET: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """S at the start of every chunk, and e in the place of u."""
    bh, b, h, dk, dv, i = walk_of(nV, H, BK, BV, C)
    k, v, beta = head(k, k_s, b, h, G), head(v, v_s, b, h, G), head(beta, beta_s, b, h, G)
    reset += b * T
    at, inside = matrix(W + (b * H + h) * V * K, dk, dv, K, V)
    S = tl.load(at, mask=inside, other=0.0)
    # rates are too small for the pipeline of loads: each is asked for a chunk ahead
    b_next = tl.load(beta + i * beta_s[1], mask=i < T, other=0.0)
    for n in range(N):
        here = bh.to(tl.int64) * N + n
        t = n * C + i
        _, start, end, through = segments(reset, t, T, C, RESET)
        tl.store(tile(starts, here, dk, dv, BK, VP), as_stored(S, starts))
        if DELTA:
            b_n = tl.where(t < T, rate(b_next.to(tl.float32), SIGMOID), 0.0)
            b_next = tl.load(beta + (t + C) * beta_s[1], mask=t + C < T, other=0.0)
            w_n = tl.load(tile(w, here, i, dk, C, BK))
            e_at = tile(e, here, i, dv, C, VP)
            e_n = tl.load(e_at).to(tl.float32) - only(start, mm(w_n, S, P))
            tl.store(e_at, as_stored(e_n, e))
            U = b_n[:, None] * e_n
        else:
            U = load(v, v_s, t, dv, T, V)
        S = tl.where(through, S, 0.0) + mm(tl.trans(load(k, k_s, t, dk, T, K)), only(end, U), P)
    at, inside = matrix(W_T + (b * H + h) * V * K, dk, dv, K, V)
    tl.store(at, S, mask=inside)


@triton.jit(do_not_specialize=["T", "N", "H"])
def output_kernel(
    q, phi_k, v, beta, e, reset, starts, A, y, T, N, H, q_s, phi_k_s, v_s, beta_s, y_s,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, VP: tl.constexpr, G: tl.constexpr, C: tl.constexpr,
    MAP: tl.constexpr, SIGMOID: tl.constexpr, DELTA: tl.constexpr, RESET: tl.constexpr, KEEP: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    here = tl.program_id(0)
    b, h, dk, i, t = chunk_of(here, N, H, BK, C)
    q_n, _ = mapped(load(head(q, q_s, b, h, G), q_s, t, dk, T, K), t, dk, T, K, MAP)
    k_n = load(head(phi_k, phi_k_s, b, h, G), phi_k_s, t, dk, T, K)
    together, start, _, _ = segments(reset + b * T, t, T, C, RESET)
    v, y = head(v, v_s, b, h, G), head(y, y_s, b, h, G)
    if DELTA:
        b_n = load_rate(head(beta, beta_s, b, h, G), beta_s, t, T, SIGMOID)
    A_n = tl.where(together & (i[:, None] >= i[None, :]), mm(q_n, tl.trans(k_n), P), 0.0)
    if KEEP:
        tl.store(tile(A, here, i, i, C, C), as_stored(A_n, A))
    for iv in range(VP // BV):
        dv = iv * BV + tl.arange(0, BV)
        S = tl.load(tile(starts, here, dk, dv, BK, VP))
        U = b_n[:, None] * tl.load(tile(e, here, i, dv, C, VP)).to(tl.float32) if DELTA else load(v, v_s, t, dv, T, V)
        store(y, y_s, only(start, mm(q_n, S, P)) + mm(A_n, U, P), t, dv, T, V)
