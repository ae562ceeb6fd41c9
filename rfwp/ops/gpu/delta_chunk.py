"""`sum` and `delta` on tensor cores: a program per batch row, head and block of values walks over chunks of C steps.

Inside a chunk everything is a product of small matrices (the WY form, derived in ops/README.md), W stays in registers:

    A = causal Q Kᵀ,  L = strictly lower diag(β) K Kᵀ,  U = (I + L)^-1 diag(β) (V - K Wᵀ)      (sum: U = V)
    Y = Q Wᵀ + A U,  W <- W + Uᵀ K

(I + L)^-1 does not depend on W: a launch of its own prepares it for all chunks at once.
Rows of W are independent given k, so values are split over programs where that fills the chip; what the backward pass
then has to sum over blocks (dq, dk, dβ) is written apart and added up after, in a fixed order.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfwp.errors import InvalidInput
from rfwp.ops.gpu.delta_parallel import backward_kernels
from rfwp.ops.gpu.delta_tiles import inverse, load, matrix, mm, prepared, segments, store, written
from rfwp.ops.gpu.steps import flags

SEGMENT = 64
"""Steps between two checkpoints of W; a multiple of every chunk length."""

MAX_KEY = 512
"""A program holds W for all keys and at least 16 values."""


@triton.jit(do_not_specialize=["T", "N", "H"])
def _prepare_kernel(
    k, beta, reset, X, T, N, H, k_b, k_t, k_h, k_d, beta_b, beta_t, beta_h,
    K: tl.constexpr, BK: tl.constexpr, C: tl.constexpr, RESET: tl.constexpr,
    P: tl.constexpr, PX: tl.constexpr,
):  # fmt: skip
    """The part of a chunk that does not depend on the state, all chunks at once."""
    bh, n = tl.program_id(0) // N, tl.program_id(0) % N
    b, h = (bh // H).to(tl.int64), bh % H
    i = tl.arange(0, C)
    t = n * C + i
    k_n = load(k + b * k_b + h * k_h, t, tl.arange(0, BK), k_t, k_d, T, K)
    b_n = tl.load(beta + b * beta_b + h * beta_h + t * beta_t, mask=t < T, other=0.0).to(tl.float32)
    causal, _, _, _ = segments(reset + b * T, t, T, C, RESET)
    X += tl.program_id(0).to(tl.int64) * C * C
    tl.store(X + i[:, None] * C + i[None, :], inverse(k_n, b_n, causal, C, P, PX).to(X.dtype.element_ty))


@triton.jit(do_not_specialize=["T", "N", "H", "nV"])
def _forward_kernel(
    q, k, v, beta, X, W, reset, y, W_T, starts, T, N, H, nV,
    q_b, q_t, q_h, q_d, k_b, k_t, k_h, k_d, v_b, v_t, v_h, v_d, beta_b, beta_t, beta_h,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    EVERY: tl.constexpr, DELTA: tl.constexpr, READY: tl.constexpr, RESET: tl.constexpr, KEEP: tl.constexpr,
    P: tl.constexpr, PX: tl.constexpr,
):  # fmt: skip
    bh, iv = tl.program_id(0) // nV, tl.program_id(0) % nV
    b, h = (bh // H).to(tl.int64), bh % H
    dk, dv, i = tl.arange(0, BK), iv * BV + tl.arange(0, BV), tl.arange(0, C)
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    beta += b * beta_b + h * beta_h
    X += bh.to(tl.int64) * N * C * C
    reset += b * T
    y += (b * T * H + h) * V
    starts += (b * ((N + EVERY - 1) // EVERY) * H + h) * V * K
    matrices = H.to(tl.int64) * V * K
    at, inside = matrix(W + (b * H + h) * V * K, dk, dv, K, V)
    S = tl.load(at, mask=inside, other=0.0)
    for n in range(N):
        t = n * C + i
        q_n = load(q, t, dk, q_t, q_d, T, K)
        k_n = load(k, t, dk, k_t, k_d, T, K)
        v_n = load(v, t, dv, v_t, v_d, T, V).to(tl.float32)
        causal, start, end, through = segments(reset, t, T, C, RESET)
        if KEEP and n % EVERY == 0:
            at, inside = matrix(starts + (n // EVERY) * matrices, dk, dv, K, V)
            tl.store(at, S, mask=inside)
        if DELTA:
            b_n = tl.load(beta + t * beta_t, mask=t < T, other=0.0).to(tl.float32)
            X_n = prepared(X, n, C) if READY else inverse(k_n, b_n, causal, C, P, PX)
            U, _ = written(S, k_n, v_n, b_n, X_n, start, P)
        else:
            U = v_n
        A = tl.where(causal, mm(q_n, tl.trans(k_n), P), 0.0)
        store(y, start[:, None] * mm(q_n, S, P) + mm(A, U, P), t, dv, H * V, T, V)
        S = through * S + mm(tl.trans(k_n), end[:, None] * U, P)
    at, inside = matrix(W_T + (b * H + h) * V * K, dk, dv, K, V)
    tl.store(at, S, mask=inside)


@triton.jit(do_not_specialize=["T", "N", "H", "nV"])
def _restart_kernel(
    k, v, beta, X, reset, starts, chunks, T, N, H, nV,
    k_b, k_t, k_h, k_d, v_b, v_t, v_h, v_d, beta_b, beta_t, beta_h,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr, EVERY: tl.constexpr,
    DELTA: tl.constexpr, READY: tl.constexpr, RESET: tl.constexpr, P: tl.constexpr, PX: tl.constexpr,
):  # fmt: skip
    """From the state at every segment's start to the state at every chunk's start, all segments at once."""
    segments_ = (N + EVERY - 1) // EVERY
    iv, s, bh = tl.program_id(0) % nV, tl.program_id(0) // nV % segments_, tl.program_id(0) // nV // segments_
    b, h = (bh // H).to(tl.int64), bh % H
    dk, dv, i = tl.arange(0, BK), iv * BV + tl.arange(0, BV), tl.arange(0, C)
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    beta += b * beta_b + h * beta_h
    X += bh.to(tl.int64) * N * C * C
    reset += b * T
    chunks += (b * N * H + h) * V * K
    matrices = H.to(tl.int64) * V * K
    at, inside = matrix(starts + ((b * segments_ + s) * H + h) * V * K, dk, dv, K, V)
    S = tl.load(at, mask=inside, other=0.0)
    for n in range(s * EVERY, tl.minimum(s * EVERY + EVERY, N)):
        at, inside = matrix(chunks + n * matrices, dk, dv, K, V)
        tl.store(at, S, mask=inside)
        t = n * C + i
        k_n = load(k, t, dk, k_t, k_d, T, K)
        U = load(v, t, dv, v_t, v_d, T, V).to(tl.float32)
        causal, start, end, through = segments(reset, t, T, C, RESET)
        if DELTA:
            b_n = tl.load(beta + t * beta_t, mask=t < T, other=0.0).to(tl.float32)
            X_n = prepared(X, n, C) if READY else inverse(k_n, b_n, causal, C, P, PX)
            U, _ = written(S, k_n, U, b_n, X_n, start, P)
        S = through * S + mm(tl.trans(k_n), end[:, None] * U, P)


@triton.jit(do_not_specialize=["T", "N", "H", "nV"])
def _backward_kernel(
    dy, dW_T, q, k, v, beta, X, reset, starts, dq, dk_, dv_, dbeta, dW, T, N, H, nV, steps,
    dy_b, dy_t, dy_h, dy_d, q_b, q_t, q_h, q_d, k_b, k_t, k_h, k_d, v_b, v_t, v_h, v_d, beta_b, beta_t, beta_h,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
    DELTA: tl.constexpr, READY: tl.constexpr, RESET: tl.constexpr,
    P: tl.constexpr, PX: tl.constexpr,
):  # fmt: skip
    bh, iv = tl.program_id(0) // nV, tl.program_id(0) % nV
    b, h = (bh // H).to(tl.int64), bh % H
    dk, dv, i = tl.arange(0, BK), iv * BV + tl.arange(0, BV), tl.arange(0, C)
    dy += b * dy_b + h * dy_h
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    beta += b * beta_b + h * beta_h
    X += bh.to(tl.int64) * N * C * C
    reset += b * T
    # dq, dk, dβ: one part for every block of values; `steps` is B T H
    part = iv.to(tl.int64) * steps + b * T * H + h
    dq += part * K
    dk_ += part * K
    dbeta += part
    dv_ += (b * T * H + h) * V
    starts += (b * N * H + h) * V * K
    matrices = H.to(tl.int64) * V * K
    at, inside = matrix(dW_T + (b * H + h) * V * K, dk, dv, K, V)
    dS = tl.load(at, mask=inside, other=0.0)
    for m in range(N):
        n = N - 1 - m
        at, inside = matrix(starts + n * matrices, dk, dv, K, V)
        S = tl.load(at, mask=inside, other=0.0)
        t = n * C + i
        q_n = load(q, t, dk, q_t, q_d, T, K)
        k_n = load(k, t, dk, k_t, k_d, T, K)
        v_n = load(v, t, dv, v_t, v_d, T, V).to(tl.float32)
        dy_n = load(dy, t, dv, dy_t, dy_d, T, V)
        causal, start, end, through = segments(reset, t, T, C, RESET)
        A = tl.where(causal, mm(q_n, tl.trans(k_n), P), 0.0)
        dU = mm(tl.trans(A), dy_n, P) + end[:, None] * mm(k_n, dS, P)
        if DELTA:
            b_n = tl.load(beta + t * beta_t, mask=t < T, other=0.0).to(tl.float32)
            X_n = prepared(X, n, C) if READY else inverse(k_n, b_n, causal, C, P, PX)
            U, x = written(S, k_n, v_n, b_n, X_n, start, P)
            dX = mm(tl.trans(X_n), dU, P)
            dU = b_n[:, None] * dX
        else:
            U = v_n
        store(dv_, dU, t, dv, H * V, T, V)
        dA = tl.where(causal, mm(dy_n, tl.trans(U), P), 0.0)
        store(dq, start[:, None] * mm(dy_n, tl.trans(S), P) + mm(dA, k_n, P), t, dk, H * K, T, K)
        dk_n = mm(tl.trans(dA), q_n, P) + end[:, None] * mm(U, tl.trans(dS), P)
        added = mm(tl.trans(q_n), start[:, None] * dy_n, P)
        if DELTA:
            dL = tl.where(causal & (i[:, None] > i[None, :]), -mm(dX, tl.trans(U), P), 0.0)
            bdL = b_n[:, None] * dL
            dk_n += mm(bdL + tl.trans(bdL), k_n, P) - start[:, None] * mm(dU, tl.trans(S), P)
            tl.store(
                dbeta + t * H,
                (tl.sum(dX * x, 1) + tl.sum(dL * mm(k_n, tl.trans(k_n), P), 1)).to(dbeta.dtype.element_ty),
                mask=t < T,
            )
            added -= mm(tl.trans(k_n), start[:, None] * dU, P)
        store(dk_, dk_n, t, dk, H * K, T, K)
        dS = through * dS + added
    at, inside = matrix(dW + (b * H + h) * V * K, dk, dv, K, V)
    tl.store(at, dS, mask=inside)


class Plan(NamedTuple):
    """How a shape is laid out."""

    C: int
    """Steps a chunk."""
    BK: int
    """Keys, padded to a power of two."""
    BV: int
    """Values a program."""
    warps: int
    stages: int
    """Depth of the pipeline of loads."""
    precision: str
    """Of the products: bf16, tf32, or tf32x3 (three of them, nearly float32)."""
    ready: bool = True
    """Whether (I + L)^-1 is prepared by a launch of its own."""
    parallel: bool = False
    """Whether only dW walks over chunks in the backward pass, and the other gradients are taken for all chunks at once."""


def plan(B: int, T: int, H: int, K: int, V: int, dtype: torch.dtype, backward: bool = False) -> Plan:
    """TF32 products for half precision, and for float32 where torch allows it; otherwise three TF32 products, nearly float32.

    Products of bf16 (precision "bf16") are twice as fast on paper, and not chosen: with tiles narrower than 64 the ptxas 12.8
    of Triton 3.6 compiles them to code that reads shared memory from anywhere (docs/log.md).
    """
    if K > MAX_KEY:
        raise InvalidInput(f"the gpu backend takes keys of up to {MAX_KEY}, K={K} is too large; use backend='plain'")
    BK = max(16, triton.next_power_of_2(K))
    BV = min(max(16, triton.next_power_of_2(V)), max(16, 4096 // BK))
    largest = max(BK, triton.next_power_of_2(V))
    strict = dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    precision = "tf32x3" if strict else "tf32"
    if largest <= 32 or BK > 128 or precision == "tf32x3":
        BV = min(BV, 16 if precision == "tf32x3" else 32)
        return Plan(16, BK, BV, 1 if BK <= 64 else 4 if BK == 128 else 8, 2, precision, parallel=V > BV)
    return Plan(64, BK, min(BV, 32), 4, 1, precision, parallel=True)


def _meta(p: Plan, K: int, V: int, delta: bool, reset: Tensor | None) -> dict[str, Any]:
    return {
        "K": K, "V": V, "BK": p.BK, "BV": p.BV, "C": p.C, "EVERY": SEGMENT // p.C, "DELTA": delta, "READY": p.ready,
        "RESET": reset is not None, "P": p.precision, "PX": _exact(p), "num_warps": p.warps, "num_stages": p.stages,
    }  # fmt: skip


def _exact(p: Plan) -> str:
    """The inverse is small and everything rests on it: float32 for float32 inputs, TF32 for half precision."""
    return "tf32" if p.precision == "bf16" else "tf32x3"


def _prepare(k: Tensor, beta: Tensor | None, reset: Tensor | None, p: Plan) -> Tensor:
    """(I + L)^-1 of every chunk, (B H N C C); nothing where it is not asked for."""
    if beta is None or not p.ready:
        return k
    B, T, H, K = k.shape
    N = -(-T // p.C)
    X = k.new_empty(B * H * N, p.C, p.C, dtype=torch.bfloat16 if p.precision == "bf16" else torch.float32)
    _prepare_kernel[(B * H * N,)](
        k, beta, flags(reset, k), X, T, N, H, *k.stride(), *beta.stride(),
        K=K, BK=p.BK, C=p.C, RESET=reset is not None, P=p.precision, PX=_exact(p), num_warps=1 if p.C == 16 else 4,
    )  # fmt: skip
    return X


def _restart(k: Tensor, v: Tensor, beta: Tensor, X: Tensor, reset: Tensor, starts: Tensor, meta: dict[str, Any]) -> Tensor:
    """W at the start of every chunk, (B N H V K): made from the checkpoints where a segment has several chunks."""
    if meta["EVERY"] == 1:
        return starts
    (B, T, H, K), V = k.shape, v.shape[-1]
    N, nV = -(-T // meta["C"]), -(-V // meta["BV"])
    chunks = starts.new_empty(B, N, H, V, K)
    _restart_kernel[(B * H * nV * -(-N // meta["EVERY"]),)](
        k, v, beta, X, reset, starts, chunks, T, N, H, nV, *k.stride(), *v.stride(), *beta.stride(), **meta
    )
    return chunks


def forward(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, W: Tensor, reset: Tensor | None, keep: bool, p: Plan | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the final W, and W at the start of every segment. Without beta the rule is the sum."""
    B, T, H, K, V = *q.shape, v.shape[-1]
    p = p or plan(B, T, H, K, V, q.dtype)
    nV, N = -(-V // p.BV), -(-T // p.C)
    W = W.contiguous()
    y, W_T = v.new_empty(B, T, H, V), torch.empty_like(W)
    starts = W.new_empty(B, -(-T // SEGMENT) if keep else 0, H, V, K)
    rate = k[..., 0] if beta is None else beta
    with torch.cuda.device_of(q):
        X = _prepare(k, beta, reset, p)
        _forward_kernel[(B * H * nV,)](
            q, k, v, rate, X, W, flags(reset, q), y, W_T, starts, T, N, H, nV,
            *q.stride(), *k.stride(), *v.stride(), *rate.stride(), KEEP=keep, **_meta(p, K, V, beta is not None, reset),
        )  # fmt: skip
    return y, W_T, starts


def backward(
    dy: Tensor,
    dW_T: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    reset: Tensor | None,
    starts: Tensor,
    p: Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, beta (empty without beta) and the first W."""
    B, T, H, K, V = *q.shape, v.shape[-1]
    p = p or plan(B, T, H, K, V, q.dtype, backward=True)
    nV, N = -(-V // p.BV), -(-T // p.C)
    blocks = 1 if p.parallel else nV
    parts = q.dtype if blocks == 1 else torch.float32
    dq, dk = (q.new_empty(blocks, B, T, H, K, dtype=parts) for _ in range(2))
    dbeta = q.new_empty(blocks, *((B, T, H) if beta is not None else (0,)), dtype=parts)
    dv = v.new_empty(B, T, H, V)
    dW_T, dW = dW_T.contiguous(), torch.empty_like(dW_T, memory_format=torch.contiguous_format)
    rate, meta = k[..., 0] if beta is None else beta, _meta(p, K, V, beta is not None, reset)
    with torch.cuda.device_of(q):
        X = _prepare(k, beta, reset, p)
        starts = _restart(k, v, rate, X, flags(reset, q), starts, meta)
        meta.pop("EVERY")
        if p.parallel:
            backward_kernels(dy, dW_T, q, k, v, rate, X, flags(reset, q), starts, dq, dk, dv, dbeta, dW, meta)
        else:
            _backward_kernel[(B * H * nV,)](
                dy, dW_T, q, k, v, rate, X, flags(reset, q), starts, dq, dk, dv, dbeta, dW, T, N, H, nV, B * T * H,
                *dy.stride(), *q.stride(), *k.stride(), *v.stride(), *rate.stride(), **meta,
            )  # fmt: skip
    return added(dq, q.dtype), added(dk, q.dtype), dv, added(dbeta, q.dtype), dW


def added(parts: Tensor, dtype: torch.dtype) -> Tensor:
    return parts[0] if len(parts) == 1 else parts.sum(0).to(dtype)
