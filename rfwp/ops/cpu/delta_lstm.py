"""`delta_lstm` on the CPU: eight (batch, head) pairs at once. Gates lie in the order u, f, o."""

import numpy as np
import torch
from torch import Tensor

from rfwp.ops.cpu.lanes import LANES, gather, load, one, scatter, sigmoid, store
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
    fill,
    forget,
    forget_tile,
    inner,
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

A, B, C, D = 0, 1, 2, 3
"""The versions inside kernels."""
GATES = 3


def forward(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R: Tensor,
    y_0: Tensor,
    c_0: Tensor,
    reset: Tensor | None,
    keep: bool,
    version: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dtype, (batch, T, H, _, V) = z.dtype, z.shape
    z, k, v, beta = wide(R, z, k, v, beta)
    R_T, y_T, c_T = (torch.empty(x.shape, dtype=R.dtype) for x in (R, y_0, c_0))
    N = checkpoints(T) if keep else 0
    starts = R.new_empty(batch, N, *R.shape[1:]), R.new_empty(batch, N, H, V), R.new_empty(batch, N, H, V)
    y = R.new_empty(batch, T, H, V)
    inputs = z, k, v, beta.unsqueeze(-1), R, y_0, c_0, mask(reset, z), "ABCD".index(version)
    launch(forward_kernel, groups_of(z), *inputs, y, R_T, y_T, c_T, *starts)
    return y.to(dtype), R_T, y_T, c_T, *starts


def backward(
    dy: Tensor,
    dR_T: Tensor,
    dy_T: Tensor,
    dc_T: Tensor,
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R: Tensor,
    y_0: Tensor,
    c_0: Tensor,
    reset: Tensor | None,
    y: Tensor,
    starts_R: Tensor,
    starts_y: Tensor,
    starts_c: Tensor,
    version: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dtype = z.dtype
    dy, z, k, v, beta = wide(R, dy, z, k, v, beta)
    dz, dk, dv, dbeta, dR, dy_0, dc_0 = (torch.empty(x.shape, dtype=R.dtype) for x in (z, k, v, beta, R, y_0, c_0))
    inputs = dy, dR_T, dy_T, dc_T, z, k, v, beta.unsqueeze(-1), mask(reset, z), starts_R, starts_y, starts_c
    launch(backward_kernel, groups_of(z), *inputs, "ABCD".index(version), dz, dk, dv, dbeta.unsqueeze(-1), dR, dy_0, dc_0)
    return dz.to(dtype), dk.to(dtype), dv.to(dtype), dbeta.to(dtype), dR, dy_0, dc_0


@inner
def cell(pre, z_u, c, version, V, c_new, y):
    """f, o = σ,  u = σ (D: none);  c_new = f c + (1 - f) u,  y = o c_new (C: + z_u; A: softmax);  pre ← (u, f, o)"""
    for i in range(V):
        u, f, o = load(pre[0], i), sigmoid(load(pre[1], i)), sigmoid(load(pre[2], i))
        if version != D:
            u = sigmoid(u)
        new = f * load(c, i) + (one(f) - f) * u
        out = o * new
        if version == C:
            out = out + load(z_u, i)
        store(pre[0], i, u)
        store(pre[1], i, f)
        store(pre[2], i, o)
        store(c_new, i, new)
        store(y, i, out)
    if version == A:
        softmax(y, V, y)


@inner
def cell_back(gates, c, c_new, version, V, dy, dc, dpre):
    """The gradients of `cell` but for its last softmax and z_u: dpre, and dc of the new cell ← dc of the old one."""
    for i in range(V):
        u, f, o = load(gates[0], i), load(gates[1], i), load(gates[2], i)
        g = load(dy, i)
        dnew = load(dc, i) + g * o
        du = dnew * (one(f) - f)
        if version != D:
            du = du * u * (one(u) - u)
        store(dpre[0], i, du)
        store(dpre[1], i, dnew * (load(c, i) - u) * f * (one(f) - f))
        store(dpre[2], i, g * load(c_new, i) * o * (one(o) - o))
        store(dc, i, dnew * f)


def forward_kernel(first, last, z, k, v, beta, R_0, y_0, c_0, reset, version, y, R_T, y_T, c_T, starts_R, starts_y, starts_c):
    """R_g by the delta rule,  pre_g = z_g + R_g s,  s = softmax(y_{t-1}) (A: y_{t-1});  then `cell`"""
    batch, T, H, _, V = z.shape
    n = padded(V)
    R, pre = np.zeros((GATES, n, n, LANES), R_0.dtype), columns(GATES, n, R_0)
    y_t, s, k_t, v_t, z_u = column(n, R_0), column(n, R_0), column(n, R_0), column(n, R_0), column(n, R_0)
    c_t, error, e, beta_t = column(n, R_0), column(n, R_0), column(n, R_0), column(1, R_0)
    for group in range(first, last):
        pairs = pairs_of(group, batch, H)
        for g in range(GATES):
            fetch_tile(R_0[:, :, g], pairs, R[g])
        gather(y_0, pairs, y_t)
        gather(c_0, pairs, c_t)
        for t in range(T):
            if t % SEGMENT == 0 and starts_R.shape[1] > 0:
                for g in range(GATES):
                    put_tile(R[g], pairs, starts_R[:, t // SEGMENT, :, g])
                scatter(y_t, pairs, starts_y[:, t // SEGMENT])
                scatter(c_t, pairs, starts_c[:, t // SEGMENT])
            forget(y_t, reset, pairs, t)
            forget(c_t, reset, pairs, t)
            if version == A:
                copy(y_t, s)
            else:
                softmax(y_t, V, s)
            fetch(z[:, :, :, 0], pairs, t, z_u)
            for g in range(GATES):
                forget_tile(R[g], reset, pairs, t)
                fetch(z[:, :, :, g], pairs, t, pre[g])
                fetch(k[:, :, :, g], pairs, t, k_t)
                fetch(v[:, :, :, g], pairs, t, v_t)
                fetch(beta[:, :, :, g], pairs, t, beta_t)
                write(R[g], R[g], k_t, v_t, beta_t, s, error, e, pre[g])
            cell(pre, z_u, c_t, version, V, c_t, y_t)
            put(y_t, pairs, t, y)
        for g in range(GATES):
            put_tile(R[g], pairs, R_T[:, :, g])
        scatter(y_t, pairs, y_T)
        scatter(c_t, pairs, c_T)


@inner
def replay(z, k, v, beta, reset, pairs, start, steps, version, R, y_t, c, c_new, ys, s, gates, ks, betas, error, e, v_t, z_u):
    """A segment forwards again, from R[0], y_t and c[0]; everything that the way back needs is kept."""
    V = z.shape[4]
    for j in range(steps):
        t = start + j
        if j > 0:
            copy(c_new[j - 1], c[j])
        forget(y_t, reset, pairs, t)
        forget(c[j], reset, pairs, t)
        if version == A:
            copy(y_t, s[j])
        else:
            softmax(y_t, V, s[j])
        fetch(z[:, :, :, 0], pairs, t, z_u)
        for g in range(GATES):
            forget_tile(R[j, g], reset, pairs, t)
            fetch(z[:, :, :, g], pairs, t, gates[j, g])
            fetch(k[:, :, :, g], pairs, t, ks[j, g])
            fetch(v[:, :, :, g], pairs, t, v_t)
            fetch(beta[:, :, :, g], pairs, t, betas[j, g])
            write(R[j, g], R[j + 1, g], ks[j, g], v_t, betas[j, g], s[j], error[j, g], e, gates[j, g])
        cell(gates[j], z_u, c[j], version, V, c_new[j], y_t)
        copy(y_t, ys[j])


def backward_kernel(
    first,
    last,
    dy,
    dR_T,
    dy_T,
    dc_T,
    z,
    k,
    v,
    beta,
    reset,
    starts_R,
    starts_y,
    starts_c,
    version,
    dz,
    dk,
    dv,
    dbeta,
    dR_0,
    dy_0,
    dc_0,
):
    """Segment by segment from the last: `replay` from the kept copies, then `cell_back` and `write_back` a gate."""
    batch, T, H, _, V = z.shape
    n = padded(V)
    R, dR = np.zeros((SEGMENT + 1, GATES, n, n, LANES), dR_T.dtype), np.zeros((GATES, n, n, LANES), dR_T.dtype)
    gates, ks = np.zeros((SEGMENT, GATES, n, LANES), dR_T.dtype), np.zeros((SEGMENT, GATES, n, LANES), dR_T.dtype)
    error = np.zeros((SEGMENT, GATES, n, LANES), dR_T.dtype)
    betas = np.zeros((SEGMENT, GATES, 1, LANES), dR_T.dtype)
    ys, s, c, c_new = columns(SEGMENT, n, dR_T), columns(SEGMENT, n, dR_T), columns(SEGMENT, n, dR_T), columns(SEGMENT, n, dR_T)
    y_t, v_t, z_u, e = column(n, dR_T), column(n, dR_T), column(n, dR_T), column(n, dR_T)
    dy_t, dy_back, dc, ds = column(n, dR_T), column(n, dR_T), column(n, dR_T), column(n, dR_T)
    dk_t, dv_t, dbeta_t, dpre = column(n, dR_T), column(n, dR_T), column(1, dR_T), columns(GATES, n, dR_T)
    for group in range(first, last):
        pairs = pairs_of(group, batch, H)
        for g in range(GATES):
            fetch_tile(dR_T[:, :, g], pairs, dR[g])
        gather(dy_T, pairs, dy_back)
        gather(dc_T, pairs, dc)
        for segment in range(starts_R.shape[1] - 1, -1, -1):
            start, steps = segment * SEGMENT, min(SEGMENT, T - segment * SEGMENT)
            for g in range(GATES):
                fetch_tile(starts_R[:, segment, :, g], pairs, R[0, g])
            gather(starts_y[:, segment], pairs, y_t)
            gather(starts_c[:, segment], pairs, c[0])
            replay(
                z, k, v, beta, reset, pairs, start, steps, version, R, y_t, c, c_new, ys, s, gates, ks, betas, error, e, v_t, z_u
            )
            for j in range(steps - 1, -1, -1):
                t = start + j
                fetch_back(dy, pairs, t, dy_t)
                add(dy_back, dy_t)
                if version == A:
                    softmax_back(ys[j], dy_t, dy_t)
                cell_back(gates[j], c[j], c_new[j], version, V, dy_t, dc, dpre)
                fill(dy_back)
                for g in range(GATES):
                    state, learned = R[j, g], (s[j], ks[j, g], error[j, g], betas[j, g])
                    store(dbeta_t, 0, write_back(state, dR[g], *learned, dpre[g], ds, dk_t, dv_t))
                    add(ds, dy_back)
                    if version == C and g == 0:
                        add(dy_t, dpre[0])
                    put(dpre[g], pairs, t, dz[:, :, :, g])
                    put(dk_t, pairs, t, dk[:, :, :, g])
                    put(dv_t, pairs, t, dv[:, :, :, g])
                    put(dbeta_t, pairs, t, dbeta[:, :, :, g])
                    forget_tile(dR[g], reset, pairs, t)
                if version != A:
                    softmax_back(s[j], dy_back, dy_back)
                forget(dy_back, reset, pairs, t)
                forget(dc, reset, pairs, t)
        for g in range(GATES):
            put_tile(dR[g], pairs, dR_0[:, :, g])
        scatter(dy_back, pairs, dy_0)
        scatter(dc, pairs, dc_0)
