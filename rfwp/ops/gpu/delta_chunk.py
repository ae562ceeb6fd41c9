"""`sum` and `delta` on tensor cores: a program per batch row, head and block of values walks over chunks of C steps.

Inside a chunk everything is a product of small matrices (the WY form, derived in ops/README.md), W stays in registers:

    A = causal Q Kᵀ,  L = strictly lower diag(β) K Kᵀ,  U = (I + L)^-1 diag(β) (V - K Wᵀ)      (sum: U = V)
    Y = Q Wᵀ + A U,  W <- W + Uᵀ K

Heads of up to 32 take chunks of 16 steps (delta_small.py), larger ones chunks of 64 and a backward pass in two launches
(delta_parallel.py), those of more than 64 keys also a forward pass of which only W walks (delta_large.py). (I + L)^-1 does not
depend on W: for large heads a launch of its own prepares it for all chunks at once.

Forward leaves in `starts` W at the start of every chunk or every few, (B N H V K), and in `trace` the inverses, (B H N C C);
delta_large.py leaves all it needs in a trace of its own.
q and k are mapped by φ (`phi`) and beta by a sigmoid inside the kernels, where asked for; gradients are then those of the raw
inputs. q, k, v may be (B, T, H, G, d) and beta (B, T, H, G): then y is (B, T, H·G, V) and W (B, H·G, V, K).
"""

from functools import cache
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from rfwp.errors import InvalidInput
from rfwp.ops.gpu import delta_large, delta_small
from rfwp.ops.gpu.delta_parallel import backward_kernels
from rfwp.ops.gpu.delta_tiles import (
    head,
    inverse,
    load,
    load_rate,
    mapped,
    matrix,
    mm,
    only,
    prepared,
    segments,
    store,
    walk_of,
    written,
)
from rfwp.ops.gpu.launch import launch
from rfwp.ops.gpu.layout import Sizes, Strides, output_strides, rate_strides, room, sizes_of, vector_strides
from rfwp.ops.gpu.steps import flags

Gradients = tuple[Tensor, Tensor, Tensor, Tensor]
"""Of q, k, v and beta."""

SEGMENT = 64
"""Steps between two copies of a large W; a multiple of every chunk length."""

MAX_KEY = 512
"""A program holds W for all keys and at least 16 values."""


@triton.jit(do_not_specialize=["T", "N", "H"])
def _prepare_kernel(
    k, beta, reset, X, T, N, H, k_s, beta_s, K: tl.constexpr, BK: tl.constexpr, G: tl.constexpr, C: tl.constexpr,
    MAP: tl.constexpr, SIGMOID: tl.constexpr, RESET: tl.constexpr, P: tl.constexpr, PX: tl.constexpr,
):  # fmt: skip
    """The part of a chunk that does not depend on the state, all chunks at once."""
    bh, n = tl.program_id(0) // N, tl.program_id(0) % N
    b, h = (bh // H).to(tl.int64), bh % H
    dk, i = tl.arange(0, BK), tl.arange(0, C)
    t = n * C + i
    k_n, _ = mapped(load(head(k, k_s, b, h, G), k_s, t, dk, T, K), t, dk, T, K, MAP)
    b_n = load_rate(head(beta, beta_s, b, h, G), beta_s, t, T, SIGMOID)
    together, _, _, _ = segments(reset + b * T, t, T, C, RESET)
    X += tl.program_id(0).to(tl.int64) * C * C
    tl.store(X + i[:, None] * C + i[None, :], inverse(k_n, b_n, together, C, P, PX).to(X.dtype.element_ty))


@triton.jit(do_not_specialize=["T", "N", "H", "nV"])
def _forward_kernel(
    q, k, v, beta, X, W, reset, y, W_T, starts, T, N, H, nV, q_s, k_s, v_s, beta_s, y_s,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, G: tl.constexpr, C: tl.constexpr,
    MAP: tl.constexpr, SIGMOID: tl.constexpr, DELTA: tl.constexpr, RESET: tl.constexpr, KEEP: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """W as S (K, V), so that products with K and Q need no transposition."""
    bh, b, h, dk, dv, i = walk_of(nV, H, BK, BV, C)
    q, k, v = head(q, q_s, b, h, G), head(k, k_s, b, h, G), head(v, v_s, b, h, G)
    beta, y = head(beta, beta_s, b, h, G), head(y, y_s, b, h, G)
    X += bh.to(tl.int64) * N * C * C
    reset += b * T
    starts += (b * N * H + h) * V * K
    matrices = H.to(tl.int64) * V * K
    at, inside = matrix(W + (b * H + h) * V * K, dk, dv, K, V)
    S = tl.load(at, mask=inside, other=0.0)
    for n in range(N):
        t = n * C + i
        q_n, _ = mapped(load(q, q_s, t, dk, T, K), t, dk, T, K, MAP)
        k_n, _ = mapped(load(k, k_s, t, dk, T, K), t, dk, T, K, MAP)
        U = load(v, v_s, t, dv, T, V).to(tl.float32)
        together, start, end, through = segments(reset, t, T, C, RESET)
        if KEEP:
            at, inside = matrix(starts + n * matrices, dk, dv, K, V)
            tl.store(at, S, mask=inside)
        if DELTA:
            U, _ = written(S, k_n, U, load_rate(beta, beta_s, t, T, SIGMOID), prepared(X, n, C), start, P)
        A = tl.where(together & (i[:, None] >= i[None, :]), mm(q_n, tl.trans(k_n), P), 0.0)
        store(y, y_s, only(start, mm(q_n, S, P)) + mm(A, U, P), t, dv, T, V)
        S = tl.where(through, S, 0.0) + mm(tl.trans(k_n), only(end, U), P)
    at, inside = matrix(W_T + (b * H + h) * V * K, dk, dv, K, V)
    tl.store(at, S, mask=inside)


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
    every: int = 1
    """Chunks between two copies of W that forward keeps."""
    large: bool = False
    """Whether only W walks over chunks, in both passes: delta_large.py, which has its own blocks of values, warps and stages."""


def plan(K: int, V: int, dtype: torch.dtype, strict: bool | None = None) -> Plan:
    """Products of bf16 for bf16 inputs with large heads; TF32 for other half precision, and for float32 where torch allows it;
    otherwise, or where `strict` says so, three TF32 products, nearly float32.

    Tiles of bf16 products are never narrower than 64: from narrower ones the ptxas 12.8 of Triton 3.6 makes code that reads
    shared memory from anywhere (docs/log.md).
    """
    if K > MAX_KEY:
        raise InvalidInput(f"the gpu backend takes keys of up to {MAX_KEY}, K={K} is too large; use backend='plain'")
    return _plan(K, V, dtype, torch.get_float32_matmul_precision() == "highest" if strict is None else strict)


@cache
def _plan(K: int, V: int, dtype: torch.dtype, strict: bool) -> Plan:
    BK = max(16, triton.next_power_of_2(K))
    BV = min(max(16, triton.next_power_of_2(V)), max(16, 4096 // BK))
    largest = max(BK, triton.next_power_of_2(V))
    precision = "tf32x3" if strict and dtype == torch.float32 else "tf32"
    if dtype == torch.bfloat16 and BK in (64, 128) and V > 32:
        return Plan(64, BK, 64, BK // 16, 1, "bf16", parallel=True, large=BK == delta_large.BK)
    if largest <= 32 or BK > 128 or precision == "tf32x3":
        BV = min(BV, 16 if precision == "tf32x3" else 32)
        split, warps = V > BV, 1 if BK <= 64 else 4 if BK == 128 else 8
        return Plan(16, BK, BV, warps, 2, precision, ready=split, parallel=split, every=1 if largest <= 32 else SEGMENT // 16)
    return Plan(64, BK, min(BV, 32), 4, 1, precision, parallel=True, large=BK == delta_large.BK)


def _inverses(p: Plan, B: int, T: int, H: int, delta: bool) -> int:
    """How many float32 numbers all inverses take."""
    return B * H * -(-T // p.C) * (p.C * p.C // (2 if p.precision == "bf16" else 1)) if delta else 0


def _copies(p: Plan, T: int) -> int:
    return 0 if p.large else -(-T // (p.C * p.every))


def _trace_size(p: Plan, B: int, T: int, H: int, V: int, delta: bool) -> int:
    return sum(delta_large.trace_sizes(B, T, H, V, p.precision, delta)) if p.large else _inverses(p, B, T, H, delta)


def checkpoints(T: int, K: int, V: int, dtype: torch.dtype) -> int:
    """Copies of W that forward leaves."""
    return _copies(plan(int(K), int(V), dtype), T)


def trace_size(B: int, T: int, H: int, K: int, V: int, dtype: torch.dtype, delta: bool) -> int:
    """How many float32 numbers a trace has; H counts all heads, those of all gates."""
    return _trace_size(plan(int(K), int(V), dtype), B, T, H, int(V), delta)


def _meta(p: Plan, K: int, V: int, G: int, delta: bool, reset: Tensor | None, phi: str, sigmoid: bool) -> dict[str, Any]:
    return {
        "K": K, "V": V, "BK": p.BK, "BV": p.BV, "G": G, "MAP": phi, "SIGMOID": sigmoid, "DELTA": delta,
        "RESET": reset is not None, "P": p.precision, "num_warps": p.warps, "num_stages": p.stages,
    }  # fmt: skip


def _prepare(k: Tensor, beta: Tensor, reset: Tensor, X: Tensor, sizes: Sizes, meta: dict[str, Any], p: Plan) -> None:
    """(I + L)^-1 of every chunk. It is small and everything rests on it: in float32, but for bf16 products."""
    N = -(-sizes.T // p.C)
    shared = {name: meta[name] for name in ("K", "BK", "G", "MAP", "SIGMOID", "RESET", "P")}
    launch(_prepare_kernel, sizes.B * sizes.H * N,
        k, beta, reset, X, sizes.T, N, sizes.H, vector_strides(k), rate_strides(beta), C=p.C,
        PX="tf32" if p.precision == "bf16" else "tf32x3", num_warps=1 if p.C == 16 else 4, **shared,
    )  # fmt: skip


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    W: Tensor,
    reset: Tensor | None,
    keep: bool,
    phi: str = "identity",
    sigmoid: bool = False,
    p: Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, the final W, copies of W, and the trace. Without beta the rule is the sum."""
    sizes = B, T, H, G, K, V = sizes_of(q, v)
    p = p or plan(K, V, q.dtype)
    N, nV, delta = -(-T // p.C), -(-V // p.BV), beta is not None
    W = W.contiguous()
    y, W_T = v.new_empty(B, T, H, V), torch.empty_like(W)
    starts = W.new_empty(B, _copies(p, T) if keep else 0, H, V, K)
    flag, meta = flags(reset, q), _meta(p, K, V, G, delta, reset, phi, sigmoid)
    # the sum rule has no rate: any pointer will do
    rate, rate_s = (k, vector_strides(k)[:4]) if beta is None else (beta, rate_strides(beta))
    strides = vector_strides(q), vector_strides(k), vector_strides(v), rate_s, output_strides(y, G)
    if p.large:
        with torch.cuda.device_of(q):
            return y, W_T, starts, delta_large.forward_kernels(q, k, v, rate, W, flag, y, W_T, strides, sizes, keep, meta)
    inverses = _inverses(p, B, T, H, delta)
    trace = W.new_empty(inverses if keep else 0)
    # without a trace the inverses of a launch of their own still need a place
    X = _typed(trace if keep or not p.ready else W.new_empty(inverses), p)
    tensors = q, k, v, rate, X, W, flag, y, W_T, starts, T, N, H, nV, *strides
    with torch.cuda.device_of(q):
        if delta and p.ready:
            _prepare(k, rate, flag, X, sizes, meta, p)
        if p.C == 16:
            launch(delta_small.forward_kernel, B * H * nV, *tensors, EVERY=p.every, READY=p.ready, KEEP=keep, **meta)
        else:
            assert p.ready and p.every == 1
            launch(_forward_kernel, B * H * nV, *tensors, C=p.C, KEEP=keep, **meta)
    return y, W_T, starts, trace


def _restarted(
    k: Tensor, v: Tensor, rate: Tensor, X: Tensor, flag: Tensor, starts: Tensor, strides: Strides, sizes: Sizes,
    meta: dict[str, Any], p: Plan,
) -> Tensor:  # fmt: skip
    """W at the start of every chunk, (B N H V K): made from the copies where those are fewer. `strides` are of k, v and rate."""
    if p.every == 1:
        return starts
    assert p.C == 16
    B, T, H, _, K, V = sizes
    N, nV = -(-T // p.C), -(-V // p.BV)
    chunks = starts.new_empty(B, N, H, V, K)
    launch(
        delta_small.restart_kernel,
        B * H * nV * -(-N // p.every),
        k,
        v,
        rate,
        X,
        flag,
        starts,
        chunks,
        T,
        N,
        H,
        nV,
        *strides,
        EVERY=p.every,
        **meta,
    )
    return chunks


def _plan_of(starts: Tensor, trace: Tensor, sizes: Sizes, dtype: torch.dtype, delta: bool) -> Plan:
    """The plan that forward had: torch's precision of matrix products may have been changed in between."""
    B, T, H, _, K, V = sizes
    kept = starts.shape[1], trace.shape[0]
    plans = (plan(K, V, dtype, strict) for strict in (None, False, True))
    return next(p for p in plans if (_copies(p, T), _trace_size(p, B, T, H, V, delta)) == kept)


def _typed(trace: Tensor, p: Plan) -> Tensor:
    return trace.view(torch.bfloat16) if p.precision == "bf16" else trace


def backward(
    dy: Tensor,
    dW_T: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    reset: Tensor | None,
    starts: Tensor,
    trace: Tensor,
    phi: str = "identity",
    sigmoid: bool = False,
    out: Gradients | None = None,
    p: Plan | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, beta (empty without beta) and the first W; the first four into `out`, where given."""
    sizes = B, T, H, G, K, V = sizes_of(q, v)
    delta = beta is not None
    p = p or _plan_of(starts, trace, sizes, q.dtype, delta)
    dq, dk, dv, dbeta = out or (room(q), room(k), room(v), k.new_empty(0) if beta is None else room(beta))
    # the sum rule has no rate: any pointer will do
    rate, rate_s = (k, (*k.stride()[:3], 1)) if beta is None else (beta, rate_strides(beta))
    drate, drate_s = (rate, rate_s) if beta is None else (dbeta, rate_strides(dbeta))
    dW_T, dW = dW_T.contiguous(), room(dW_T)
    flag, meta = flags(reset, q), _meta(p, K, V, G, delta, reset, phi, sigmoid)
    q_s, k_s, v_s = vector_strides(q), vector_strides(k), vector_strides(v)
    strides = output_strides(dy, G), q_s, k_s, v_s, rate_s, vector_strides(dq), vector_strides(dk), vector_strides(dv), drate_s
    inputs, gradients = (dy, dW_T, q, k, v, rate), (dq, dk, dv, drate, dW)
    with torch.cuda.device_of(q):
        if p.large:
            delta_large.backward_kernels(*inputs, trace, flag, *gradients, strides, sizes, meta)
            return dq, dk, dv, dbeta, dW
        X = _typed(trace, p)
        starts = _restarted(k, v, rate, X, flag, starts, (k_s, v_s, rate_s), sizes, meta, p)
        tensors = *inputs, X, flag, starts, *gradients
        if p.parallel:
            backward_kernels(*tensors, strides, sizes, {**meta, "C": p.C})
        else:
            # what a program stores must be complete: all values of a head in one
            assert p.C == 16 and p.BV >= V
            launch(delta_small.backward_kernel, B * H, *tensors, T, -(-T // p.C), H, *strides, **meta)
    return dq, dk, dv, dbeta, dW
