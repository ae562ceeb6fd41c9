"""Causal softmax attention in Triton: tiles of scores on tensor cores, none of them ever in memory.

    S = Q Kᵀ / sqrt(d),  P = softmax(causal S),  Y = (M ⊙ P) V / (1 - p)                  M: what dropout keeps
    dV = (M ⊙ P)ᵀ dY / (1 - p),  dS = P ⊙ (M ⊙ (dY Vᵀ) / (1 - p) - rowsum(dY ⊙ Y)),  dQ = dS K / sqrt(d),  dK = dSᵀ Q / sqrt(d)

Forward leaves log2 Σ exp2 of every row, so that backward has P from one exponential. Backward is two launches, one over tiles of
queries (dQ) and one over tiles of keys (dK, dV): both compute S again, and nothing is summed by several programs.

Heads are small here, so time goes into what is done to every score, not into products:
- Only tiles on the diagonal look at the mask.
- Scores stay in the units of q · k; the scale is part of the one multiply-add before exp2.
- A product's result becomes the next one's operand as it lies. TF32 wants columns t, t + 4 of eight where a result has 2t,
  2t + 1: `times` calls the columns so, and the other operand's rows are loaded in that order (`paired`).
- Tensor cores cut numbers to TF32. Operands from memory are rounded first. P is not: it is raised by the average cut inside the
  exponent, which costs nothing and is as good on average; dS has the factor P.
- One call of the generator decides for four scores, 16 bits each, that lie in one thread both in S and in Sᵀ.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfwp.ops.gpu.attention_tiles import dot, exp2, generator, inside, kept, load, operand, paired, raised, store, times
from rfwp.ops.gpu.launch import launch
from rfwp.ops.gpu.steps import bth, unit_stride

LN2 = tl.constexpr(math.log(2))
"""c · LN2 = 1 / sqrt(d), where c = log2(e) / sqrt(d)."""


@triton.jit
def _queries_of(nT, H):
    """Of a program that has a tile of queries: its pair and tile, batch row and head. Tiles with the most work come first."""
    bh, i = tl.program_id(0) // nT, nT - 1 - tl.program_id(0) % nT
    return bh, i, (bh // H).to(tl.int64), bh % H


@triton.jit
def _attend(
    m, l, o, q_i, k, v, k_s, v_s, t, s0, t0, T, c, random, d, D: tl.constexpr, BD: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, EDGE: tl.constexpr, DROP: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """One tile of keys more: largest scores m, sums l (M, 8), outputs o."""
    s = s0 + tl.arange(0, N)
    at, order = (inside(s, T), inside(paired(s, P), T)) if EDGE else (s, paired(s, P))
    k_j, v_j = load(k, k_s[1], at, d, D, BD, P), load(v, v_s[1], order, d, D, BD, P)
    S = dot(q_i, tl.trans(k_j), P)
    if EDGE:
        S = tl.where(t[:, None] >= s[None, :], S, float("-inf"))
    larger = tl.maximum(m, tl.max(S, 1) * c)
    p = exp2(S * c - (larger - raised(P))[:, None])
    shrink = exp2(m - larger)
    # eight sums a row: they need no exchange between threads
    l = l * shrink[:, None] + tl.sum(p.reshape(M, N // 8, 8), 1)
    if DROP:
        p = tl.where(kept(random, t0, s0, M, N, False), p, 0.0)
    return larger, l, o * shrink[:, None] + times(p, v_j, P)


@triton.jit(do_not_specialize=["T", "H", "nT", "threshold"])
def _forward_kernel(
    q, k, v, seed, y, lse, T, H, nT, c, kept_part, threshold, q_s, k_s, v_s, y_s, D: tl.constexpr, BD: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, DROP: tl.constexpr, KEEP: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    bh, i, b, h = _queries_of(nT, H)
    random = generator(seed, bh, threshold, DROP)
    q, k, v = q + b * q_s[0] + h * q_s[2], k + b * k_s[0] + h * k_s[2], v + b * v_s[0] + h * v_s[2]
    d, t0 = tl.arange(0, BD), i * M
    t = t0 + tl.arange(0, M)
    q_i = load(q, q_s[1], inside(t, T), d, D, BD, P)
    m, l, o = tl.full([M], float("-inf"), tl.float32), tl.zeros([M, 8], tl.float32), tl.zeros([M, BD], tl.float32)
    for s0 in range(0, t0, N):
        m, l, o = _attend(m, l, o, q_i, k, v, k_s, v_s, t, s0, t0, T, c, random, d, D, BD, M, N, False, DROP, P)
    # too few turns to fetch ahead
    for s0 in tl.range(t0, tl.minimum(t0 + M, T), N, num_stages=1):
        m, l, o = _attend(m, l, o, q_i, k, v, k_s, v_s, t, s0, t0, T, c, random, d, D, BD, M, N, True, DROP, P)
    total = tl.sum(l, 1) * tl.exp2(tl.full([], 0.0, tl.float32) - raised(P))
    store(y + b * y_s[0] + h * y_s[2], y_s[1], o / (total * kept_part)[:, None], t, d, T, D)
    if KEEP:
        tl.store(lse + bh.to(tl.int64) * T + t, m + tl.log2(total), mask=t < T)


@triton.jit
def _query_gradient(
    dq_i, q_i, dy_i, lse_i, delta_i, k, v, k_s, v_s, t, s0, t0, T, c, random, d, D: tl.constexpr, BD: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, EDGE: tl.constexpr, DROP: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """dQ + dS K for one tile of keys"""
    s = s0 + tl.arange(0, N)
    at, order = (inside(s, T), inside(paired(s, P), T)) if EDGE else (s, paired(s, P))
    S = dot(q_i, tl.trans(load(k, k_s[1], at, d, D, BD, P)), P)
    if EDGE:
        S = tl.where(t[:, None] >= s[None, :], S, float("-inf"))
    p = exp2(S * c - lse_i[:, None])
    dp = dot(dy_i, tl.trans(load(v, v_s[1], at, d, D, BD, P)), P)
    if DROP:
        dp = tl.where(kept(random, t0, s0, M, N, False), dp, 0.0)
    return dq_i + times(p * (dp - delta_i[:, None]), load(k, k_s[1], order, d, D, BD, P), P)


@triton.jit(do_not_specialize=["T", "H", "nT", "threshold"])
def _query_kernel(
    dy, q, k, v, seed, y, lse, rows, dq, T, H, nT, c, kept_part, threshold, dy_s, q_s, k_s, v_s, y_s, dq_s,
    D: tl.constexpr, BD: tl.constexpr, M: tl.constexpr, N: tl.constexpr, DROP: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """dQ of a tile of queries; and in rows (B, H, nT M, 2), for the keys' turn, the raised log2 of each row's sum and
    (1 - p) rowsum(dY ⊙ Y)."""
    bh, i, b, h = _queries_of(nT, H)
    random = generator(seed, bh, threshold, DROP)
    q, k, v = q + b * q_s[0] + h * q_s[2], k + b * k_s[0] + h * k_s[2], v + b * v_s[0] + h * v_s[2]
    d, t0 = tl.arange(0, BD), i * M
    t = t0 + tl.arange(0, M)
    at, features = inside(t, T), (d < D)[None, :]
    dy_i = tl.load(dy + b * dy_s[0] + h * dy_s[2] + at[:, None] * dy_s[1] + d[None, :], mask=features, other=0.0)
    y_i = tl.load(y + b * y_s[0] + h * y_s[2] + at[:, None] * y_s[1] + d[None, :], mask=features, other=0.0)
    delta_i = tl.sum(dy_i.to(tl.float32) * y_i.to(tl.float32), 1) * kept_part
    # beyond T the infinity makes P zero
    lse_i = tl.where(t < T, tl.load(lse + bh.to(tl.int64) * T + at) - raised(P), float("inf"))
    rows += (bh.to(tl.int64) * nT * M + t) * 2
    tl.store(rows, lse_i)
    tl.store(rows + 1, delta_i)
    q_i, dy_i, dq_i = load(q, q_s[1], at, d, D, BD, P), operand(dy_i, P), tl.zeros([M, BD], tl.float32)
    for s0 in range(0, t0, N):
        dq_i = _query_gradient(
            dq_i, q_i, dy_i, lse_i, delta_i, k, v, k_s, v_s, t, s0, t0, T, c, random, d, D, BD, M, N, False, DROP, P
        )
    for s0 in tl.range(t0, tl.minimum(t0 + M, T), N, num_stages=1):
        dq_i = _query_gradient(
            dq_i, q_i, dy_i, lse_i, delta_i, k, v, k_s, v_s, t, s0, t0, T, c, random, d, D, BD, M, N, True, DROP, P
        )
    store(dq + b * dq_s[0] + h * dq_s[2], dq_s[1], dq_i * (c * LN2 / kept_part), t, d, T, D)


@triton.jit
def _key_gradients(
    dk_j, dv_j, k_j, v_j, q, dy, rows, q_s, dy_s, s, t0, s0, T, c, random, d, D: tl.constexpr, BD: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, EDGE: tl.constexpr, DROP: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """dK + dSᵀ Q and dV + (M ⊙ P)ᵀ dY for one tile of queries, everything transposed"""
    t = t0 + tl.arange(0, N)
    at, order = inside(t, T), inside(paired(t, P), T)
    # loaded as pairs: single numbers would be loaded by every thread for itself
    lse_i, delta_i = tl.split(tl.load(rows + t[:, None] * 2 + tl.arange(0, 2)[None, :]))
    S = dot(k_j, tl.trans(load(q, q_s[1], at, d, D, BD, P)), P)
    if EDGE:
        S = tl.where(t[None, :] >= s[:, None], S, float("-inf"))
    p = exp2(S * c - lse_i[None, :])
    dp = dot(v_j, tl.trans(load(dy, dy_s[1], at, d, D, BD, P)), P)
    p_kept = p
    if DROP:
        p_kept = tl.where(kept(random, t0, s0, M, N, True), p, 0.0)
    dv_j += times(p_kept, load(dy, dy_s[1], order, d, D, BD, P), P)
    dk_j += times(p_kept * dp - p * delta_i[None, :], load(q, q_s[1], order, d, D, BD, P), P)
    return dk_j, dv_j


@triton.jit(do_not_specialize=["T", "rows_T", "H", "nT", "threshold"])
def _key_kernel(
    dy, q, k, v, seed, rows, dk, dv, T, rows_T, H, nT, c, kept_part, threshold, dy_s, q_s, k_s, v_s, dk_s, dv_s,
    D: tl.constexpr, BD: tl.constexpr, M: tl.constexpr, N: tl.constexpr, DROP: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """dK and dV of a tile of keys."""
    bh, s0 = tl.program_id(0) // nT, tl.program_id(0) % nT * M
    b, h = (bh // H).to(tl.int64), bh % H
    random = generator(seed, bh, threshold, DROP)
    q, dy, rows = q + b * q_s[0] + h * q_s[2], dy + b * dy_s[0] + h * dy_s[2], rows + bh.to(tl.int64) * rows_T * 2
    d, s = tl.arange(0, BD), s0 + tl.arange(0, M)
    k_j = load(k + b * k_s[0] + h * k_s[2], k_s[1], inside(s, T), d, D, BD, P)
    v_j = load(v + b * v_s[0] + h * v_s[2], v_s[1], inside(s, T), d, D, BD, P)
    dk_j, dv_j = tl.zeros([M, BD], tl.float32), tl.zeros([M, BD], tl.float32)
    for t0 in tl.range(s0, tl.minimum(s0 + M, T), N, num_stages=1):
        dk_j, dv_j = _key_gradients(
            dk_j, dv_j, k_j, v_j, q, dy, rows, q_s, dy_s, s, t0, s0, T, c, random, d, D, BD, M, N, True, DROP, P
        )
    for t0 in range(s0 + M, T, N):
        dk_j, dv_j = _key_gradients(
            dk_j, dv_j, k_j, v_j, q, dy, rows, q_s, dy_s, s, t0, s0, T, c, random, d, D, BD, M, N, False, DROP, P
        )
    store(dk + b * dk_s[0] + h * dk_s[2], dk_s[1], dk_j * (c * LN2 / kept_part), s, d, T, D)
    store(dv + b * dv_s[0] + h * dv_s[2], dv_s[1], dv_j / kept_part, s, d, T, D)


class Tile(NamedTuple):
    """How a kernel is laid out: M rows of its own, N of the others at a time; M is a multiple of N."""

    M: int
    N: int
    warps: int
    stages: int
    registers: int | None = None
    """The most that a thread may take, where that lets one program more run on a multiprocessor."""

    def options(self) -> dict[str, Any]:
        limit = {} if self.registers is None else {"maxnreg": self.registers}
        return {"M": self.M, "N": self.N, "num_warps": self.warps, "num_stages": self.stages} | limit


class Plan(NamedTuple):
    forward: Tile
    query: Tile
    key: Tile
    precision: str
    """Of the products: bf16, tf32, or tf32x3 (three of them, nearly float32)."""
    BD: int
    """Features of a head, padded to a power of two."""


def plan(D: int, dtype: torch.dtype) -> Plan:
    """Products of bf16 for bf16 inputs, TF32 for float16 and where torch allows it for float32, otherwise three of them."""
    return _plan(D, dtype, torch.get_float32_matmul_precision() == "highest")


@cache
def _plan(D: int, dtype: torch.dtype, strict: bool) -> Plan:
    BD = max(16, triton.next_power_of_2(D))
    precision = "bf16" if dtype == torch.bfloat16 else "tf32x3" if strict and dtype == torch.float32 else "tf32"
    if precision == "bf16":
        tile = Tile(64, 64 if BD <= 64 else 32, 4, 2)
        return Plan(tile, tile, tile, precision, BD)
    if D == 16 and precision == "tf32":
        # with these limits four programs fit on a multiprocessor, and three of the keys' kernel, and nothing is spilled
        return Plan(Tile(64, 64, 4, 1, 128), Tile(64, 64, 4, 2, 128), Tile(64, 64, 4, 1, 168), precision, BD)
    # larger heads hold more in registers and in shared memory: fewer scores at a time
    N = 64 if BD <= 32 and precision == "tf32" else 32 if BD <= 64 else 16
    tile = Tile(64, N, 4, 2 if BD <= 64 else 1)
    return Plan(tile, tile, tile, precision, BD)


def _arguments(D: int, dropout: float) -> tuple[float, float, int]:
    """log2(e) / sqrt(d), the part that dropout keeps, and the smallest random word that is kept (its bits as an int32)."""
    threshold = round(dropout * 2**32)
    return math.log2(math.e) / math.sqrt(D), 1 - dropout, threshold - 2**32 if threshold >= 2**31 else threshold


def forward(
    q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None, keep: bool, dropout: float, p: Plan | None = None
) -> tuple[Tensor, Tensor]:
    """y (B, T, H, d), and for a backward pass log2 of the sum of exp2 of every row of scores (B, H, T).

    dropout is a multiple of 2^-16, and 0 if there is no seed.
    """
    B, T, H, D = q.shape
    p = p or plan(D, q.dtype)
    q, k, v = (unit_stride(x) for x in (q, k, v))
    y, lse = q.new_empty(B, T, H, D), q.new_empty((B, H, T) if keep else (0,), dtype=torch.float32)
    nT = -(-T // p.forward.M)
    with torch.cuda.device_of(q):
        launch(_forward_kernel, B * H * nT,
            q, k, v, lse if seed is None else seed, y, lse, T, H, nT, *_arguments(D, dropout), *(bth(x) for x in (q, k, v, y)),
            D=D, BD=p.BD, DROP=seed is not None, KEEP=keep, P=p.precision, **p.forward.options(),
        )  # fmt: skip
    return y, lse


def backward(
    dy: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seed: Tensor | None,
    y: Tensor,
    lse: Tensor,
    dropout: float,
    out: tuple[Tensor, Tensor, Tensor],
    p: Plan | None = None,
) -> None:
    """The gradients of q, k and v, into `out`."""
    B, T, H, D = q.shape
    p = p or plan(D, q.dtype)
    assert p.query.M % p.key.N == 0
    dy, q, k, v = (unit_stride(x) for x in (dy, q, k, v))
    dq, dk, dv = out
    nT, mT = -(-T // p.query.M), -(-T // p.key.M)
    rows = lse.new_empty(B, H, nT * p.query.M, 2)
    seed_or_any, numbers = lse if seed is None else seed, _arguments(D, dropout)
    shared = {"D": D, "BD": p.BD, "DROP": seed is not None, "P": p.precision}
    with torch.cuda.device_of(q):
        launch(_query_kernel, B * H * nT,
            dy, q, k, v, seed_or_any, y, lse, rows, dq, T, H, nT, *numbers, *(bth(x) for x in (dy, q, k, v, y, dq)),
            **p.query.options(), **shared,
        )  # fmt: skip
        launch(_key_kernel, B * H * mT,
            dy, q, k, v, seed_or_any, rows, dk, dv, T, nT * p.query.M, H, mT, *numbers, *(bth(x) for x in (dy, q, k, v, dk, dv)),
            **p.key.options(), **shared,
        )  # fmt: skip
