"""The delta rule over a whole sequence: Delta Net, and the feedforward part of every other delta model."""

import torch
from torch import Tensor

from rfwp.errors import check_reset, check_same, check_shapes
from rfwp.fwp.rules import delta_rule, read
from rfwp.ops.backend import (
    copies,
    full_precision,
    implementation,
    kept_trace,
    needs_checkpoints,
    resolve,
    trace_size,
    with_trace,
)
from rfwp.ops.registration import register
from rfwp.ops.state import check_state, forget


def delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    state: Tensor | None = None,
    reset: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """W_t = W_{t-1} + beta_t (v_t - W_{t-1} k_t) ⊗ k_t,  y_t = W_t q_t

    q, k (B, T, H, K) are already through φ, beta (B, T, H) is already in (0, 1), v (B, T, H, V).
    state W (B, H, V, K), zeros if None; reset (B, T) zeroes it before step t. Returns y (B, T, H, V) and the final W.
    """
    shapes = {"q": (q, "B T H K"), "k": (k, "B T H K"), "v": (v, "B T H V"), "beta": (beta, "B T H")}
    size = check_shapes("delta", shapes)
    check_same("delta", q=q, k=k, v=v, beta=beta)
    chosen = resolve("delta", backend, q, size["K"], size["V"])
    check_reset("delta", reset, size["B"], size["T"], q)
    W = check_state("delta", "state", state, (size["B"], size["H"], size["V"], size["K"]), q)
    if chosen == "reference":
        with full_precision(q):
            return delta_reference(q, k, v, beta, state=W, reset=reset)
    y, W, *_ = _run(q, k, v, beta, W, reset, needs_checkpoints(q, k, v, beta, W), chosen)
    return y, W


def delta_reference(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, state: Tensor, reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition, one step at a time."""
    W, outputs = state, []
    for t in range(q.shape[1]):
        W = forget(W, reset, t)
        q_t, k_t, v_t, beta_t = (x[:, t].to(W.dtype) for x in (q, k, v, beta))
        W = delta_rule(W, k_t, v_t, beta_t)
        outputs.append(read(W, q_t))
    return torch.stack(outputs, dim=1).to(q.dtype), W


def _forward(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor, reset: Tensor | None, keep: bool, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    with full_precision(q):
        found = implementation("delta", backend).forward(q, k, v, beta, state, reset, keep)
        return with_trace("delta", backend, found)


def _forward_shapes(q, k, v, beta, state, reset, keep, backend):
    B, T, H, K = q.shape
    n = copies("delta", backend, keep, T, K, v.shape[-1], q.dtype)
    trace = trace_size("delta", backend, keep, B, T, H, K, v.shape[-1], q.dtype)
    y, W, starts = v.new_empty(v.shape), state.new_empty(state.shape), state.new_empty(B, n, H, v.shape[-1], K)
    return y, W, starts, state.new_empty(trace)


def _backward(
    dy: Tensor,
    dstate: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    state: Tensor,
    reset: Tensor | None,
    checkpoints: Tensor,
    trace: Tensor,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    with full_precision(q):
        run = implementation("delta", backend).backward
        return run(dy, dstate, q, k, v, beta, state, reset, checkpoints, *kept_trace("delta", backend, trace))


def _backward_shapes(dy, dstate, q, k, v, beta, state, reset, checkpoints, trace, backend):
    return tuple(x.new_empty(x.shape) for x in (q, k, v, beta, state))


_run = register("delta", _forward, _forward_shapes, _backward, _backward_shapes, tensors=5, outputs=2)
