"""The recurrent part of the Delta RNN over a whole sequence; its feedforward part W_t q_t is the op `delta`."""

import torch
from torch import Tensor

from rfwp.errors import check_reset, check_same, check_shapes, unknown
from rfwp.fwp.maps import softmax
from rfwp.fwp.rules import delta_rule, read
from rfwp.ops.backend import full_precision, implementation, kept_trace, needs_checkpoints, resolve, trace_size, with_trace
from rfwp.ops.registration import register
from rfwp.ops.state import check_states, forget

VERSIONS = ("A", "B")


def delta_rnn(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    version: str = "B",
    *,
    state: tuple[Tensor, Tensor] | None = None,
    reset: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """R_t = R_{t-1} + beta_t (v_t - R_{t-1} k_t) ⊗ k_t
    y_t = z_t + R_t softmax(y_{t-1})             (version B)
    y_t = softmax(z_t + R_t y_{t-1})             (version A)

    z = W_t q_t (B, T, H, V) comes from `delta`; k (B, T, H, V) is already softmaxed, beta (B, T, H) already in (0, 1),
    v (B, T, H, V). state (R, y) of (B, H, V, V) and (B, H, V), zeros if None; reset (B, T) zeroes it before step t.
    Returns y (B, T, H, V) and the final (R, y).
    """
    if version not in VERSIONS:
        raise unknown("version of delta_rnn", version, VERSIONS)
    shapes = {"z": (z, "B T H V"), "k": (k, "B T H V"), "v": (v, "B T H V"), "beta": (beta, "B T H")}
    size = check_shapes("delta_rnn", shapes)
    check_same("delta_rnn", z=z, k=k, v=v, beta=beta)
    chosen = resolve("delta_rnn", backend, z, size["V"], size["V"])
    B, T, H, V = (size[letter] for letter in "BTHV")
    check_reset("delta_rnn", reset, B, T, z)
    R, y = check_states("delta_rnn", state, {"R": (B, H, V, V), "y": (B, H, V)}, z)
    if chosen == "reference":
        with full_precision(z):
            return delta_rnn_reference(z, k, v, beta, version=version, state=(R, y), reset=reset)
    keep = needs_checkpoints(z, k, v, beta, R, y)
    outputs, R, y, *_ = _run(z, k, v, beta, R, y, reset, keep, version, chosen)
    return outputs, (R, y)


def delta_rnn_reference(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    version: str = "B",
    *,
    state: tuple[Tensor, Tensor],
    reset: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The definition, one step at a time."""
    (R, y), outputs = state, []
    for t in range(z.shape[1]):
        R, y = forget(R, reset, t), forget(y, reset, t)
        z_t, k_t, v_t, beta_t = (x[:, t].to(R.dtype) for x in (z, k, v, beta))
        R = delta_rule(R, k_t, v_t, beta_t)
        y = softmax(z_t + read(R, y)) if version == "A" else z_t + read(R, softmax(y))
        outputs.append(y)
    return torch.stack(outputs, dim=1).to(z.dtype), (R, y)


def _forward(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R: Tensor,
    y0: Tensor,
    reset: Tensor | None,
    keep: bool,
    version: str,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    with full_precision(z):
        found = implementation("delta_rnn", backend).forward(z, k, v, beta, R, y0, reset, keep, version)
        return with_trace("delta_rnn", backend, found)


def _forward_shapes(z, k, v, beta, R, y0, reset, keep, version, backend):
    B, T, H, V = z.shape
    n = implementation("delta_rnn", backend).checkpoints(T) if keep else 0
    trace = R.new_empty(trace_size("delta_rnn", backend, keep, B, T, H, V, version))
    state = R.new_empty(R.shape), y0.new_empty(y0.shape)
    return z.new_empty(z.shape), *state, R.new_empty(B, n, H, V, V), R.new_empty(B, n, H, V), trace


def _backward(
    dy: Tensor,
    dR_T: Tensor,
    dy_T: Tensor,
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R: Tensor,
    y0: Tensor,
    reset: Tensor | None,
    y: Tensor,
    ckR: Tensor,
    cky: Tensor,
    trace: Tensor,
    version: str,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    with full_precision(z):
        run = implementation("delta_rnn", backend).backward
        kept = kept_trace("delta_rnn", backend, trace)
        return run(dy, dR_T, dy_T, z, k, v, beta, R, y0, reset, y, ckR, cky, *kept, version)


def _backward_shapes(dy, dR_T, dy_T, z, k, v, beta, R, y0, reset, y, ckR, cky, trace, version, backend):
    return tuple(x.new_empty(x.shape) for x in (z, k, v, beta, R, y0))


_run = register("delta_rnn", _forward, _forward_shapes, _backward, _backward_shapes, tensors=6, outputs=3, keeps_y=True)
