"""The recurrent part of the Delta LSTM over a whole sequence; its feedforward part W_t q_t is the op `delta`."""

import torch
from torch import Tensor

from rfwp.errors import check_reset, check_same, check_shapes, unknown
from rfwp.fwp.fast import lstm_cell
from rfwp.fwp.maps import softmax
from rfwp.fwp.rules import delta_rule, read
from rfwp.ops.backend import full_precision, implementation, kept_trace, needs_checkpoints, resolve, trace_size, with_trace
from rfwp.ops.registration import register
from rfwp.ops.state import check_states, forget

VERSIONS = ("A", "B", "C", "D")


def delta_lstm(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    version: str = "D",
    *,
    state: tuple[Tensor, Tensor, Tensor] | None = None,
    reset: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """R_t = R_{t-1} + beta_t (v_t - R_{t-1} k_t) ⊗ k_t    for each of the gates u, f, o
    u = z_u + R_u s,  f = σ(z_f + R_f s),  o = σ(z_o + R_o s),  s = softmax(y_{t-1})
    c_t = f ⊙ c_{t-1} + (1 - f) ⊙ u,  y_t = o ⊙ c_t        (version D)

    B: u = σ(z_u + R_u s).  C: as B, y_t = o ⊙ c_t + z_u.  A: as B, s = y_{t-1} and y_t = softmax(o ⊙ c_t).

    z = W_t q_t, k, v (B, T, H, 3, V) and beta (B, T, H, 3) hold the gates in the order u, f, o; z comes from `delta`,
    k is already softmaxed, beta already in (0, 1). state (R, y, c) of (B, H, 3, V, V), (B, H, V) and (B, H, V), zeros if
    None; reset (B, T) zeroes it before step t. Returns y (B, T, H, V) and the final (R, y, c).
    """
    if version not in VERSIONS:
        raise unknown("version of delta_lstm", version, VERSIONS)
    shapes = {"z": (z, "B T H 3 V"), "k": (k, "B T H 3 V"), "v": (v, "B T H 3 V"), "beta": (beta, "B T H 3")}
    size = check_shapes("delta_lstm", shapes)
    check_same("delta_lstm", z=z, k=k, v=v, beta=beta)
    chosen = resolve("delta_lstm", backend, z, size["V"], size["V"])
    B, T, H, V = (size[letter] for letter in "BTHV")
    check_reset("delta_lstm", reset, B, T, z)
    R, y, c = check_states("delta_lstm", state, {"R": (B, H, 3, V, V), "y": (B, H, V), "c": (B, H, V)}, z)
    if chosen == "reference":
        with full_precision(z):
            return delta_lstm_reference(z, k, v, beta, version=version, state=(R, y, c), reset=reset)
    keep = needs_checkpoints(z, k, v, beta, R, y, c)
    outputs, R, y, c, *_ = _run(z, k, v, beta, R, y, c, reset, keep, version, chosen)
    return outputs, (R, y, c)


def delta_lstm_reference(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    version: str = "D",
    *,
    state: tuple[Tensor, Tensor, Tensor],
    reset: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The definition, one step at a time."""
    (R, y, c), outputs = state, []
    for t in range(z.shape[1]):
        R, y, c = forget(R, reset, t), forget(y, reset, t), forget(c, reset, t)
        z_t, k_t, v_t, beta_t = (x[:, t].to(R.dtype) for x in (z, k, v, beta))
        R = delta_rule(R, k_t, v_t, beta_t)
        s = y if version == "A" else softmax(y)
        y, c = lstm_cell(version, z_t, read(R, s.unsqueeze(-2)), c)
        outputs.append(y)
    return torch.stack(outputs, dim=1).to(z.dtype), (R, y, c)


def _forward(
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
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    with full_precision(z):
        found = implementation("delta_lstm", backend).forward(z, k, v, beta, R, y0, c0, reset, keep, version)
        return with_trace("delta_lstm", backend, found)


def _forward_shapes(z, k, v, beta, R, y0, c0, reset, keep, version, backend):
    B, T, H, _, V = z.shape
    n = implementation("delta_lstm", backend).checkpoints(T) if keep else 0
    state = (x.new_empty(x.shape) for x in (R, y0, c0))
    trace = R.new_empty(trace_size("delta_lstm", backend, keep, B, T, H, V, version))
    copies = R.new_empty(B, n, H, 3, V, V), R.new_empty(B, n, H, V), R.new_empty(B, n, H, V)
    return z.new_empty(B, T, H, V), *state, *copies, trace


def _backward(
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
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    with full_precision(z):
        run = implementation("delta_lstm", backend).backward
        kept = kept_trace("delta_lstm", backend, trace)
        return run(dy, dR_T, dy_T, dc_T, z, k, v, beta, R, y0, c0, reset, y, ckR, cky, ckc, *kept, version)


def _backward_shapes(dy, dR_T, dy_T, dc_T, z, k, v, beta, R, y0, c0, reset, y, ckR, cky, ckc, trace, version, backend):
    return tuple(x.new_empty(x.shape) for x in (z, k, v, beta, R, y0, c0))


_run = register("delta_lstm", _forward, _forward_shapes, _backward, _backward_shapes, tensors=7, outputs=4, keeps_y=True)
