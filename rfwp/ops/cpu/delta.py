"""`delta` on the CPU: eight (batch, head) pairs at once, W in the innermost cache."""

import numpy as np
import torch
from torch import Tensor

from rfwp.ops.cpu.lanes import LANES, store
from rfwp.ops.cpu.launch import groups_of, launch, mask, wide
from rfwp.ops.cpu.tiles import (
    SEGMENT,
    column,
    columns,
    fetch,
    fetch_back,
    fetch_tile,
    fill,
    forget_tile,
    miss,
    padded,
    pairs_of,
    put,
    put_tile,
    segments,
    write,
    write_back,
    write_only,
)

checkpoints = segments


def forward(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, W: Tensor, reset: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    B, T, H, K = q.shape
    dtype = v.dtype
    q, k, v, beta = wide(W, q, k, v, beta)
    y, W_T = torch.empty(v.shape, dtype=W.dtype), torch.empty(W.shape, dtype=W.dtype)
    starts = W.new_empty(B, checkpoints(T) if keep else 0, H, v.shape[-1], K)
    launch(forward_kernel, groups_of(q), q, k, v, beta.unsqueeze(-1), W, mask(reset, q), y, W_T, starts)
    return y.to(dtype), W_T, starts


def backward(
    dy: Tensor,
    dW_T: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    W: Tensor,
    reset: Tensor | None,
    starts: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dtype = q.dtype
    dy, q, k, v, beta = wide(W, dy, q, k, v, beta)
    dq, dk, dv, dbeta, dW = (torch.empty(x.shape, dtype=W.dtype) for x in (q, k, v, beta, W))
    inputs = dy, dW_T, q, k, v, beta.unsqueeze(-1), mask(reset, q), starts
    launch(backward_kernel, groups_of(q), *inputs, dq, dk, dv, dbeta.unsqueeze(-1), dW)
    return dq.to(dtype), dk.to(dtype), dv.to(dtype), dbeta.to(dtype), dW


def forward_kernel(first, last, q, k, v, beta, W_0, reset, y, W_T, starts):
    """W_t = W_{t-1} + β_t (v_t - W_{t-1} k_t) ⊗ k_t,  y_t = W_t q_t"""
    B, T, H, K = q.shape
    rows, keys = padded(v.shape[3]), padded(K)
    W = np.zeros((rows, keys, LANES), W_0.dtype)
    q_t, k_t = column(keys, W_0), column(keys, W_0)
    v_t, y_t, error, e = column(rows, W_0), column(rows, W_0), column(rows, W_0), column(rows, W_0)
    beta_t = column(1, W_0)
    for group in range(first, last):
        pairs = pairs_of(group, B, H)
        fetch_tile(W_0, pairs, W)
        for t in range(T):
            if t % SEGMENT == 0 and starts.shape[1] > 0:
                put_tile(W, pairs, starts[:, t // SEGMENT])
            forget_tile(W, reset, pairs, t)
            fetch(q, pairs, t, q_t)
            fetch(k, pairs, t, k_t)
            fetch(v, pairs, t, v_t)
            fetch(beta, pairs, t, beta_t)
            fill(y_t)
            write(W, W, k_t, v_t, beta_t, q_t, error, e, y_t)
            put(y_t, pairs, t, y)
        put_tile(W, pairs, W_T)


def backward_kernel(first, last, dy, dW_T, q, k, v, beta, reset, starts, dq, dk, dv, dbeta, dW_0):
    """Segment by segment from the last: W forwards from the kept copy, then `write_back` backwards."""
    B, T, H, K = q.shape
    rows, keys = padded(v.shape[3]), padded(K)
    W = np.zeros((SEGMENT + 1, rows, keys, LANES), dW_T.dtype)
    dW = np.zeros((rows, keys, LANES), dW_T.dtype)
    ks, error, betas = columns(SEGMENT, keys, dW_T), columns(SEGMENT, rows, dW_T), columns(SEGMENT, 1, dW_T)
    q_t, dq_t, dk_t = column(keys, dW_T), column(keys, dW_T), column(keys, dW_T)
    v_t, dy_t, dv_t, e = column(rows, dW_T), column(rows, dW_T), column(rows, dW_T), column(rows, dW_T)
    dbeta_t = column(1, dW_T)
    for group in range(first, last):
        pairs = pairs_of(group, B, H)
        fetch_tile(dW_T, pairs, dW)
        for n in range(starts.shape[1] - 1, -1, -1):
            start, steps = n * SEGMENT, min(SEGMENT, T - n * SEGMENT)
            fetch_tile(starts[:, n], pairs, W[0])
            for j in range(steps):
                forget_tile(W[j], reset, pairs, start + j)
                fetch(k, pairs, start + j, ks[j])
                fetch(v, pairs, start + j, v_t)
                fetch(beta, pairs, start + j, betas[j])
                miss(W[j], ks[j], v_t, betas[j], error[j], e)
                write_only(W[j], W[j + 1], e, ks[j])
            for j in range(steps - 1, -1, -1):
                t = start + j
                fetch_back(q, pairs, t, q_t)
                fetch_back(dy, pairs, t, dy_t)
                store(dbeta_t, 0, write_back(W[j], dW, q_t, ks[j], error[j], betas[j], dy_t, dq_t, dk_t, dv_t))
                put(dq_t, pairs, t, dq)
                put(dk_t, pairs, t, dk)
                put(dv_t, pairs, t, dv)
                put(dbeta_t, pairs, t, dbeta)
                forget_tile(dW, reset, pairs, t)
        put_tile(dW, pairs, dW_0)
