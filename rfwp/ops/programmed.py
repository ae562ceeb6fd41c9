"""Fast nets run straight from a slow net's output u: one tensor in, one gradient out, maps and sigmoids inside the kernels.

Between the slow net's projection and an op stand feature maps, sigmoids and, on the way back, a concatenation of all
gradients; each of them reads and writes the whole sequence once more. Here the kernels read their parts of u where they
lie, and write the gradients of these parts into one du. Only the gpu backend does so, and `covers` says where; elsewhere
the layers compose the same thing from maps and ops.

u (B, T, H, P) has the layout of `Composition.layout`, the learning rates last:
    linear     q k v [β]
    rnn        q k v of W, k v of R, β of W and R
    lstm       the same for each gate u, f, o, then the six β
    recurrent  q k v β
"""

import torch
from torch import Tensor

from rfwp.ops.backend import copies, full_precision, implementation, needs_checkpoints, resolve, trace_size
from rfwp.ops.registration import register

MAPS = ("identity", "softmax", "elu", "elu_sum", "elu_sum_eps")
"""Feature maps that the kernels have, by their names in `rfwp.fwp.maps`."""
NEEDED = {
    "sum": ("sum",),
    "delta": ("delta",),
    "delta + delta_rnn": ("delta", "delta_rnn"),
    "delta + delta_lstm": ("delta", "delta_lstm"),
    "recurrent_delta": ("recurrent_delta",),
}
"""The ops behind each plan of a layer."""
GATES = 3
SHORTEST = 8
"""Steps that are worth a chunk."""


def covers(plan: str, u: Tensor, d: int, phi: str | None, backend: str) -> bool:
    """Whether the ops of a plan can run on u as it is, with the feature map of that name."""
    on_gpu = u.device.type == "cuda" or backend == "gpu"
    if not on_gpu or phi not in MAPS or plan not in NEEDED or u.shape[1] < SHORTEST:
        return False
    return all(resolve(op, backend, u, d, d) == "gpu" for op in NEEDED[plan])


def _forward(op: str, *arguments: object) -> tuple[Tensor, ...]:
    return implementation(op, "gpu").forward(*arguments)


def _backward(op: str, *arguments: object) -> tuple[Tensor, ...]:
    return implementation(op, "gpu").backward(*arguments)


def _linear_parts(u: Tensor, rule: str) -> tuple[Tensor, ...]:
    """q, k, v and, for the delta rule, β"""
    d = u.shape[-1] // 3
    q, k, v, beta = u.split((d, d, d, u.shape[-1] - 3 * d), dim=-1)
    return (q, k, v, beta.squeeze(-1)) if rule == "delta" else (q, k, v)


def _rnn_parts(u: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """q, k, v, β of W and k, v, β of R"""
    d = (u.shape[-1] - 2) // 5
    q, k, v, k_R, v_R, beta, beta_R = u.split((d, d, d, d, d, 1, 1), dim=-1)
    return (q, k, v, beta.squeeze(-1)), (k_R, v_R, beta_R.squeeze(-1))


def _lstm_parts(u: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The same with the gates in a dimension after the heads."""
    vectors, betas = u.split((u.shape[-1] - 2 * GATES, 2 * GATES), dim=-1)
    q, k, v, k_R, v_R = vectors.unflatten(-1, (GATES, 5, vectors.shape[-1] // (5 * GATES))).unbind(-2)  # B T H 3 d
    beta, beta_R = betas.unflatten(-1, (GATES, 2)).unbind(-1)
    return (q, k, v, beta), (k_R, v_R, beta_R)


def _empty(u: Tensor) -> Tensor:
    """Room for a gradient, contiguous."""
    return torch.empty_like(u, memory_format=torch.contiguous_format)


# --- linear: y_t = W_t φ(q_t) ---


def linear(u: Tensor, W: Tensor, reset: Tensor | None, *, rule: str, phi: str) -> tuple[Tensor, Tensor]:
    """The Linear Transformer (rule "sum") and the Delta Net (rule "delta"), from u and the state W: y and the next W."""
    y, W, *_ = _run_linear(u, W, reset, needs_checkpoints(u, W), rule, phi)
    return y, W


def _linear(u: Tensor, W: Tensor, reset: Tensor | None, keep: bool, rule: str, phi: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    maps = (phi, True) if rule == "delta" else (phi,)
    with full_precision(u):
        y, W_T, starts, trace = _forward(rule, *_linear_parts(u, rule), W, reset, keep, *maps)
        return y, W_T, starts, trace


def _linear_shapes(u, W, reset, keep, rule, phi):
    (B, T, H, _), (V, K) = u.shape, W.shape[-2:]
    n = copies(rule, "gpu", keep, T, K, V, u.dtype)
    size = trace_size(rule, "gpu", keep, B, T, H, K, V, u.dtype)
    return u.new_empty(B, T, H, V), W.new_empty(W.shape), W.new_empty(B, n, H, V, K), W.new_empty(size)


def _linear_backward(
    dy: Tensor, dW_T: Tensor, u: Tensor, W: Tensor, reset: Tensor | None, starts: Tensor, trace: Tensor, rule: str, phi: str
) -> tuple[Tensor, Tensor]:
    du = _empty(u)
    maps = (phi, True) if rule == "delta" else (phi,)
    with full_precision(u):
        parts, out = _linear_parts(u, rule), _linear_parts(du, rule)
        *_, dW = _backward(rule, dy, dW_T, *parts, W, reset, starts, trace, *maps, out)
    return du, dW


def _linear_backward_shapes(dy, dW_T, u, W, reset, starts, trace, rule, phi):
    return _empty(u), W.new_empty(W.shape)


_run_linear = register(
    "programmed_linear",
    _linear,
    _linear_shapes,
    _linear_backward,
    _linear_backward_shapes,
    tensors=2,
    outputs=2,
)


# --- rnn: y_t = W_t φ(q_t) + R_t softmax(y_{t-1}), version B ---


def rnn(
    u: Tensor, W: Tensor, R: Tensor, y0: Tensor, reset: Tensor | None, *, phi: str, version: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The Delta RNN, from u and the state: y and the next W, R, y."""
    y, W, R, y_T, *_ = _run_rnn(u, W, R, y0, reset, needs_checkpoints(u, W, R, y0), phi, version)
    return y, W, R, y_T


def _rnn(
    u: Tensor, W: Tensor, R: Tensor, y0: Tensor, reset: Tensor | None, keep: bool, phi: str, version: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    ours, theirs = _rnn_parts(u)
    with full_precision(u):
        z, W_T, *kept = _forward("delta", *ours, W, reset, keep, phi, True)
        y, R_T, y_T, *kept_R = _forward("delta_rnn", z, *theirs, R, y0, reset, keep, version, True)
    return y, W_T, R_T, y_T, *kept, *kept_R  # type: ignore[return-value]


def _rnn_shapes(u, W, R, y0, reset, keep, phi, version):
    (B, T, H, _), (V, K) = u.shape, W.shape[-2:]
    n, m = copies("delta", "gpu", keep, T, K, V, u.dtype), implementation("delta_rnn", "gpu").checkpoints(T) if keep else 0
    trace = W.new_empty(trace_size("delta", "gpu", keep, B, T, H, K, V, u.dtype))
    trace_R = R.new_empty(trace_size("delta_rnn", "gpu", keep, B, T, H, V, version))
    state = tuple(x.new_empty(x.shape) for x in (W, R, y0))
    kept_R = R.new_empty(B, m, H, V, V), R.new_empty(B, m, H, V), trace_R
    return u.new_empty(B, T, H, V), *state, W.new_empty(B, n, H, V, K), trace, *kept_R


def _rnn_backward(
    dy: Tensor,
    dW_T: Tensor,
    dR_T: Tensor,
    dy_T: Tensor,
    u: Tensor,
    W: Tensor,
    R: Tensor,
    y0: Tensor,
    reset: Tensor | None,
    y: Tensor,
    starts: Tensor,
    trace: Tensor,
    ckR: Tensor,
    cky: Tensor,
    trace_R: Tensor,
    phi: str,
    version: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    du, dz = _empty(u), torch.empty_like(y)
    (ours, theirs), (out, out_R) = _rnn_parts(u), _rnn_parts(du)
    with full_precision(u):
        # z was not kept: the kernels ask for nothing but its shape
        arguments = (dy, dR_T, dy_T, y, *theirs, R, y0, reset, y, ckR, cky, trace_R, version, True)
        *_, dR, dy0 = _backward("delta_rnn", *arguments, (dz, *out_R))
        *_, dW = _backward("delta", dz, dW_T, *ours, W, reset, starts, trace, phi, True, out)
    return du, dW, dR, dy0


def _rnn_backward_shapes(dy, dW_T, dR_T, dy_T, u, W, R, y0, reset, y, starts, trace, ckR, cky, trace_R, phi, version):
    return _empty(u), *(x.new_empty(x.shape) for x in (W, R, y0))


_run_rnn = register(
    "programmed_rnn",
    _rnn,
    _rnn_shapes,
    _rnn_backward,
    _rnn_backward_shapes,
    tensors=4,
    outputs=4,
    keeps_y=True,
)


# --- lstm: three gates, each with its W and R ---


def lstm(
    u: Tensor, W: Tensor, R: Tensor, y0: Tensor, c0: Tensor, reset: Tensor | None, *, phi: str, version: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The Delta LSTM with a query for each gate, from u and the state W, R (B, H, 3, V, V), y, c: y and the next state."""
    keep = needs_checkpoints(u, W, R, y0, c0)
    y, W, R, y_T, c_T, *_ = _run_lstm(u, W, R, y0, c0, reset, keep, phi, version)
    return y, W, R, y_T, c_T


def _lstm(
    u: Tensor, W: Tensor, R: Tensor, y0: Tensor, c0: Tensor, reset: Tensor | None, keep: bool, phi: str, version: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    ours, theirs = _lstm_parts(u)
    with full_precision(u):
        z, W_T, *kept = _forward("delta", *ours, W.flatten(1, 2), reset, keep, phi, True)
        z = z.unflatten(2, (W.shape[1], GATES))
        y, R_T, y_T, c_T, *kept_R = _forward("delta_lstm", z, *theirs, R, y0, c0, reset, keep, version, True)
    return y, W_T.view(W.shape), R_T, y_T, c_T, *kept, *kept_R  # type: ignore[return-value]


def _lstm_shapes(u, W, R, y0, c0, reset, keep, phi, version):
    (B, T, H, _), (V, K) = u.shape, W.shape[-2:]
    n, m = copies("delta", "gpu", keep, T, K, V, u.dtype), implementation("delta_lstm", "gpu").checkpoints(T) if keep else 0
    trace = W.new_empty(trace_size("delta", "gpu", keep, B, T, H * GATES, K, V, u.dtype))
    trace_R = R.new_empty(trace_size("delta_lstm", "gpu", keep, B, T, H, V, version))
    state = tuple(x.new_empty(x.shape) for x in (W, R, y0, c0))
    kept_R = R.new_empty(B, m, H, GATES, V, V), R.new_empty(B, m, H, V), R.new_empty(B, m, H, V), trace_R
    return u.new_empty(B, T, H, V), *state, W.new_empty(B, n, H * GATES, V, K), trace, *kept_R


def _lstm_backward(
    dy: Tensor,
    dW_T: Tensor,
    dR_T: Tensor,
    dy_T: Tensor,
    dc_T: Tensor,
    u: Tensor,
    W: Tensor,
    R: Tensor,
    y0: Tensor,
    c0: Tensor,
    reset: Tensor | None,
    y: Tensor,
    starts: Tensor,
    trace: Tensor,
    ckR: Tensor,
    cky: Tensor,
    ckc: Tensor,
    trace_R: Tensor,
    phi: str,
    version: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    B, T, H, V = y.shape
    du, dz = _empty(u), y.new_empty(B, T, H, GATES, V)
    (ours, theirs), (out, out_R) = _lstm_parts(u), _lstm_parts(du)
    with full_precision(u):
        # z was not kept: the kernels ask for nothing but its shape
        arguments = (dy, dR_T, dy_T, dc_T, dz, *theirs, R, y0, c0, reset, y, ckR, cky, ckc, trace_R, version, True)
        *_, dR, dy0, dc0 = _backward("delta_lstm", *arguments, (dz, *out_R))
        arguments = (dz.flatten(2, 3), dW_T.flatten(1, 2), *ours, W.flatten(1, 2), reset, starts, trace, phi, True)
        *_, dW = _backward("delta", *arguments, out)
    return du, dW.view(W.shape), dR, dy0, dc0


def _lstm_backward_shapes(
    dy, dW_T, dR_T, dy_T, dc_T, u, W, R, y0, c0, reset, y, starts, trace, ckR, cky, ckc, trace_R, phi, version
):
    return _empty(u), *(x.new_empty(x.shape) for x in (W, R, y0, c0))


_run_lstm = register(
    "programmed_lstm",
    _lstm,
    _lstm_shapes,
    _lstm_backward,
    _lstm_backward_shapes,
    tensors=5,
    outputs=5,
    keeps_y=True,
)


# --- recurrent: the program itself depends on y_{t-1} ---


def recurrent(u: Tensor, R: Tensor, W: Tensor, y0: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The Recurrent Delta Net, from u, the slow weights R (H, P, d) and the state: y and the next W, y."""
    y, W, y_T, *_ = _run_recurrent(u, R, W, y0, reset, needs_checkpoints(u, R, W, y0))
    return y, W, y_T


def _recurrent_weights(R: Tensor) -> tuple[Tensor, ...]:
    """R_q, R_k, R_v, R_beta"""
    d = R.shape[-1]
    R_q, R_k, R_v, R_beta = R.split((d, d, d, 1), dim=1)
    return R_q, R_k, R_v, R_beta.squeeze(1)


def _recurrent(
    u: Tensor, R: Tensor, W: Tensor, y0: Tensor, reset: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    with full_precision(u):
        y, *rest = _forward("recurrent_delta", *_linear_parts(u, "delta"), *_recurrent_weights(R), W, y0, reset, keep)
    return y, *rest  # type: ignore[return-value]


def _recurrent_shapes(u, R, W, y0, reset, keep):
    (B, T, H, _), (V, K) = u.shape, W.shape[-2:]
    n = implementation("recurrent_delta", "gpu").checkpoints(T) if keep else 0
    trace = W.new_empty(trace_size("recurrent_delta", "gpu", keep, B, T, H, K, V))
    kept = W.new_empty(B, n, H, V, K), W.new_empty(B, n, H, V), trace
    return u.new_empty(B, T, H, V), W.new_empty(W.shape), y0.new_empty(y0.shape), *kept


def _recurrent_backward(
    dy: Tensor,
    dW_T: Tensor,
    dy_T: Tensor,
    u: Tensor,
    R: Tensor,
    W: Tensor,
    y0: Tensor,
    reset: Tensor | None,
    y: Tensor,
    ckW: Tensor,
    cky: Tensor,
    trace: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    du, dR = _empty(u), _empty(R)
    parts, out = _linear_parts(u, "delta"), _linear_parts(du, "delta")
    with full_precision(u):
        arguments = (dy, dW_T, dy_T, *parts, *_recurrent_weights(R), W, y0, reset, y, ckW, cky, trace)
        *_, dW, dy0 = _backward("recurrent_delta", *arguments, (*out, dR))
    return du, dR, dW, dy0


def _recurrent_backward_shapes(dy, dW_T, dy_T, u, R, W, y0, reset, y, ckW, cky, trace):
    return _empty(u), *(x.new_empty(x.shape) for x in (R, W, y0))


_run_recurrent = register(
    "programmed_recurrent",
    _recurrent,
    _recurrent_shapes,
    _recurrent_backward,
    _recurrent_backward_shapes,
    tensors=4,
    outputs=3,
    keeps_y=True,
)
