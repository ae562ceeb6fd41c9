"""`sum` on the CPU: eight (batch, head) pairs at once, W in the innermost cache.

Nothing is kept for the backward pass: dq follows W forwards in time from its start, dk and dv follow dW backwards.
"""

import numpy as np
import torch
from torch import Tensor

from rfwp.ops.cpu.lanes import LANES
from rfwp.ops.cpu.launch import groups_of, launch, mask, wide
from rfwp.ops.cpu.tiles import (
    column,
    fetch,
    fetch_back,
    fetch_tile,
    fill,
    forget_tile,
    padded,
    pairs_of,
    put,
    put_tile,
    read_back,
    write_only,
    write_value,
)


def checkpoints(T: int) -> int:
    return 0


def forward(q: Tensor, k: Tensor, v: Tensor, W: Tensor, reset: Tensor | None, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v_ = wide(W, q, k, v)
    y, W_T = torch.empty(v.shape, dtype=W.dtype), torch.empty(W.shape, dtype=W.dtype)
    launch(forward_kernel, groups_of(q), q, k, v_, W, mask(reset, q), y, W_T)
    return y.to(v.dtype), W_T, W.new_empty(W.shape[0], 0, *W.shape[1:])


def backward(
    dy: Tensor, dW_T: Tensor, q: Tensor, k: Tensor, v: Tensor, W: Tensor, reset: Tensor | None, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtypes = [x.dtype for x in (q, k, v)]
    dy, q, k, v = wide(W, dy, q, k, v)
    dq, dk, dv, dW = (torch.empty(x.shape, dtype=W.dtype) for x in (q, k, v, W))
    launch(backward_kernel, groups_of(q), dy, dW_T, q, k, v, W, mask(reset, q), dq, dk, dv, dW)
    dq, dk, dv = (g.to(dtype) for g, dtype in zip((dq, dk, dv), dtypes, strict=True))
    return dq, dk, dv, dW


def forward_kernel(first, last, q, k, v, W_0, reset, y, W_T):
    """W_t = W_{t-1} + v_t ⊗ k_t,  y_t = W_t q_t"""
    B, T, H, K = q.shape
    rows, keys = padded(v.shape[3]), padded(K)
    W = np.zeros((rows, keys, LANES), W_0.dtype)
    q_t, k_t = column(keys, W_0), column(keys, W_0)
    v_t, y_t = column(rows, W_0), column(rows, W_0)
    for group in range(first, last):
        pairs = pairs_of(group, B, H)
        fetch_tile(W_0, pairs, W)
        for t in range(T):
            forget_tile(W, reset, pairs, t)
            fetch(q, pairs, t, q_t)
            fetch(k, pairs, t, k_t)
            fetch(v, pairs, t, v_t)
            fill(y_t)
            write_value(W, W, v_t, k_t, q_t, y_t)
            put(y_t, pairs, t, y)
        put_tile(W, pairs, W_T)


def backward_kernel(first, last, dy, dW_T, q, k, v, W_0, reset, dq, dk, dv, dW_0):
    """dq_t = W_tᵀ dy_t;  dW ← dW + dy_t ⊗ q_t,  dv_t = dW k_t,  dk_t = dWᵀ v_t"""
    B, T, H, K = q.shape
    rows, keys = padded(v.shape[3]), padded(K)
    W = np.zeros((rows, keys, LANES), W_0.dtype)
    q_t, k_t, g_t = column(keys, W_0), column(keys, W_0), column(keys, W_0)
    v_t, dy_t, dv_t = column(rows, W_0), column(rows, W_0), column(rows, W_0)
    for group in range(first, last):
        pairs = pairs_of(group, B, H)
        fetch_tile(W_0, pairs, W)
        for t in range(T):
            forget_tile(W, reset, pairs, t)
            fetch(k, pairs, t, k_t)
            fetch(v, pairs, t, v_t)
            fetch(dy, pairs, t, dy_t)
            write_only(W, W, v_t, k_t)
            fill(g_t)
            read_back(W, dy_t, g_t)
            put(g_t, pairs, t, dq)
        fetch_tile(dW_T, pairs, W)
        for t in range(T - 1, -1, -1):
            fetch_back(q, pairs, t, q_t)
            fetch_back(k, pairs, t, k_t)
            fetch_back(v, pairs, t, v_t)
            fetch_back(dy, pairs, t, dy_t)
            fill(dv_t)
            write_value(W, W, dy_t, q_t, k_t, dv_t)
            fill(g_t)
            read_back(W, v_t, g_t)
            put(g_t, pairs, t, dk)
            put(dv_t, pairs, t, dv)
            forget_tile(W, reset, pairs, t)
        put_tile(W, pairs, dW_0)
