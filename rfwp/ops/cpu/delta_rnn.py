"""`delta_rnn` on the CPU: eight (batch, head) pairs at once, R in the innermost cache."""

import numpy as np
import torch
from torch import Tensor

from rfwp.ops.cpu.lanes import LANES, gather, scatter, store
from rfwp.ops.cpu.launch import groups_of, launch, mask, wide
from rfwp.ops.cpu.tiles import (
    SEGMENT,
    add,
    column,
    columns,
    copy,
    fetch,
    fetch_back,
    fetch_tile,
    forget,
    forget_tile,
    padded,
    pairs_of,
    put,
    put_tile,
    segments,
    softmax,
    softmax_back,
    write,
    write_back,
)

checkpoints = segments

A, B = 0, 1
"""The versions inside kernels."""


def forward(
    z: Tensor, k: Tensor, v: Tensor, beta: Tensor, R: Tensor, y_0: Tensor, reset: Tensor | None, keep: bool, version: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dtype, (batch, T, H, V) = z.dtype, z.shape
    z, k, v, beta = wide(R, z, k, v, beta)
    y, R_T, y_T = (torch.empty(x.shape, dtype=R.dtype) for x in (z, R, y_0))
    N = checkpoints(T) if keep else 0
    starts_R, starts_y = R.new_empty(batch, N, H, V, V), R.new_empty(batch, N, H, V)
    outputs = y, R_T, y_T, starts_R, starts_y
    launch(forward_kernel, groups_of(z), z, k, v, beta.unsqueeze(-1), R, y_0, mask(reset, z), "AB".index(version), *outputs)
    return y.to(dtype), R_T, y_T, starts_R, starts_y


def backward(
    dy: Tensor,
    dR_T: Tensor,
    dy_T: Tensor,
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R: Tensor,
    y_0: Tensor,
    reset: Tensor | None,
    y: Tensor,
    starts_R: Tensor,
    starts_y: Tensor,
    version: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dtype = z.dtype
    dy, z, k, v, beta = wide(R, dy, z, k, v, beta)
    dz, dk, dv, dbeta, dR, dy_0 = (torch.empty(x.shape, dtype=R.dtype) for x in (z, k, v, beta, R, y_0))
    inputs = dy, dR_T, dy_T, z, k, v, beta.unsqueeze(-1), mask(reset, z), starts_R, starts_y, "AB".index(version)
    launch(backward_kernel, groups_of(z), *inputs, dz, dk, dv, dbeta.unsqueeze(-1), dR, dy_0)
    return dz.to(dtype), dk.to(dtype), dv.to(dtype), dbeta.to(dtype), dR, dy_0


def forward_kernel(first, last, z, k, v, beta, R_0, y_0, reset, version, y, R_T, y_T, starts_R, starts_y):
    """R_t by the delta rule;  B: y_t = z_t + R_t softmax(y_{t-1}),  A: y_t = softmax(z_t + R_t y_{t-1})"""
    batch, T, H, V = z.shape
    n = padded(V)
    R = np.zeros((n, n, LANES), R_0.dtype)
    y_t, s, k_t, v_t = column(n, R_0), column(n, R_0), column(n, R_0), column(n, R_0)
    error, e, beta_t = column(n, R_0), column(n, R_0), column(1, R_0)
    for group in range(first, last):
        pairs = pairs_of(group, batch, H)
        fetch_tile(R_0, pairs, R)
        gather(y_0, pairs, y_t)
        for t in range(T):
            if t % SEGMENT == 0 and starts_R.shape[1] > 0:
                put_tile(R, pairs, starts_R[:, t // SEGMENT])
                scatter(y_t, pairs, starts_y[:, t // SEGMENT])
            forget_tile(R, reset, pairs, t)
            forget(y_t, reset, pairs, t)
            if version == A:
                copy(y_t, s)
            else:
                softmax(y_t, V, s)
            fetch(z, pairs, t, y_t)
            fetch(k, pairs, t, k_t)
            fetch(v, pairs, t, v_t)
            fetch(beta, pairs, t, beta_t)
            write(R, R, k_t, v_t, beta_t, s, error, e, y_t)
            if version == A:
                softmax(y_t, V, y_t)
            put(y_t, pairs, t, y)
        put_tile(R, pairs, R_T)
        scatter(y_t, pairs, y_T)


def backward_kernel(
    first, last, dy, dR_T, dy_T, z, k, v, beta, reset, starts_R, starts_y, version, dz, dk, dv, dbeta, dR_0, dy_0
):
    """Segment by segment from the last: R and y forwards from the kept copies, then the gradients backwards.

    dpre = dy (A: through the softmax);  dz = dpre;  ds and the rest by `write_back`;  dy_{t-1} = ds (B: through the softmax)
    """
    batch, T, H, V = z.shape
    n = padded(V)
    R, dR = np.zeros((SEGMENT + 1, n, n, LANES), dR_T.dtype), np.zeros((n, n, LANES), dR_T.dtype)
    ys, s, error = columns(SEGMENT, n, dR_T), columns(SEGMENT, n, dR_T), columns(SEGMENT, n, dR_T)
    ks, betas = columns(SEGMENT, n, dR_T), columns(SEGMENT, 1, dR_T)
    y_t, v_t, e, carried, dy_t = column(n, dR_T), column(n, dR_T), column(n, dR_T), column(n, dR_T), column(n, dR_T)
    dk_t, dv_t, dbeta_t = column(n, dR_T), column(n, dR_T), column(1, dR_T)
    for group in range(first, last):
        pairs = pairs_of(group, batch, H)
        fetch_tile(dR_T, pairs, dR)
        gather(dy_T, pairs, carried)
        for segment in range(starts_R.shape[1] - 1, -1, -1):
            start, steps = segment * SEGMENT, min(SEGMENT, T - segment * SEGMENT)
            fetch_tile(starts_R[:, segment], pairs, R[0])
            gather(starts_y[:, segment], pairs, y_t)
            for j in range(steps):
                forget_tile(R[j], reset, pairs, start + j)
                forget(y_t, reset, pairs, start + j)
                if version == A:
                    copy(y_t, s[j])
                else:
                    softmax(y_t, V, s[j])
                fetch(z, pairs, start + j, y_t)
                fetch(k, pairs, start + j, ks[j])
                fetch(v, pairs, start + j, v_t)
                fetch(beta, pairs, start + j, betas[j])
                write(R[j], R[j + 1], ks[j], v_t, betas[j], s[j], error[j], e, y_t)
                if version == A:
                    softmax(y_t, V, y_t)
                    copy(y_t, ys[j])
            for j in range(steps - 1, -1, -1):
                t = start + j
                fetch_back(dy, pairs, t, dy_t)
                add(carried, dy_t)
                if version == A:
                    softmax_back(ys[j], dy_t, dy_t)
                put(dy_t, pairs, t, dz)
                store(dbeta_t, 0, write_back(R[j], dR, s[j], ks[j], error[j], betas[j], dy_t, carried, dk_t, dv_t))
                if version == B:
                    softmax_back(s[j], carried, carried)
                put(dk_t, pairs, t, dk)
                put(dv_t, pairs, t, dv)
                put(dbeta_t, pairs, t, dbeta)
                forget_tile(dR, reset, pairs, t)
                forget(carried, reset, pairs, t)
        put_tile(dR, pairs, dR_0)
        scatter(carried, pairs, dy_0)
