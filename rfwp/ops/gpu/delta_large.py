"""`sum` and `delta` for heads of 65 to 128 keys: a walk over chunks does only what depends on the walk, all else is parallel.

With X = (I + L)^-1 and β as in delta_chunk.py, M = I - (strictly lower K Kᵀ) X diag(β), S = Wᵀ (K, V) at a chunk's start and dS
at its end, e = v - W k of every step (ops/README.md):

    prepare   X,  w = M K,  u = M V                                                       all chunks at once
    walk      e = u - w S,  U = β e,  S <- S + Kᵀ U                                       (sum: U = V)
    output    A = causal Q Kᵀ,  Y = Q S + A U                                             all chunks at once
    back      dU = Aᵀ dY + K dS,  dS <- dS + Qᵀ dY - wᵀ β dU                              walks from the last chunk to the first
    chunks    dX = Xᵀ dU,  dV = β dX,  dβ = Σ dX e,  dL = - strictly lower dX Uᵀ,  dA = causal dY Uᵀ    all chunks at once
              dQ = dY Sᵀ + dA K,  dK = dAᵀ Q + U dSᵀ + (β dL + (β dL)ᵀ) K - β dX Sᵀ

So a walk waits for two products a chunk. Between the launches X, A, w, e and S lie in memory, tile by tile and padded: they need
neither masks nor strides, and for bf16 products they are bf16. A walk reads q and k as they are: a launch before it writes φ of
them, or a copy where their strides do not allow wide loads.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from rfwp.ops.gpu.delta_large_backward import back_kernel, chunks_kernel
from rfwp.ops.gpu.delta_large_forward import map_kernel, output_kernel, prepare_kernel, walk_kernel
from rfwp.ops.gpu.launch import launch
from rfwp.ops.gpu.layout import Sizes, Strides, output_strides

C = 64
"""Steps a chunk."""
BK = 128
"""Keys, padded."""


class Launch(NamedTuple):
    """How one kernel runs."""

    BV: int
    """Values a program of a walk, or a turn of the loop of the others."""
    warps: int
    stages: int
    """Depth of the pipeline of loads."""


LAUNCHES = {
    "bf16": {
        "prepare": Launch(64, 4, 1),
        "walk": Launch(64, 4, 3),
        "output": Launch(64, 4, 1),
        "back": Launch(64, 4, 3),
        "chunks": Launch(64, 4, 1),
    },
    "tf32": {
        "inverse": Launch(32, 4, 1),
        "prepare": Launch(32, 4, 1),
        "walk": Launch(32, 4, 2),
        "output": Launch(32, 4, 1),
        "back": Launch(32, 4, 1),
        "chunks": Launch(32, 4, 1),
    },
}
"""By the precision of products, so that no registers spill at 128 × 128, but for "chunks" in TF32: with 144 bytes of them in
memory it takes two thirds of the time that twice the warps take. Without "inverse", "prepare" does its work too."""

MASKED: dict[str, dict[str, Launch]] = {
    "bf16": {"chunks": Launch(64, 8, 1)},
    "tf32": {"back": Launch(32, 8, 1), "chunks": Launch(32, 8, 1)},
}
"""Where resets or maps take registers of their own."""

INVERSE = {"bf16": "tf32", "tf32": "bf16x3"}
"""Products inside (I + L)^-1, by the precision of all others: finer, since everything rests on it."""


def padded(V: int) -> int:
    """Values that a tile has: never less than 128 bytes a row, since from shorter ones beside others the ptxas 12.8 of Triton 3.6
    makes code that reads shared memory from anywhere (docs/log.md)."""
    return 32 if V <= 32 else -(-V // 64) * 64


def trace_sizes(B: int, T: int, H: int, V: int, precision: str, delta: bool) -> tuple[int, ...]:
    """Of what forward leaves for backward, in float32 numbers: a tile of X, w, e, A and S for every head and chunk."""
    tiles = (C * C, C * BK, C * padded(V), C * C, BK * padded(V))
    number, each = B * H * -(-T // C), 2 if precision == "bf16" else 1
    # the sum rule has neither X nor w nor e
    return tuple(number * (size // each) if delta or i > 2 else 0 for i, size in enumerate(tiles))


def _parts(trace: Tensor, sizes: Sizes, meta: dict[str, Any]) -> tuple[Tensor, ...]:
    """X, w, e, A and S in a trace."""
    parts = trace.split(trace_sizes(sizes.B, sizes.T, sizes.H, sizes.V, meta["P"], meta["DELTA"]))
    return tuple(x.view(torch.bfloat16) if meta["P"] == "bf16" else x for x in parts)


def _options(kernel: str, meta: dict[str, Any]) -> dict[str, Any]:
    # walks read what is mapped already
    masked = MASKED[meta["P"]] if meta["RESET"] or (meta["MAP"] != "identity" and kernel == "chunks") else {}
    (BV, warps, stages), VP = masked.get(kernel, LAUNCHES[meta["P"]][kernel]), padded(meta["V"])
    return {"BV": min(BV, VP), "VP": VP, "num_warps": warps, "num_stages": stages}


def _wide(x: Tensor, strides: tuple[int, ...]) -> bool:
    """Whether the compiler knows that rows can be loaded 16 bytes at once."""
    return strides[-1] == 1 and all(s % 16 == 0 for s in strides[:-1]) and x.data_ptr() % 16 == 0


def _ready(
    x: Tensor, strides: tuple[int, ...], sizes: Sizes, precision: str, phi: str = "identity"
) -> tuple[Tensor, tuple[int, ...]]:
    """φ(x) as a walk reads it, and its strides."""
    if phi == "identity" and _wide(x, strides):
        return x, strides
    B, T, H, G, d = *sizes[:4], x.shape[-1]
    width, N = max(16, triton.next_power_of_2(d)), -(-T // C)
    out = x.new_empty(B, T, H, width, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    out_s = output_strides(out, G)
    shape = {"K": d, "BK": width, "G": G, "C": C}
    launch(map_kernel, B * H * N, x, out, T, N, H, strides, out_s, **shape, MAP=phi, num_warps=8, num_stages=1)
    return out, out_s


def forward_kernels(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    W: Tensor,
    reset: Tensor,
    y: Tensor,
    W_T: Tensor,
    strides: Strides,
    sizes: Sizes,
    keep: bool,
    meta: dict[str, Any],
) -> Tensor:
    """Fills y and W_T; the trace, or nothing where it need not be kept. `strides` are of q, k, v, beta and y."""
    B, T, H, _, _, V = sizes
    N, P, delta, (q_s, k_s, v_s, beta_s, y_s) = -(-T // C), meta["P"], meta["DELTA"], strides
    trace = W.new_empty(sum(trace_sizes(B, T, H, V, P, delta)))
    X, w, e, A, starts = _parts(trace, sizes, meta)
    shared = {name: meta[name] for name in ("K", "V", "BK", "G", "SIGMOID", "RESET", "P")} | {"C": C}
    phi_k, phi_k_s = _ready(k, k_s, sizes, P, meta["MAP"])
    launches = [name for name in ("inverse", "prepare") if delta and name in LAUNCHES[P]]
    for name in launches:
        launch(prepare_kernel, B * H * N,
            phi_k, v, beta, reset, X, w, e, T, N, H, phi_k_s, v_s, beta_s,
            PX=INVERSE[P], INVERT=name == launches[0], REST=name == "prepare",
            **shared, **_options(name, meta),
        )  # fmt: skip
    if not delta:
        # the sum rule walks over v itself
        v, v_s = _ready(v, v_s, sizes, P)
    options = _options("walk", meta)
    nV = options["VP"] // options["BV"]
    launch(
        walk_kernel,
        B * H * nV,
        phi_k,
        v,
        beta,
        w,
        e,
        W,
        reset,
        W_T,
        starts,
        T,
        N,
        H,
        nV,
        phi_k_s,
        v_s,
        beta_s,
        DELTA=delta,
        **shared,
        **options,
    )
    launch(output_kernel, B * H * N,
        q, phi_k, v, beta, e, reset, starts, A, y, T, N, H, q_s, phi_k_s, v_s, beta_s, y_s,
        MAP=meta["MAP"], DELTA=delta, KEEP=keep, **shared, **_options("output", meta),
    )  # fmt: skip
    return trace if keep else trace.new_empty(0)


def backward_kernels(
    dy: Tensor,
    dW_T: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    trace: Tensor,
    reset: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    dbeta: Tensor,
    dW: Tensor,
    strides: Strides,
    sizes: Sizes,
    meta: dict[str, Any],
) -> None:
    """Fills dq, dk, dv, dbeta and dW; `strides` are of dy, q, k, v, beta, dq, …"""
    B, T, H = sizes[:3]
    N, P, (dy_s, q_s, k_s, v_s, beta_s, dq_s, dk_s, dv_s, dbeta_s) = -(-T // C), meta["P"], strides
    X, w, e, A, starts = _parts(trace, sizes, meta)
    ends, dU = torch.empty_like(starts), torch.empty_like(e)
    shared = {name: meta[name] for name in ("K", "V", "BK", "G", "SIGMOID", "DELTA", "RESET", "P")} | {"C": C}
    dy, dy_s = _ready(dy, dy_s, sizes, P)
    phi_q, phi_q_s = _ready(q, q_s, sizes, P, meta["MAP"])
    phi_k, phi_k_s = _ready(k, k_s, sizes, P, meta["MAP"])
    options = _options("back", meta)
    nV = options["VP"] // options["BV"]
    launch(back_kernel, B * H * nV,
        dy, dW_T, phi_q, phi_k, beta, w, A, reset, ends, dU, dv, dW, T, N, H, nV,
        dy_s, phi_q_s, phi_k_s, beta_s, dv_s, **shared, **options,
    )  # fmt: skip
    launch(chunks_kernel, B * H * N,
        dy, q, k, phi_q, phi_k, v, beta, X, e, reset, starts, ends, dU, dq, dk, dv, dbeta, T, N, H,
        dy_s, q_s, k_s, phi_q_s, phi_k_s, v_s, beta_s, dq_s, dk_s, dv_s, dbeta_s,
        MAP=meta["MAP"], **shared, **_options("chunks", meta),
    )  # fmt: skip
