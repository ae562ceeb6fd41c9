"""`recurrent_delta` on the CPU: eight rows of the batch at once, which share the R of their head; W in the innermost cache.

The program u = [q | k | v | β] of a step is one column and [R_q; R_k; R_v; R_β] one matrix, each part filled up with zeros to a
multiple of ROWS, so that the recurrent part is one product: u_t + R tanh(y_{t-1}).
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rfwp.ops.cpu.lanes import LANES, gather, load, one, scatter, sigmoid, splat, store, tanh, zeros
from rfwp.ops.cpu.launch import launch, mask, wide
from rfwp.ops.cpu.tiles import (
    ROWS,
    SEGMENT,
    add,
    column,
    columns,
    fetch,
    fetch_back,
    fetch_tile,
    fill,
    forget,
    forget_tile,
    inner,
    padded,
    put,
    put_tile,
    segments,
    softmax,
    softmax_back,
    write,
    write_back,
)

checkpoints = segments


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
    y_0: Tensor,
    reset: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dtype, (B, T, H, _) = v.dtype, q.shape
    q, k, v, beta = wide(W, q, k, v, beta)
    R = _join(W.dtype, R_q, R_k, R_v, R_beta)
    y, W_T, y_T = (torch.empty(x.shape, dtype=W.dtype) for x in (v, W, y_0))
    N = checkpoints(T) if keep else 0
    starts_W, starts_y = W.new_empty(B, N, *W.shape[1:]), W.new_empty(B, N, *y_0.shape[1:])
    inputs = q, k, v, beta.unsqueeze(-1), R, W, y_0, mask(reset, q)
    launch(forward_kernel, H * _groups(B), *inputs, y, W_T, y_T, starts_W, starts_y)
    return y.to(dtype), W_T, y_T, starts_W, starts_y


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
    y_0: Tensor,
    reset: Tensor | None,
    y: Tensor,
    starts_W: Tensor,
    starts_y: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dtype, (B, _, H, K), V = q.dtype, q.shape, v.shape[-1]
    dy, q, k, v, beta = wide(W, dy, q, k, v, beta)
    R = _join(W.dtype, R_q, R_k, R_v, R_beta)
    dq, dk, dv, dbeta, dW, dy_0 = (torch.empty(x.shape, dtype=W.dtype) for x in (q, k, v, beta, W, y_0))
    partial = W.new_empty(H * _groups(B), *R.shape[1:])
    inputs = dy, dW_T, dy_T, q, k, v, beta.unsqueeze(-1), R, mask(reset, q), starts_W, starts_y
    launch(backward_kernel, H * _groups(B), *inputs, dq, dk, dv, dbeta.unsqueeze(-1), dW, dy_0, partial)
    dR = partial.unflatten(0, (H, _groups(B))).sum(1)[:, :, :V]
    dR_q, dR_k, dR_v, dR_beta = dR.split((_padded(K), _padded(K), _padded(V), ROWS), dim=1)
    parts = dR_q[:, :K], dR_k[:, :K], dR_v[:, :V], dR_beta[:, 0]
    # copies: at size one a slice is contiguous, and outputs of an op must not share memory
    dR_q, dR_k, dR_v, dR_beta = (g.to(dtype).clone(memory_format=torch.contiguous_format) for g in parts)
    return dq.to(dtype), dk.to(dtype), dv.to(dtype), dbeta.to(dtype), dR_q, dR_k, dR_v, dR_beta, dW, dy_0


def _join(dtype: torch.dtype, R_q: Tensor, R_k: Tensor, R_v: Tensor, R_beta: Tensor) -> Tensor:
    """(H, padded outputs, padded V)"""
    columns = _padded(R_v.shape[-1]) - R_v.shape[-1]
    parts = [F.pad(R, (0, columns, 0, _padded(R.shape[1]) - R.shape[1])) for R in (R_q, R_k, R_v, R_beta.unsqueeze(1))]
    return torch.cat(parts, dim=1).to(dtype)


def _padded(n: int) -> int:
    return padded.py_func(n)


def _groups(B: int) -> int:
    """Groups of rows a head."""
    return -(-B // LANES)


@inner
def rows_of(group, B):
    """The (b, h) of every lane: one head. A group that is not full repeats the last row."""
    pairs = np.empty((LANES, 2), np.int64)
    groups = -(-B // LANES)
    for l in range(LANES):
        pairs[l, 0] = min(group % groups * LANES + l, B - 1)
        pairs[l, 1] = group // groups
    return pairs


@inner
def feed_back(R, s, u):
    """u ← u + R s,  R shared by all lanes"""
    for p in range(0, R.shape[0], ROWS):
        u0, u1, u2, u3 = load(u, p), load(u, p + 1), load(u, p + 2), load(u, p + 3)
        for i in range(R.shape[1]):
            s_i = load(s, i)
            u0 = u0 + splat(R[p, i]) * s_i
            u1 = u1 + splat(R[p + 1, i]) * s_i
            u2 = u2 + splat(R[p + 2, i]) * s_i
            u3 = u3 + splat(R[p + 3, i]) * s_i
        store(u, p, u0)
        store(u, p + 1, u1)
        store(u, p + 2, u2)
        store(u, p + 3, u3)


@inner
def feed_back_gradient(R, s, du, dy):
    """dy = Rᵀ du (1 - s²),  s = tanh(y)"""
    for i in range(0, R.shape[1], ROWS):
        g0, g1, g2, g3 = zeros(s), zeros(s), zeros(s), zeros(s)
        for p in range(R.shape[0]):
            du_p = load(du, p)
            g0 = g0 + splat(R[p, i]) * du_p
            g1 = g1 + splat(R[p, i + 1]) * du_p
            g2 = g2 + splat(R[p, i + 2]) * du_p
            g3 = g3 + splat(R[p, i + 3]) * du_p
        store(dy, i, g0)
        store(dy, i + 1, g1)
        store(dy, i + 2, g2)
        store(dy, i + 3, g3)
    for i in range(R.shape[1]):
        s_i = load(s, i)
        store(dy, i, load(dy, i) * (one(s_i) - s_i * s_i))


@inner
def slow_gradient(du, s, steps, dR):
    """dR ← dR + Σ_j du_j ⊗ s_j, lane by lane"""
    for p in range(0, dR.shape[0], 2):
        for i in range(0, dR.shape[1], 2):
            r00, r01, r10, r11 = zeros(s), zeros(s), zeros(s), zeros(s)
            for j in range(steps):
                u0, u1 = load(du[j], p), load(du[j], p + 1)
                s0, s1 = load(s[j], i), load(s[j], i + 1)
                r00, r01, r10, r11 = r00 + u0 * s0, r01 + u0 * s1, r10 + u1 * s0, r11 + u1 * s1
            store(dR[p], i, load(dR[p], i) + r00)
            store(dR[p], i + 1, load(dR[p], i + 1) + r01)
            store(dR[p + 1], i, load(dR[p + 1], i) + r10)
            store(dR[p + 1], i + 1, load(dR[p + 1], i + 1) + r11)


@inner
def program(q, k, v, beta, R, pairs, t, y, s, u):
    """s = tanh(y_{t-1}),  u = [softmax(q + R_q s) | softmax(k + R_k s) | v + R_v s | σ(β + R_β s)]"""
    K, V = q.shape[3], v.shape[3]
    at_k, at_v, at_beta = padded(K), 2 * padded(K), 2 * padded(K) + padded(V)
    for i in range(s.shape[0]):
        store(s, i, tanh(load(y, i)))
    fetch(q, pairs, t, u[:at_k])
    fetch(k, pairs, t, u[at_k:at_v])
    fetch(v, pairs, t, u[at_v:at_beta])
    fetch(beta, pairs, t, u[at_beta:])
    feed_back(R, s, u)
    softmax(u[:at_k], K, u[:at_k])
    softmax(u[at_k:at_v], K, u[at_k:at_v])
    store(u, at_beta, sigmoid(load(u, at_beta)))


@inner
def program_back(u, du, at_k, at_v, at_beta):
    """The gradients before the activations, in place."""
    softmax_back(u[:at_k], du[:at_k], du[:at_k])
    softmax_back(u[at_k:at_v], du[at_k:at_v], du[at_k:at_v])
    b = load(u, at_beta)
    store(du, at_beta, load(du, at_beta) * b * (one(b) - b))


def forward_kernel(first, last, q, k, v, beta, R, W_0, y_0, reset, y, W_T, y_T, starts_W, starts_y):
    """The program, then the delta rule: W_t = W_{t-1} + β (v - W_{t-1} k) ⊗ k,  y_t = W_t q"""
    B, T, _, K = q.shape
    rows, at_k, at_v = padded(v.shape[3]), padded(K), 2 * padded(K)
    at_beta = at_v + rows
    W, u = np.zeros((rows, at_k, LANES), W_0.dtype), column(at_beta + ROWS, W_0)
    y_t, s, error, e = column(rows, W_0), column(rows, W_0), column(rows, W_0), column(rows, W_0)
    for group in range(first, last):
        pairs = rows_of(group, B)
        R_h = np.ascontiguousarray(R[pairs[0, 1]])
        fetch_tile(W_0, pairs, W)
        gather(y_0, pairs, y_t)
        for t in range(T):
            if t % SEGMENT == 0 and starts_W.shape[1] > 0:
                put_tile(W, pairs, starts_W[:, t // SEGMENT])
                scatter(y_t, pairs, starts_y[:, t // SEGMENT])
            forget_tile(W, reset, pairs, t)
            forget(y_t, reset, pairs, t)
            fill(u)
            program(q, k, v, beta, R_h, pairs, t, y_t, s, u)
            fill(y_t)
            write(W, W, u[at_k:at_v], u[at_v:at_beta], u[at_beta:], u[:at_k], error, e, y_t)
            put(y_t, pairs, t, y)
        put_tile(W, pairs, W_T)
        scatter(y_t, pairs, y_T)


def backward_kernel(
    first, last, dy, dW_T, dy_T, q, k, v, beta, R, reset, starts_W, starts_y, dq, dk, dv, dbeta, dW_0, dy_0, partial
):
    """Segment by segment from the last: W and y forwards from the kept copies, then the gradients backwards.

    dR is summed lane by lane over the segments, and over lanes into `partial` of the group.
    """
    B, T, _, K = q.shape
    rows, at_k, at_v = padded(v.shape[3]), padded(K), 2 * padded(K)
    at_beta = at_v + rows
    W, dW = np.zeros((SEGMENT + 1, rows, at_k, LANES), dW_T.dtype), np.zeros((rows, at_k, LANES), dW_T.dtype)
    u, du = columns(SEGMENT, at_beta + ROWS, dW_T), columns(SEGMENT, at_beta + ROWS, dW_T)
    s, error, dR = columns(SEGMENT, rows, dW_T), columns(SEGMENT, rows, dW_T), columns(at_beta + ROWS, rows, dW_T)
    y_t, e, carried, dy_t = column(rows, dW_T), column(rows, dW_T), column(rows, dW_T), column(rows, dW_T)
    for group in range(first, last):
        pairs = rows_of(group, B)
        R_h = np.ascontiguousarray(R[pairs[0, 1]])
        fetch_tile(dW_T, pairs, dW)
        gather(dy_T, pairs, carried)
        for p in range(dR.shape[0]):
            fill(dR[p])
        for segment in range(starts_W.shape[1] - 1, -1, -1):
            start, steps = segment * SEGMENT, min(SEGMENT, T - segment * SEGMENT)
            fetch_tile(starts_W[:, segment], pairs, W[0])
            gather(starts_y[:, segment], pairs, y_t)
            for j in range(steps):
                forget_tile(W[j], reset, pairs, start + j)
                forget(y_t, reset, pairs, start + j)
                u_j = u[j]
                fill(u_j)
                program(q, k, v, beta, R_h, pairs, start + j, y_t, s[j], u_j)
                fill(y_t)
                write(W[j], W[j + 1], u_j[at_k:at_v], u_j[at_v:at_beta], u_j[at_beta:], u_j[:at_k], error[j], e, y_t)
            for j in range(steps - 1, -1, -1):
                t, u_j, du_j = start + j, u[j], du[j]
                fetch_back(dy, pairs, t, dy_t)
                add(carried, dy_t)
                dq_t, dk_t, dv_t = du_j[:at_k], du_j[at_k:at_v], du_j[at_v:at_beta]
                learned = u_j[:at_k], u_j[at_k:at_v], error[j], u_j[at_beta:]
                store(du_j, at_beta, write_back(W[j], dW, *learned, dy_t, dq_t, dk_t, dv_t))
                program_back(u_j, du_j, at_k, at_v, at_beta)
                feed_back_gradient(R_h, s[j], du_j, carried)
                put(dq_t, pairs, t, dq)
                put(dk_t, pairs, t, dk)
                put(dv_t, pairs, t, dv)
                put(du_j[at_beta:], pairs, t, dbeta)
                forget_tile(dW, reset, pairs, t)
                forget(carried, reset, pairs, t)
            slow_gradient(du, s, steps, dR)
        put_tile(dW, pairs, dW_0)
        scatter(carried, pairs, dy_0)
        lanes = min(LANES, B - pairs[0, 0])
        for p in range(dR.shape[0]):
            for i in range(dR.shape[1]):
                total = dR[p, i, 0]
                for l in range(1, lanes):
                    total += dR[p, i, l]
                partial[group, p, i] = total
