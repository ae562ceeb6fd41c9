"""The delta rule whose program depends on the fast net's last output, over a whole sequence: the Recurrent Delta Net."""

import torch
from torch import Tensor

from rfwp.errors import check_reset, check_same, check_shapes
from rfwp.fwp.maps import softmax
from rfwp.fwp.rules import delta_rule, read
from rfwp.ops.backend import full_precision, implementation, kept_trace, needs_checkpoints, resolve, trace_size, with_trace
from rfwp.ops.registration import register
from rfwp.ops.state import check_states, forget


def recurrent_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R_q: Tensor,
    R_k: Tensor,
    R_v: Tensor,
    R_beta: Tensor,
    *,
    state: tuple[Tensor, Tensor] | None = None,
    reset: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """s = tanh(y_{t-1})
    q̂ = softmax(q_t + R_q s),  k̂ = softmax(k_t + R_k s),  v̂ = v_t + R_v s,  β̂ = σ(beta_t + R_beta · s)
    W_t = W_{t-1} + β̂ (v̂ - W_{t-1} k̂) ⊗ k̂,  y_t = W_t q̂

    q, k (B, T, H, K), v (B, T, H, V) and beta (B, T, H) are the slow net's outputs before any activation.
    R_q, R_k (H, K, V), R_v (H, V, V), R_beta (H, V). state (W, y) of (B, H, V, K) and (B, H, V), zeros if None; reset
    (B, T) zeroes it before step t. Returns y (B, T, H, V) and the final (W, y).
    Differs from the paper: every head sees its own part of y only, so R is block diagonal, one matrix a head.
    """
    shapes = {"q": (q, "B T H K"), "k": (k, "B T H K"), "v": (v, "B T H V"), "beta": (beta, "B T H")}
    maps = {"R_q": (R_q, "H K V"), "R_k": (R_k, "H K V"), "R_v": (R_v, "H V V"), "R_beta": (R_beta, "H V")}
    size = check_shapes("recurrent_delta", shapes | maps)
    check_same("recurrent_delta", q=q, k=k, v=v, beta=beta, R_q=R_q, R_k=R_k, R_v=R_v, R_beta=R_beta)
    chosen = resolve("recurrent_delta", backend, q, size["K"], size["V"])
    B, T, H, K, V = (size[letter] for letter in "BTHKV")
    check_reset("recurrent_delta", reset, B, T, q)
    W, y = check_states("recurrent_delta", state, {"W": (B, H, V, K), "y": (B, H, V)}, q)
    if chosen == "reference":
        with full_precision(q):
            return recurrent_delta_reference(q, k, v, beta, R_q, R_k, R_v, R_beta, state=(W, y), reset=reset)
    keep = needs_checkpoints(q, k, v, beta, R_q, R_k, R_v, R_beta, W, y)
    outputs, W, y, *_ = _run(q, k, v, beta, R_q, R_k, R_v, R_beta, W, y, reset, keep, chosen)
    return outputs, (W, y)


def recurrent_delta_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R_q: Tensor,
    R_k: Tensor,
    R_v: Tensor,
    R_beta: Tensor,
    *,
    state: tuple[Tensor, Tensor],
    reset: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The definition, one step at a time."""
    (W, y), outputs = state, []
    R_q, R_k, R_v, R_beta = (R.to(W.dtype) for R in (R_q, R_k, R_v, R_beta))
    for t in range(q.shape[1]):
        W, y = forget(W, reset, t), forget(y, reset, t)
        q_t, k_t, v_t, beta_t = (x[:, t].to(W.dtype) for x in (q, k, v, beta))
        s = torch.tanh(y)
        beta_t = (beta_t + (R_beta * s).sum(-1)).sigmoid()
        W = delta_rule(W, softmax(k_t + read(R_k, s)), v_t + read(R_v, s), beta_t)
        y = read(W, softmax(q_t + read(R_q, s)))
        outputs.append(y)
    return torch.stack(outputs, dim=1).to(q.dtype), (W, y)


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R_q: Tensor,
    R_k: Tensor,
    R_v: Tensor,
    R_beta: Tensor,
    W: Tensor,
    y0: Tensor,
    reset: Tensor | None,
    keep: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    with full_precision(q):
        run = implementation("recurrent_delta", backend).forward
        return with_trace("recurrent_delta", backend, run(q, k, v, beta, R_q, R_k, R_v, R_beta, W, y0, reset, keep))


def _forward_shapes(q, k, v, beta, R_q, R_k, R_v, R_beta, W, y0, reset, keep, backend):
    B, T, H, K = q.shape
    V = v.shape[-1]
    n = implementation("recurrent_delta", backend).checkpoints(T) if keep else 0
    trace = W.new_empty(trace_size("recurrent_delta", backend, keep, B, T, H, K, V))
    state = W.new_empty(W.shape), y0.new_empty(y0.shape)
    return v.new_empty(v.shape), *state, W.new_empty(B, n, H, V, K), W.new_empty(B, n, H, V), trace


def _backward(
    dy: Tensor,
    dW_T: Tensor,
    dy_T: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R_q: Tensor,
    R_k: Tensor,
    R_v: Tensor,
    R_beta: Tensor,
    W: Tensor,
    y0: Tensor,
    reset: Tensor | None,
    y: Tensor,
    ckW: Tensor,
    cky: Tensor,
    trace: Tensor,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    with full_precision(q):
        run = implementation("recurrent_delta", backend).backward
        kept = kept_trace("recurrent_delta", backend, trace)
        return run(dy, dW_T, dy_T, q, k, v, beta, R_q, R_k, R_v, R_beta, W, y0, reset, y, ckW, cky, *kept)


def _backward_shapes(dy, dW_T, dy_T, q, k, v, beta, R_q, R_k, R_v, R_beta, W, y0, reset, y, ckW, cky, trace, backend):
    return tuple(x.new_empty(x.shape) for x in (q, k, v, beta, R_q, R_k, R_v, R_beta, W, y0))


_run = register("recurrent_delta", _forward, _forward_shapes, _backward, _backward_shapes, tensors=10, outputs=3, keeps_y=True)
