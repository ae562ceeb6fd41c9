"""The passes over fast weight matrices that all kernels are made of, for eight (batch, head) pairs at once.

A tile is a matrix (V, K, LANES), a column a vector (n, LANES); see lanes.py. Both are padded with zero rows to a multiple of
ROWS, so that every pass takes ROWS rows at a time, which keeps that many sums in registers and reads its vector only once.
Padding stays zero: a zero value, key and query neither write nor read anything.
"""

import numpy as np
from numba import njit

from rfwp.ops.cpu.lanes import LANES, exp, gather, load, load2, maximum, one, prefetch, scatter, store, store2, zeros

inner = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""For functions that only kernels call: no way in from Python, which would be compiled too."""

ROWS = 4

AHEAD = 2
"""Steps that inputs are asked for in advance. Reading a slice of a projection takes 15 ns a pair and step with it, 37 without."""

SEGMENT = 16
"""Steps between two kept copies of the state. The backward pass computes a segment again and holds all its matrices."""


def segments(T: int) -> int:
    return -(-T // SEGMENT)


@inner
def padded(n):
    return -(-n // ROWS) * ROWS


@inner
def column(n, like):
    return np.zeros((n, LANES), like.dtype)


@inner
def columns(m, n, like):
    return np.zeros((m, n, LANES), like.dtype)


@inner
def pairs_of(group, B, H):
    """The (b, h) of every lane: neighbouring heads, which lie together in memory. A group that is not full repeats the last
    pair: all its lanes compute and write the same numbers."""
    pairs = np.empty((LANES, 2), np.int64)
    for l in range(LANES):
        n = min(group * LANES + l, B * H - 1)
        pairs[l, 0], pairs[l, 1] = n // H, n % H
    return pairs


@inner
def fetch(x, pairs, t, column):
    """column = x[b, t, h] of every lane, x (B, T, H, n), on the way forwards in time"""
    prefetch(x[:, min(t + AHEAD, x.shape[1] - 1)], pairs)
    gather(x[:, t], pairs, column)


@inner
def fetch_back(x, pairs, t, column):
    """The same on the way backwards."""
    prefetch(x[:, max(t - AHEAD, 0)], pairs)
    gather(x[:, t], pairs, column)


@inner
def put(column, pairs, t, x):
    """x[b, t, h] = column"""
    scatter(column, pairs, x[:, t])


@inner
def fetch_tile(x, pairs, W):
    """W = x[b, h] of every lane, x (B, H, V, K)"""
    for v in range(x.shape[2]):
        gather(x[:, :, v], pairs, W[v])


@inner
def put_tile(W, pairs, x):
    """x[b, h] = W"""
    for v in range(x.shape[2]):
        scatter(W[v], pairs, x[:, :, v])


@inner
def forget_tile(A, reset, pairs, t):
    """Zero the lanes of a tile whose sequence starts anew at step t."""
    for l in range(LANES):
        if reset[pairs[l, 0], t]:
            for i in range(A.shape[0]):
                for j in range(A.shape[1]):
                    A[i, j, l] = 0


@inner
def forget(x, reset, pairs, t):
    """The same for a column."""
    for l in range(LANES):
        if reset[pairs[l, 0], t]:
            for i in range(x.shape[0]):
                x[i, l] = 0


@inner
def read(W, q, y):
    """y ← y + W q"""
    V, K = W.shape[0], W.shape[1]
    for v in range(0, V, ROWS):
        y0, y1, y2, y3 = load(y, v), load(y, v + 1), load(y, v + 2), load(y, v + 3)
        for k in range(K):
            q_k = load(q, k)
            y0 = y0 + load2(W, v, k) * q_k
            y1 = y1 + load2(W, v + 1, k) * q_k
            y2 = y2 + load2(W, v + 2, k) * q_k
            y3 = y3 + load2(W, v + 3, k) * q_k
        store(y, v, y0)
        store(y, v + 1, y1)
        store(y, v + 2, y2)
        store(y, v + 3, y3)


@inner
def read_back(W, u, x):
    """x ← x + Wᵀ u"""
    V, K = W.shape[0], W.shape[1]
    for k in range(0, K, ROWS):
        x0, x1, x2, x3 = load(x, k), load(x, k + 1), load(x, k + 2), load(x, k + 3)
        for v in range(V):
            u_v = load(u, v)
            x0 = x0 + load2(W, v, k) * u_v
            x1 = x1 + load2(W, v, k + 1) * u_v
            x2 = x2 + load2(W, v, k + 2) * u_v
            x3 = x3 + load2(W, v, k + 3) * u_v
        store(x, k, x0)
        store(x, k + 1, x1)
        store(x, k + 2, x2)
        store(x, k + 3, x3)


@inner
def write_value(W, new, e, k, q, y):
    """new = W + e ⊗ k,  y ← y + new q"""
    V, K = W.shape[0], W.shape[1]
    for v in range(0, V, ROWS):
        e0, e1, e2, e3 = load(e, v), load(e, v + 1), load(e, v + 2), load(e, v + 3)
        y0, y1, y2, y3 = load(y, v), load(y, v + 1), load(y, v + 2), load(y, v + 3)
        for i in range(K):
            k_i, q_i = load(k, i), load(q, i)
            w0 = load2(W, v, i) + e0 * k_i
            w1 = load2(W, v + 1, i) + e1 * k_i
            w2 = load2(W, v + 2, i) + e2 * k_i
            w3 = load2(W, v + 3, i) + e3 * k_i
            store2(new, v, i, w0)
            store2(new, v + 1, i, w1)
            store2(new, v + 2, i, w2)
            store2(new, v + 3, i, w3)
            y0 = y0 + w0 * q_i
            y1 = y1 + w1 * q_i
            y2 = y2 + w2 * q_i
            y3 = y3 + w3 * q_i
        store(y, v, y0)
        store(y, v + 1, y1)
        store(y, v + 2, y2)
        store(y, v + 3, y3)


@inner
def write_only(W, new, e, k):
    """new = W + e ⊗ k"""
    for v in range(W.shape[0]):
        e_v = load(e, v)
        for i in range(W.shape[1]):
            store2(new, v, i, load2(W, v, i) + e_v * load(k, i))


@inner
def miss(W, k, v, beta, error, e):
    """error = v - W k,  e = β error: what the delta rule writes; β is the only number of column beta"""
    b = load(beta, 0)
    fill(e)
    read(W, k, e)
    for i in range(W.shape[0]):
        difference = load(v, i) - load(e, i)
        store(error, i, difference)
        store(e, i, b * difference)


@inner
def write(W, new, k, v, beta, q, error, e, y):
    """error = v - W k,  e = β error,  new = W + e ⊗ k,  y ← y + new q"""
    miss(W, k, v, beta, error, e)
    write_value(W, new, e, k, q, y)


@inner
def write_back(W, dW, q, k, error, beta, dy, dq, dk, dv):
    """The gradients of `write`: (dq, dk, dv), dW of the new matrix ← dW of the old one, and dβ is returned.

    dW ← dW + dy ⊗ q,  de = dW k,  dk = dWᵀ e - Wᵀ dv,  dv = β de,  dβ = de · error
    dq = newᵀ dy = Wᵀ dy + (e · dy) k,  dW ← dW - dv ⊗ k
    """
    V, K = W.shape[0], W.shape[1]
    b = load(beta, 0)
    dbeta, e_dy = zeros(W), zeros(W)
    for v in range(0, V, ROWS):
        g0, g1, g2, g3 = load(dy, v), load(dy, v + 1), load(dy, v + 2), load(dy, v + 3)
        e0, e1, e2, e3 = zeros(W), zeros(W), zeros(W), zeros(W)
        for i in range(K):
            q_i, k_i = load(q, i), load(k, i)
            w0 = load2(dW, v, i) + g0 * q_i
            w1 = load2(dW, v + 1, i) + g1 * q_i
            w2 = load2(dW, v + 2, i) + g2 * q_i
            w3 = load2(dW, v + 3, i) + g3 * q_i
            store2(dW, v, i, w0)
            store2(dW, v + 1, i, w1)
            store2(dW, v + 2, i, w2)
            store2(dW, v + 3, i, w3)
            e0 = e0 + w0 * k_i
            e1 = e1 + w1 * k_i
            e2 = e2 + w2 * k_i
            e3 = e3 + w3 * k_i
        store(dv, v, b * e0)
        store(dv, v + 1, b * e1)
        store(dv, v + 2, b * e2)
        store(dv, v + 3, b * e3)
        m0, m1, m2, m3 = load(error, v), load(error, v + 1), load(error, v + 2), load(error, v + 3)
        dbeta = dbeta + (e0 * m0 + e1 * m1 + (e2 * m2 + e3 * m3))
        e_dy = e_dy + (g0 * m0 + g1 * m1 + (g2 * m2 + g3 * m3))
    _write_back_columns(W, dW, k, error, b, b * e_dy, dy, dv, dq, dk)
    return dbeta


@inner
def _write_back_columns(W, dW, k, error, b, e_dy, dy, dv, dq, dk):
    """The part of `write_back` that sums over rows."""
    V, K = W.shape[0], W.shape[1]
    for i in range(0, K, 2):
        k0, k1 = load(k, i), load(k, i + 1)
        dq0, dq1 = e_dy * k0, e_dy * k1
        dk0, dk1, down0, down1 = zeros(W), zeros(W), zeros(W), zeros(W)
        for v in range(V):
            dv_v, dy_v, e_v = load(dv, v), load(dy, v), load(error, v) * b
            w0, w1 = load2(W, v, i), load2(W, v, i + 1)
            g0, g1 = load2(dW, v, i), load2(dW, v, i + 1)
            dq0, dq1 = dq0 + w0 * dy_v, dq1 + w1 * dy_v
            dk0, dk1 = dk0 + g0 * e_v, dk1 + g1 * e_v
            down0, down1 = down0 + w0 * dv_v, down1 + w1 * dv_v
            store2(dW, v, i, g0 - dv_v * k0)
            store2(dW, v, i + 1, g1 - dv_v * k1)
        store(dq, i, dq0)
        store(dq, i + 1, dq1)
        store(dk, i, dk0 - down0)
        store(dk, i + 1, dk1 - down1)


@inner
def fill(x):
    """x ← 0"""
    for i in range(x.shape[0]):
        store(x, i, zeros(x))


@inner
def copy(x, y):
    """y ← x"""
    for i in range(x.shape[0]):
        store(y, i, load(x, i))


@inner
def add(x, y):
    """y ← y + x"""
    for i in range(x.shape[0]):
        store(y, i, load(y, i) + load(x, i))


@inner
def softmax(x, n, y):
    """y = softmax(x) over the first n numbers; x and y may be the same column."""
    top = load(x, 0)
    for i in range(1, n):
        top = maximum(top, load(x, i))
    total = zeros(x)
    for i in range(n):
        e = exp(load(x, i) - top)
        total = total + e
        store(y, i, e)
    scale = one(total) / total
    for i in range(n):
        store(y, i, load(y, i) * scale)


@inner
def softmax_back(y, dy, dx):
    """dx = y (dy - y · dy),  y = softmax(x); dx and dy may be the same column."""
    inner = zeros(y)
    for i in range(y.shape[0]):
        inner = inner + load(y, i) * load(dy, i)
    for i in range(y.shape[0]):
        store(dx, i, load(y, i) * (load(dy, i) - inner))
