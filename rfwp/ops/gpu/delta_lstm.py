"""`delta_lstm` in Triton: one program a batch row and head, the three R matrices in registers.

As in `delta_rnn`, the three delta rules never wait for y; only reading R_u, R_f, R_o with s = softmax(y_{t-1}) does, and
the three reads share s and its normalisation.

The backward pass first runs all segments again, in parallel, from their checkpoints, and leaves of every step s, the three
r = v - R_{t-1} k, the gates u, f, o, c_{t-1} (and y, version A). Then one walk from the last step to the first undoes
R_t = R_{t-1} + beta r ⊗ k, starting anew from the checkpoint of every segment.
"""

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from rfwp.ops.gpu import steps
from rfwp.ops.gpu.steps import (
    checkpoints,
    column,
    delta_back,
    exponentials,
    padded,
    prefetch,
    row,
    sigmoid,
    store_row,
    unit_stride,
    zeros_along,
)

__all__ = ["backward", "checkpoints", "forward"]

FORWARD_WARPS = ((16, 1), (32, 2), (64, 8), (128, 16))
BACKWARD_WARPS = ((16, 1), (32, 4), (64, 8), (128, 16))
"""(largest padded head size, warps a program)"""

# a specialised stride would mean a compilation for every other T
_RUNTIME = [f"{x}{d}" for x in ("sz", "sk", "sv", "sb", "sd") for d in "bthg"] + ["H", "T", "N"]


@triton.jit
def _load(z, k, v, beta, szg, skg, svg, sbg, g: tl.constexpr, i, l, o_i, o_l, on, V: tl.constexpr):
    """One step's z, k, v, beta of gate g, in float32."""
    return (
        o_i + tl.load(z + g * szg + i, mask=(i < V) & on, other=0.0).to(tl.float32),
        o_l + tl.load(k + g * skg + l, mask=(l < V) & on, other=0.0).to(tl.float32),
        o_i + tl.load(v + g * svg + i, mask=(i < V) & on, other=0.0).to(tl.float32),
        tl.load(beta + g * sbg, mask=on, other=0.0).to(tl.float32),
    )


@triton.jit
def _write(R, gate):
    """R_t = R_{t-1} + beta r ⊗ k,  r = v - R_{t-1} k. Returns R_t and r."""
    _, k, v, beta = gate
    r = v - tl.sum(R * row(k), 1)
    return R + column(beta * r) * row(k), r


@triton.jit(do_not_specialize=_RUNTIME)
def _run(
    z, k, v, beta, R_0, y_0, c_0, reset, y_out, R_T, y_T, c_T, ckR, cky, ckc, X,
    szb, szt, szh, szg, skb, skt, skh, skg, svb, svt, svh, svg, sbb, sbt, sbh, sbg, H, T, N,
    V: tl.constexpr, D: tl.constexpr, S: tl.constexpr, AHEAD: tl.constexpr,
    VERSION: tl.constexpr, KEEP: tl.constexpr, AGAIN: tl.constexpr, RESET: tl.constexpr,
):  # fmt: skip
    """All segments of a row and head in turn; or, AGAIN, one segment from its checkpoint, leaving its vectors in X."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    i, l = tl.arange(0, D), tl.arange(0, D)
    VV: tl.constexpr = V * V
    tile = column(i) * V + row(l)
    inside = column(i < V) & row(l < V)
    first = tl.program_id(1)
    if AGAIN:
        last = first + 1
        slot = (b * N + first) * H + h
        R_0 = ckR + slot * 3 * VV
        y_0 = cky + slot * V
        c_0 = ckc + slot * V
    else:
        last = N
        R_0 += bh * 3 * VV
        y_0 += bh * V
        c_0 += bh * V
    R_u = tl.load(R_0 + tile, mask=inside, other=0.0)
    R_f = tl.load(R_0 + VV + tile, mask=inside, other=0.0)
    R_o = tl.load(R_0 + 2 * VV + tile, mask=inside, other=0.0)
    y = tl.load(y_0 + i, mask=i < V, other=0.0)
    c = tl.load(c_0 + i, mask=i < V, other=0.0)
    o_i, o_l = zeros_along(R_u)
    start = (first * S).to(tl.int64)
    z += b * szb + h * szh + start * szt
    k += b * skb + h * skh + start * skt
    v += b * svb + h * svh + start * svt
    beta += b * sbb + h * sbh + start * sbt
    P: tl.constexpr = 9 * D if VERSION == "A" else 8 * D
    X += (bh * T + start) * P
    y_out += ((b * T + start) * H + h) * V
    reset += b * T
    hit_n = tl.load(reset + start) != 0 if RESET else False
    u_n = _load(z, k, v, beta, szg, skg, svg, sbg, 0, i, l, o_i, o_l, True, V)
    f_n = _load(z, k, v, beta, szg, skg, svg, sbg, 1, i, l, o_i, o_l, True, V)
    o_n = _load(z, k, v, beta, szg, skg, svg, sbg, 2, i, l, o_i, o_l, True, V)
    for n in range(first, last):
        if KEEP:
            slot = (b * N + n) * H + h
            tl.store(ckR + slot * 3 * VV + tile, R_u, mask=inside)
            tl.store(ckR + slot * 3 * VV + VV + tile, R_f, mask=inside)
            tl.store(ckR + slot * 3 * VV + 2 * VV + tile, R_o, mask=inside)
            tl.store(cky + slot * V + i, y, mask=i < V)
            tl.store(ckc + slot * V + i, c, mask=i < V)
        for t in range(n * S, tl.minimum(n * S + S, T)):
            u_t, f_t, o_t = u_n, f_n, o_n
            z += szt
            k += skt
            v += svt
            beta += sbt
            u_n = _load(z, k, v, beta, szg, skg, svg, sbg, 0, i, l, o_i, o_l, t + 1 < T, V)
            f_n = _load(z, k, v, beta, szg, skg, svg, sbg, 1, i, l, o_i, o_l, t + 1 < T, V)
            o_n = _load(z, k, v, beta, szg, skg, svg, sbg, 2, i, l, o_i, o_l, t + 1 < T, V)
            for g in tl.static_range(3):
                prefetch(z + g * szg + AHEAD * szt, D, t + 1 + AHEAD < T, AHEAD)
                prefetch(k + g * skg + AHEAD * skt, D, t + 1 + AHEAD < T, AHEAD)
                prefetch(v + g * svg + AHEAD * svt, D, t + 1 + AHEAD < T, AHEAD)
            if RESET:
                hit = hit_n
                hit_n = tl.load(reset + t + 1, mask=t + 1 < T, other=0) != 0
                R_u = tl.where(hit, 0.0, R_u)
                R_f = tl.where(hit, 0.0, R_f)
                R_o = tl.where(hit, 0.0, R_o)
                y = tl.where(hit, 0.0, y)
                c = tl.where(hit, 0.0, c)

            R_u, r_u = _write(R_u, u_t)
            R_f, r_f = _write(R_f, f_t)
            R_o, r_o = _write(R_o, o_t)
            if VERSION == "A":
                s, scale = y, 1.0
            else:
                s, scale = exponentials(y, i < V)
            u = u_t[0] + tl.sum(R_u * row(s), 1) * scale
            if VERSION != "D":
                u = sigmoid(u)
            f = sigmoid(f_t[0] + tl.sum(R_f * row(s), 1) * scale)
            o = sigmoid(o_t[0] + tl.sum(R_o * row(s), 1) * scale)
            if AGAIN:
                tl.store(X + i, s * scale)
                tl.store(X + D + i, r_u)
                tl.store(X + 2 * D + i, r_f)
                tl.store(X + 3 * D + i, r_o)
                tl.store(X + 4 * D + i, u)
                tl.store(X + 5 * D + i, f)
                tl.store(X + 6 * D + i, o)
                tl.store(X + 7 * D + i, c)
            c = tl.where(i < V, f * c + (1 - f) * u, 0.0)
            y = o * c
            if VERSION == "A":
                y, scale = exponentials(y, i < V)
                y *= scale
            if VERSION == "C":
                y += u_t[0]
            if AGAIN:
                if VERSION == "A":
                    tl.store(X + 8 * D + i, y)
                X += P
            else:
                tl.store(y_out + i, y.to(y_out.dtype.element_ty), mask=i < V)
                y_out += H * V
    if last == N:
        tl.store(R_T + bh * 3 * VV + tile, R_u, mask=inside)
        tl.store(R_T + bh * 3 * VV + VV + tile, R_f, mask=inside)
        tl.store(R_T + bh * 3 * VV + 2 * VV + tile, R_o, mask=inside)
        tl.store(y_T + bh * V + i, y, mask=i < V)
        tl.store(c_T + bh * V + i, c, mask=i < V)


@triton.jit
def _recall(X, dy, i, l, o_i, o_l, on, VERSION: tl.constexpr, D: tl.constexpr, V: tl.constexpr):
    """One step's s, u, f, o, c_{t-1}, y (version A) as the run from the checkpoints left them, and dy."""
    return (
        o_l + tl.load(X + l, mask=(l < D) & on, other=0.0),
        o_i + tl.load(X + 4 * D + i, mask=(i < D) & on, other=0.0),
        o_i + tl.load(X + 5 * D + i, mask=(i < D) & on, other=0.0),
        o_i + tl.load(X + 6 * D + i, mask=(i < D) & on, other=0.0),
        o_i + tl.load(X + 7 * D + i, mask=(i < D) & on, other=0.0),
        o_i + tl.load(X + (8 * D if VERSION == "A" else 0) + i, mask=(i < D) & on, other=0.0),
        o_i + tl.load(dy + i, mask=(i < V) & on, other=0.0).to(tl.float32),
    )


@triton.jit
def _recall_gate(X, k, beta, skg, sbg, g: tl.constexpr, i, l, o_i, o_l, on, D: tl.constexpr, V: tl.constexpr):
    """One step's k, r, beta of gate g."""
    return (
        o_l + tl.load(k + g * skg + l, mask=(l < V) & on, other=0.0).to(tl.float32),
        o_i + tl.load(X + (1 + g) * D + i, mask=(i < D) & on, other=0.0),
        tl.load(beta + g * sbg, mask=on, other=0.0).to(tl.float32),
    )


@triton.jit
def _undo(R, gate):
    """R_{t-1} from R_t."""
    k, r, beta = gate
    return R - column(beta * r) * row(k)


@triton.jit
def _store_gate(dz, dk, dv, dbeta, at, g: tl.constexpr, i, l, dz_t, dk_t, dv_t, db_t, V: tl.constexpr):
    at = at * 3 + g
    tl.store(dz + at * V + i, dz_t.to(dz.dtype.element_ty), mask=i < V)
    store_row(dk + at * V, dk_t, i, l, V)
    tl.store(dv + at * V + i, dv_t.to(dv.dtype.element_ty), mask=i < V)
    tl.store(dbeta + at, db_t.to(dbeta.dtype.element_ty))


@triton.jit(do_not_specialize=_RUNTIME)
def _back(
    dy, dR_T, dy_T, dc_T, k, beta, reset, R_T, ckR, X, dz, dk, dv, dbeta, dR_0, dy_0, dc_0,
    skb, skt, skh, skg, sbb, sbt, sbh, sbg, sdb, sdt, sdh, H, T, N,
    V: tl.constexpr, D: tl.constexpr, S: tl.constexpr, AHEAD: tl.constexpr, VERSION: tl.constexpr, RESET: tl.constexpr,
):  # fmt: skip
    """From the last step to the first."""
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    i, l = tl.arange(0, D), tl.arange(0, D)
    VV: tl.constexpr = V * V
    tile = column(i) * V + row(l)
    inside = column(i < V) & row(l < V)
    R_u = tl.load(R_T + bh * 3 * VV + tile, mask=inside, other=0.0)
    R_f = tl.load(R_T + bh * 3 * VV + VV + tile, mask=inside, other=0.0)
    R_o = tl.load(R_T + bh * 3 * VV + 2 * VV + tile, mask=inside, other=0.0)
    dR_u = tl.load(dR_T + bh * 3 * VV + tile, mask=inside, other=0.0)
    dR_f = tl.load(dR_T + bh * 3 * VV + VV + tile, mask=inside, other=0.0)
    dR_o = tl.load(dR_T + bh * 3 * VV + 2 * VV + tile, mask=inside, other=0.0)
    carried = tl.load(dy_T + bh * V + i, mask=i < V, other=0.0)
    dc = tl.load(dc_T + bh * V + i, mask=i < V, other=0.0)
    P: tl.constexpr = 9 * D if VERSION == "A" else 8 * D
    o_i, o_l = zeros_along(R_u)
    diagonal = column(i) == row(l)
    end = (T - 1).to(tl.int64)
    dy += b * sdb + h * sdh + end * sdt
    k += b * skb + h * skh + end * skt
    beta += b * sbb + h * sbh + end * sbt
    X += (bh * T + end) * P
    at = (b * T + end) * H + h
    reset += b * T
    s_n, u_n, f_n, o_n, c_n, y_n, dy_n = _recall(X, dy, i, l, o_i, o_l, True, VERSION, D, V)
    gu_n = _recall_gate(X, k, beta, skg, sbg, 0, i, l, o_i, o_l, True, D, V)
    gf_n = _recall_gate(X, k, beta, skg, sbg, 1, i, l, o_i, o_l, True, D, V)
    go_n = _recall_gate(X, k, beta, skg, sbg, 2, i, l, o_i, o_l, True, D, V)
    for m in range(N):
        n = N - 1 - m
        stop = tl.minimum(n * S + S, T)
        R_n = ckR + ((b * N + n) * H + h) * 3 * VV + tile
        for step in range(stop - n * S):
            t = stop - 1 - step
            if RESET:
                hit = tl.load(reset + t) != 0
            s, u, f, o, c, y_t, dy_t = s_n, u_n, f_n, o_n, c_n, y_n, dy_n
            gu, gf, go = gu_n, gf_n, go_n
            X -= P
            k -= skt
            beta -= sbt
            dy -= sdt
            s_n, u_n, f_n, o_n, c_n, y_n, dy_n = _recall(X, dy, i, l, o_i, o_l, t > 0, VERSION, D, V)
            gu_n = _recall_gate(X, k, beta, skg, sbg, 0, i, l, o_i, o_l, t > 0, D, V)
            gf_n = _recall_gate(X, k, beta, skg, sbg, 1, i, l, o_i, o_l, t > 0, D, V)
            go_n = _recall_gate(X, k, beta, skg, sbg, 2, i, l, o_i, o_l, t > 0, D, V)
            prefetch(X - AHEAD * P, P, t - 1 - AHEAD >= 0, AHEAD)
            prefetch(dy - AHEAD * sdt, D, t - 1 - AHEAD >= 0, AHEAD)
            for g in tl.static_range(3):
                prefetch(k + g * skg - AHEAD * skt, D, t - 1 - AHEAD >= 0, AHEAD)

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
            ds = ds if VERSION == "A" else s * (ds - tl.sum(s * ds, 0))
            # from axis 1 to axis 0 as a diagonal: the only change of layout, and no barrier between warps
            carried = tl.sum(tl.where(diagonal, row(ds), 0.0), 1)
            R_u, R_f, R_o = _undo(R_u, gu), _undo(R_f, gf), _undo(R_o, go)
            dk_u, dv_u, db_u, dR_u = delta_back(R_u, dR_u + column(dz_u) * row(s), gu[0], gu[1], gu[2])
            dk_f, dv_f, db_f, dR_f = delta_back(R_f, dR_f + column(dz_f) * row(s), gf[0], gf[1], gf[2])
            dk_o, dv_o, db_o, dR_o = delta_back(R_o, dR_o + column(dz_o) * row(s), go[0], go[1], go[2])
            if VERSION == "C":
                dz_u += dy_t
            _store_gate(dz, dk, dv, dbeta, at, 0, i, l, dz_u, dk_u, dv_u, db_u, V)
            _store_gate(dz, dk, dv, dbeta, at, 1, i, l, dz_f, dk_f, dv_f, db_f, V)
            _store_gate(dz, dk, dv, dbeta, at, 2, i, l, dz_o, dk_o, dv_o, db_o, V)
            at -= H
            if RESET:
                if hit:
                    dR_u = tl.zeros((D, D), tl.float32)
                    dR_f = tl.zeros((D, D), tl.float32)
                    dR_o = tl.zeros((D, D), tl.float32)
                    carried = o_i
                    dc = tl.zeros((D,), tl.float32)
                    # what a reset erased cannot be undone: written again from the segment's start
                    R_u = tl.load(R_n, mask=inside, other=0.0)
                    R_f = tl.load(R_n + VV, mask=inside, other=0.0)
                    R_o = tl.load(R_n + 2 * VV, mask=inside, other=0.0)
                    for w in range(n * S, t):
                        hit = tl.load(reset + w) != 0
                        x, k_w, b_w = X - (t - 1 - w) * P, k - (t - 1 - w) * skt, beta - (t - 1 - w) * sbt
                        ku, ru, bu = _recall_gate(x, k_w, b_w, skg, sbg, 0, i, l, o_i, o_l, True, D, V)
                        kf, rf, bf = _recall_gate(x, k_w, b_w, skg, sbg, 1, i, l, o_i, o_l, True, D, V)
                        ko, ro, bo = _recall_gate(x, k_w, b_w, skg, sbg, 2, i, l, o_i, o_l, True, D, V)
                        R_u = tl.where(hit, 0.0, R_u) + column(bu * ru) * row(ku)
                        R_f = tl.where(hit, 0.0, R_f) + column(bf * rf) * row(kf)
                        R_o = tl.where(hit, 0.0, R_o) + column(bo * ro) * row(ko)
        # where the segment before this one ended
        R_u = tl.load(R_n, mask=inside, other=0.0)
        R_f = tl.load(R_n + VV, mask=inside, other=0.0)
        R_o = tl.load(R_n + 2 * VV, mask=inside, other=0.0)
    tl.store(dR_0 + bh * 3 * VV + tile, dR_u, mask=inside)
    tl.store(dR_0 + bh * 3 * VV + VV + tile, dR_f, mask=inside)
    tl.store(dR_0 + bh * 3 * VV + 2 * VV + tile, dR_o, mask=inside)
    tl.store(dy_0 + bh * V + i, carried, mask=i < V)
    tl.store(dc_0 + bh * V + i, dc, mask=i < V)


def _launch(
    inputs: Sequence[Tensor],
    states: Sequence[Tensor],
    reset: Tensor | None,
    y: Tensor,
    finals: Sequence[Tensor],
    saved: Sequence[Tensor],
    X: Tensor,
    version: str,
    keep: bool,
    again: bool,
) -> None:
    """Forward over everything, or again from the checkpoints into X."""
    z, k, v, beta = inputs
    B, T, H, _, V = z.shape
    z, k, v = unit_stride(z), unit_stride(k), unit_stride(v)
    N = checkpoints(T)
    _run[(B * H, N if again else 1)](
        z, k, v, beta, *states, steps.flags(reset, X), y, *finals, *saved, X,
        *z.stride()[:4], *k.stride()[:4], *v.stride()[:4], *beta.stride(), H, T, N,
        V, padded(V), steps.SEGMENT, steps.AHEAD, version, keep, again, reset is not None,
        num_warps=steps.warps(FORWARD_WARPS, padded(V)),
    )  # fmt: skip


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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, T, H, _, V = z.shape
    N = checkpoints(T) if keep else 0
    y = z.new_empty(B, T, H, V)
    finals = R.new_empty(B, H, 3, V, V), R.new_empty(B, H, V), R.new_empty(B, H, V)
    saved = R.new_empty(B, N, H, 3, V, V), R.new_empty(B, N, H, V), R.new_empty(B, N, H, V)
    states = R.contiguous(), y0.contiguous(), c0.contiguous()
    with steps.device_of(z):
        _launch((z, k, v, beta), states, reset, y, finals, saved, finals[0], version, keep, False)
    return y, *finals, *saved


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
    version: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, T, H, _, V = z.shape
    D = padded(V)
    X = R.new_empty(B, H, T, (9 if version == "A" else 8) * D)
    finals = R.new_empty(B, H, 3, V, V), R.new_empty(B, H, V), R.new_empty(B, H, V)
    dz, dk, dv, dbeta = (x.new_empty(x.shape) for x in (z, k, v, beta))
    dR, dy0, dc0 = R.new_empty(B, H, 3, V, V), R.new_empty(B, H, V), R.new_empty(B, H, V)
    dy, k = unit_stride(dy), unit_stride(k)
    with steps.device_of(z):
        _launch((z, k, v, beta), (R, y0, c0), reset, y, finals, (ckR, cky, ckc), X, version, False, True)
        _back[(B * H,)](
            dy, dR_T.contiguous(), dy_T.contiguous(), dc_T.contiguous(), k, beta, steps.flags(reset, R), finals[0], ckR, X,
            dz, dk, dv, dbeta, dR, dy0, dc0,
            *k.stride()[:4], *beta.stride(), *dy.stride()[:3], H, T, checkpoints(T),
            V, D, steps.SEGMENT, steps.AHEAD, version, reset is not None,
            num_warps=steps.warps(BACKWARD_WARPS, D),
        )  # fmt: skip
    return dz, dk, dv, dbeta, dR, dy0, dc0
