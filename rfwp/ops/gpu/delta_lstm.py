"""`delta_lstm` in Triton: one program a batch row and head, the three R matrices in registers.

As in `delta_rnn`, the three delta rules never wait for y; only reading R_u, R_f, R_o with s = softmax(y_{t-1}) does, and
the three reads share s and its normalisation.

Forward leaves of every step s, and of the gates k, r = v - R_{t-1} k, beta, u, f, o, with c_{t-1} (and y, version A), in
`trace`. The backward pass is one walk from the last step to the first, which undoes R_t = R_{t-1} + beta r ⊗ k and starts
anew from the checkpoint of every segment.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfwp.ops.gpu import steps
from rfwp.ops.gpu.launch import launch
from rfwp.ops.gpu.steps import (
    activated,
    bth,
    bthg,
    checkpoints,
    column,
    delta_back,
    delta_write,
    exponentials,
    laid,
    load_program,
    padded,
    prefetch,
    prefetch_ahead,
    row,
    sectors_of,
    segments,
    sigmoid,
    softmax_back,
    store_columns,
    store_row,
    turned,
    unit_stride,
    zeros_along,
)

__all__ = ["backward", "checkpoints", "forward", "trace_size"]

FORWARD_WARPS = ((16, 1), (32, 2), (64, 8), (128, 16))
BACKWARD_WARPS = ((16, 1), (32, 4), (64, 8), (128, 16))
"""(largest padded head size, warps a program)"""

# a specialised stride would mean a compilation for every other T
_RUNTIME = [f"{x}{d}" for x in ("sz", "sk", "sv", "sb", "sd") for d in "bthg"] + ["H", "T", "N"]


def _row(V: int) -> int:
    """Numbers that a step leaves: s and three k; r_u, r_f, r_o, c and u, f, o, y side by side; three beta and one to fill up."""
    return 12 * padded(V) + 4


def trace_size(B: int, T: int, H: int, V: int, version: str) -> int:
    return B * H * T * _row(V)


@triton.jit
def _load(z, k, v, beta, szg, skg, svg, sbg, i, l, o_i, o_l, V: tl.constexpr):
    """One step's programs of the three gates."""
    return (
        load_program(z, k, v, beta, i, l, o_i, o_l, V),
        load_program(z + szg, k + skg, v + svg, beta + sbg, i, l, o_i, o_l, V),
        load_program(z + 2 * szg, k + 2 * skg, v + 2 * svg, beta + 2 * sbg, i, l, o_i, o_l, V),
    )


@triton.jit
def _load_matrices(p, tile, inside, VV: tl.constexpr):
    return (
        tl.load(p + tile, mask=inside, other=0.0),
        tl.load(p + VV + tile, mask=inside, other=0.0),
        tl.load(p + 2 * VV + tile, mask=inside, other=0.0),
    )


@triton.jit
def _store_matrices(p, tile, inside, R_u, R_f, R_o, VV: tl.constexpr):
    tl.store(p + tile, R_u, mask=inside)
    tl.store(p + VV + tile, R_f, mask=inside)
    tl.store(p + 2 * VV + tile, R_o, mask=inside)


@triton.jit(do_not_specialize=_RUNTIME)
def _run(
    z, k, v, beta, R_0, y_0, c_0, reset, y_out, R_T, y_T, c_T, ckR, cky, ckc, X,
    szb, szt, szh, szg, skb, skt, skh, skg, svb, svt, svh, svg, sbb, sbt, sbh, sbg, H, T, N,
    V: tl.constexpr, D: tl.constexpr, P: tl.constexpr, S: tl.constexpr, AHEAD: tl.constexpr,
    VERSION: tl.constexpr, RAW: tl.constexpr, KEEP: tl.constexpr, RESET: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """From the first step to the last."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    i, l = tl.arange(0, D), tl.arange(0, D)
    VV: tl.constexpr = V * V
    tile = column(i) * V + row(l)
    inside = column(i < V) & row(l < V)
    R_u, R_f, R_o = _load_matrices(R_0 + bh * 3 * VV, tile, inside, VV)
    y = tl.load(y_0 + bh * V + i, mask=i < V, other=0.0)
    c = tl.load(c_0 + bh * V + i, mask=i < V, other=0.0)
    o_i, o_l = zeros_along(R_u)
    z += b * szb + h * szh
    k += b * skb + h * skh
    v += b * svb + h * svh
    beta += b * sbb + h * sbh
    X += bh * T * P
    y_out += (b * T * H + h) * V
    reset += b * T
    hit_n = tl.load(reset) != 0 if RESET else False
    # inputs are loaded two steps ahead and activated one step ahead
    u_1, f_1, o_1 = _load(z, k, v, beta, szg, skg, svg, sbg, i, l, o_i, o_l, V)
    u_1, f_1, o_1 = activated(u_1, l < V, RAW), activated(f_1, l < V, RAW), activated(o_1, l < V, RAW)
    more = (T > 1).to(tl.int32)
    z += szt * more
    k += skt * more
    v += svt * more
    beta += sbt * more
    u_2, f_2, o_2 = _load(z, k, v, beta, szg, skg, svg, sbg, i, l, o_i, o_l, V)
    at, by, sectors = sectors_of(z, k, v, szg, skg, svg, szt, skt, svt, 3, V)
    for n in range(N):
        if KEEP:
            slot = (b * (N + 1) + n) * H + h
            _store_matrices(ckR + slot * 3 * VV, tile, inside, R_u, R_f, R_o, VV)
            tl.store(cky + slot * V + i, y, mask=i < V)
            tl.store(ckc + slot * V + i, c, mask=i < V)
        for t in tl.range(n * S, tl.minimum(n * S + S, T), loop_unroll_factor=UNROLL):
            u_t, f_t, o_t = u_1, f_1, o_1
            u_1, f_1, o_1 = activated(u_2, l < V, RAW), activated(f_2, l < V, RAW), activated(o_2, l < V, RAW)
            # the last step is loaded again, rather than every load be masked
            more = (t + 2 < T).to(tl.int32)
            z += szt * more
            k += skt * more
            v += svt * more
            beta += sbt * more
            u_2, f_2, o_2 = _load(z, k, v, beta, szg, skg, svg, sbg, i, l, o_i, o_l, V)
            at += by * more
            prefetch_ahead(at, by, sectors, t + 2 + AHEAD < T, AHEAD)
            if RESET:
                hit = hit_n
                hit_n = tl.load(reset + t + 1, mask=t + 1 < T, other=0) != 0
                R_u = tl.where(hit, 0.0, R_u)
                R_f = tl.where(hit, 0.0, R_f)
                R_o = tl.where(hit, 0.0, R_o)
                y = tl.where(hit, 0.0, y)
                c = tl.where(hit, 0.0, c)

            R_u, r_u = delta_write(R_u, u_t)
            R_f, r_f = delta_write(R_f, f_t)
            R_o, r_o = delta_write(R_o, o_t)
            if VERSION == "A":
                s, scale = y, 1.0
            else:
                s, scale = exponentials(y, i < V)
            u = u_t[0] + tl.sum(R_u * row(s), 1) * scale
            if VERSION != "D":
                u = sigmoid(u)
            f = sigmoid(f_t[0] + tl.sum(R_f * row(s), 1) * scale)
            o = sigmoid(o_t[0] + tl.sum(R_o * row(s), 1) * scale)
            c_before = c
            c = tl.where(i < V, f * c + (1 - f) * u, 0.0)
            y = o * c
            if VERSION == "A":
                y, scale_y = exponentials(y, i < V)
                y *= scale_y
            if VERSION == "C":
                y += u_t[0]
            tl.store(y_out + i, y.to(y_out.dtype.element_ty), mask=i < V)
            y_out += H * V
            if KEEP:
                store_row(X, s * scale, i, l, D)
                store_row(X + D, u_t[1], i, l, D)
                store_row(X + 2 * D, f_t[1], i, l, D)
                store_row(X + 3 * D, o_t[1], i, l, D)
                store_columns(X + 4 * D, r_u, r_f, r_o, c_before, i, l)
                store_columns(X + 8 * D, u, f, o, y, i, l)
                tl.store(X + 12 * D, u_t[3])
                tl.store(X + 12 * D + 1, f_t[3])
                tl.store(X + 12 * D + 2, o_t[3])
                X += P
    if KEEP:
        slot = (b * (N + 1) + N) * H + h
        _store_matrices(ckR + slot * 3 * VV, tile, inside, R_u, R_f, R_o, VV)
        tl.store(cky + slot * V + i, y, mask=i < V)
        tl.store(ckc + slot * V + i, c, mask=i < V)
    _store_matrices(R_T + bh * 3 * VV, tile, inside, R_u, R_f, R_o, VV)
    tl.store(y_T + bh * V + i, y, mask=i < V)
    tl.store(c_T + bh * V + i, c, mask=i < V)


@triton.jit
def _recall(X, dy, i, l, o_i, o_l, D: tl.constexpr, V: tl.constexpr):
    """One step's s along both axes, c_{t-1}, u, f, o, y as forward left them, and dy."""
    return (
        laid(tl.load(X + l), o_l),
        laid(tl.load(X + i), o_i),
        laid(tl.load(X + 4 * D + 3 + 4 * i), o_i),
        laid(tl.load(X + 8 * D + 4 * i), o_i),
        laid(tl.load(X + 8 * D + 1 + 4 * i), o_i),
        laid(tl.load(X + 8 * D + 2 + 4 * i), o_i),
        laid(tl.load(X + 8 * D + 3 + 4 * i), o_i),
        laid(tl.load(dy + i, mask=i < V, other=0.0), o_i),
    )


@triton.jit
def _recall_gate(X, g: tl.constexpr, i, l, o_i, o_l, D: tl.constexpr):
    """One step's k, r, beta of gate g."""
    return (
        laid(tl.load(X + (1 + g) * D + l), o_l),
        laid(tl.load(X + 4 * D + g + 4 * i), o_i),
        laid(tl.load(X + 12 * D + g), o_i),
    )


@triton.jit
def _store_gate(dz, dk, dv, dbeta, szg, skg, svg, sbg, g: tl.constexpr, i, l, dz_t, dk_t, dv_t, db_t, V: tl.constexpr):
    tl.store(dz + g * szg + i, dz_t.to(dz.dtype.element_ty), mask=i < V)
    store_row(dk + g * skg, dk_t, i, l, V)
    tl.store(dv + g * svg + i, dv_t.to(dv.dtype.element_ty), mask=i < V)
    tl.store(dbeta + g * sbg, db_t.to(dbeta.dtype.element_ty))


@triton.jit(do_not_specialize=_RUNTIME)
def _back(
    dy, dR_T, dy_T, dc_T, reset, ckR, X, dz, dk, dv, dbeta, dR_0, dy_0, dc_0,
    szb, szt, szh, szg, skb, skt, skh, skg, svb, svt, svh, svg, sbb, sbt, sbh, sbg, sdb, sdt, sdh, H, T, N,
    V: tl.constexpr, D: tl.constexpr, P: tl.constexpr, S: tl.constexpr, AHEAD: tl.constexpr,
    VERSION: tl.constexpr, RAW: tl.constexpr, RESET: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """From the last step to the first. Strides of z, k, v, beta are those of their gradients."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    i, l = tl.arange(0, D), tl.arange(0, D)
    VV: tl.constexpr = V * V
    tile = column(i) * V + row(l)
    inside = column(i < V) & row(l < V)
    ckR += (b * (N + 1) * H + h) * 3 * VV
    R_u, R_f, R_o = _load_matrices(ckR + N.to(tl.int64) * H * 3 * VV, tile, inside, VV)
    dR_u, dR_f, dR_o = _load_matrices(dR_T + bh * 3 * VV, tile, inside, VV)
    carried = tl.load(dy_T + bh * V + i, mask=i < V, other=0.0)
    dc = tl.load(dc_T + bh * V + i, mask=i < V, other=0.0)
    o_i, o_l = zeros_along(R_u)
    diagonal = column(i) == row(l)
    end = (T - 1).to(tl.int64)
    dy += b * sdb + h * sdh + end * sdt
    dz += b * szb + h * szh + end * szt
    dk += b * skb + h * skh + end * skt
    dv += b * svb + h * svh + end * svt
    dbeta += b * sbb + h * sbh + end * sbt
    X += (bh * T + end) * P
    reset += b * T
    s_n, si_n, c_n, u_n, f_n, o_n, y_n, dy_n = _recall(X, dy, i, l, o_i, o_l, D, V)
    gu_n = _recall_gate(X, 0, i, l, o_i, o_l, D)
    gf_n = _recall_gate(X, 1, i, l, o_i, o_l, D)
    go_n = _recall_gate(X, 2, i, l, o_i, o_l, D)
    for m in range(N):
        n = N - 1 - m
        stop = tl.minimum(n * S + S, T)
        R_n = ckR + n.to(tl.int64) * H * 3 * VV
        prefetch(R_n, 3 * VV, True, AHEAD)
        for step in tl.range(0, stop - n * S, loop_unroll_factor=UNROLL):
            t = stop - 1 - step
            if RESET:
                hit = tl.load(reset + t) != 0
            s, s_i, c, u, f, o, y_t, dy_t = s_n, si_n, c_n, u_n, f_n, o_n, y_n, dy_n
            gu, gf, go = gu_n, gf_n, go_n
            # the first step is loaded twice, rather than every load be masked
            more = (t > 0).to(tl.int32)
            X -= P * more
            dy -= sdt * more
            s_n, si_n, c_n, u_n, f_n, o_n, y_n, dy_n = _recall(X, dy, i, l, o_i, o_l, D, V)
            gu_n = _recall_gate(X, 0, i, l, o_i, o_l, D)
            gf_n = _recall_gate(X, 1, i, l, o_i, o_l, D)
            go_n = _recall_gate(X, 2, i, l, o_i, o_l, D)
            prefetch(X - AHEAD * P, P, t - 1 - AHEAD >= 0, AHEAD)
            prefetch(dy - AHEAD * sdt, D, t - 1 - AHEAD >= 0, AHEAD)

            dy_t += carried
            da = dy_t  # of o ⊙ c_t
            if VERSION == "A":
                da = y_t * (dy_t - tl.sum(dy_t * y_t, 0))
            dc += da * o
            dz_o = da * (f * c + (1 - f) * u) * o * (1 - o)
            dz_f = dc * (c - u) * f * (1 - f)
            dz_u = dc * (1 - f)
            dc *= f
            if VERSION != "D":
                dz_u *= u * (1 - u)
            ds = tl.sum(R_u * column(dz_u) + R_f * column(dz_f) + R_o * column(dz_o), 0)
            carried = turned(ds, diagonal) if VERSION == "A" else softmax_back(ds, s, s_i, diagonal)
            dk_u, dv_u, db_u, R_u, dR_u = delta_back(R_u, dR_u + column(dz_u) * row(s), gu[0], gu[1], gu[2], RAW)
            dk_f, dv_f, db_f, R_f, dR_f = delta_back(R_f, dR_f + column(dz_f) * row(s), gf[0], gf[1], gf[2], RAW)
            dk_o, dv_o, db_o, R_o, dR_o = delta_back(R_o, dR_o + column(dz_o) * row(s), go[0], go[1], go[2], RAW)
            if VERSION == "C":
                dz_u += dy_t
            _store_gate(dz, dk, dv, dbeta, szg, skg, svg, sbg, 0, i, l, dz_u, dk_u, dv_u, db_u, V)
            _store_gate(dz, dk, dv, dbeta, szg, skg, svg, sbg, 1, i, l, dz_f, dk_f, dv_f, db_f, V)
            _store_gate(dz, dk, dv, dbeta, szg, skg, svg, sbg, 2, i, l, dz_o, dk_o, dv_o, db_o, V)
            dz -= szt
            dk -= skt
            dv -= svt
            dbeta -= sbt
            if RESET:
                if hit:
                    dR_u = tl.zeros((D, D), tl.float32)
                    dR_f = tl.zeros((D, D), tl.float32)
                    dR_o = tl.zeros((D, D), tl.float32)
                    carried = tl.zeros((D,), tl.float32)
                    dc = tl.zeros((D,), tl.float32)
                    # what a reset erased cannot be undone: written again from the segment's start
                    R_u, R_f, R_o = _load_matrices(R_n, tile, inside, VV)
                    for w in range(n * S, t):
                        hit = tl.load(reset + w) != 0
                        x = X - (t - 1 - w) * P
                        ku, ru, bu = _recall_gate(x, 0, i, l, o_i, o_l, D)
                        kf, rf, bf = _recall_gate(x, 1, i, l, o_i, o_l, D)
                        ko, ro, bo = _recall_gate(x, 2, i, l, o_i, o_l, D)
                        R_u = tl.where(hit, 0.0, R_u) + column(bu * ru) * row(ku)
                        R_f = tl.where(hit, 0.0, R_f) + column(bf * rf) * row(kf)
                        R_o = tl.where(hit, 0.0, R_o) + column(bo * ro) * row(ko)
        # where the segment before this one ended
        R_u, R_f, R_o = _load_matrices(R_n, tile, inside, VV)
    _store_matrices(dR_0 + bh * 3 * VV, tile, inside, dR_u, dR_f, dR_o, VV)
    tl.store(dy_0 + bh * V + i, carried, mask=i < V)
    tl.store(dc_0 + bh * V + i, dc, mask=i < V)


def forward(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R: Tensor,
    y0: Tensor,
    c0: Tensor,
    reset: Tensor | None,
    keep: bool,
    version: str,
    raw: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """raw: k comes before its softmax and beta before its sigmoid."""
    B, T, H, _, V = z.shape
    D, N = padded(V), checkpoints(T) if keep else 0
    y = z.new_empty(B, T, H, V)
    finals = R.new_empty(B, H, 3, V, V), R.new_empty(B, H, V), R.new_empty(B, H, V)
    saved = R.new_empty(B, N, H, 3, V, V), R.new_empty(B, N, H, V), R.new_empty(B, N, H, V)
    trace = R.new_empty(trace_size(B, T, H, V, version) if keep else 0)
    states = R.contiguous(), y0.contiguous(), c0.contiguous()
    z, k, v = unit_stride(z), unit_stride(k), unit_stride(v)
    with torch.cuda.device_of(z):
        launch(_run, B * H,
            z, k, v, beta, *states, steps.flags(reset, R), y, *finals, *saved, trace,
            *bthg(z), *bthg(k), *bthg(v), *bthg(beta), H, T, segments(T),
            V, D, _row(V), steps.SEGMENT, steps.AHEAD, version, raw, keep, reset is not None, steps.unroll(D),
            **steps.options(FORWARD_WARPS, D),
        )  # fmt: skip
    return y, *finals, *saved, trace


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
    y0: Tensor,
    c0: Tensor,
    reset: Tensor | None,
    y: Tensor,
    ckR: Tensor,
    cky: Tensor,
    ckc: Tensor,
    trace: Tensor,
    version: str,
    raw: bool = False,
    out: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """raw as in forward; out: where dz, dk, dv, dbeta go, views with any strides but the last."""
    B, T, H, _, V = z.shape
    D = padded(V)
    dz, dk, dv, dbeta = steps.gradients_like((z, k, v, beta), out)
    dR, dy0, dc0 = R.new_empty(B, H, 3, V, V), R.new_empty(B, H, V), R.new_empty(B, H, V)
    dy = unit_stride(dy)
    arriving = dR_T.contiguous(), dy_T.contiguous(), dc_T.contiguous()
    with torch.cuda.device_of(z):
        launch(_back, B * H,
            dy, *arriving, steps.flags(reset, R), ckR, trace, dz, dk, dv, dbeta, dR, dy0, dc0,
            *bthg(dz), *bthg(dk), *bthg(dv), *bthg(dbeta), *bth(dy), H, T, segments(T),
            V, D, _row(V), steps.SEGMENT, steps.AHEAD, version, raw, reset is not None, steps.unroll(D),
            **steps.options(BACKWARD_WARPS, D),
        )  # fmt: skip
    return dz, dk, dv, dbeta, dR, dy0, dc0
