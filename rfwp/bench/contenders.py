"""What is timed on one op and shape: our backends, and the peers that do comparable work."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rfwp import ops
from rfwp.bench.options import Mode
from rfwp.bench.shapes import OpShape
from rfwp.errors import RFWPError, unknown
from rfwp.ops.backend import BACKENDS, resolve

OPS: dict[str, Callable[..., Any]] = {
    "sum": ops.sum,
    "delta": ops.delta,
    "delta_rnn": ops.delta_rnn,
    "delta_lstm": ops.delta_lstm,
    "recurrent_delta": ops.recurrent_delta,
}
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
REFERENCE_LIMIT = {"cpu": 2**24, "cuda": 2**28}
"""Numbers in all the W_t that autograd keeps for the reference; above it is not timed."""


@dataclass(frozen=True, eq=False)
class Contender:
    """Somebody's function of some leaves."""

    name: str
    """A backend of ours, or a peer."""
    op: str
    call: Callable[..., tuple[Tensor, ...]]
    """From the leaves to the outputs, y first."""
    leaves: tuple[Tensor, ...]
    ours: bool

    def forward(self) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return self.call(*self.leaves)

    def both(self, dy: Tensor) -> tuple[Tensor, ...]:
        """Forward and backward pass: the gradient of every leaf."""
        y, *_ = self.call(*self.leaves)
        return torch.autograd.grad(y, self.leaves, dy)


def example(
    op: str, shape: OpShape, dtype: torch.dtype, device: torch.device, seed: int = 0
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Inputs with the strides that a layer gives them, slices of one projection, and a state."""
    generator = torch.Generator(device).manual_seed(seed)
    B, T, H, d = shape.B, shape.T, shape.H, shape.d

    def draw(*sizes: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(sizes, generator=generator, device=device).to(dtype)

    kept = torch.promote_types(dtype, torch.float32)
    gates = (3,) if op == "delta_lstm" else ()
    q, k, v, beta = draw(B, T, H, *gates, 3 * d + 1).split((d, d, d, 1), dim=-1)
    beta = beta.squeeze(-1)
    matrix = draw(B, H, *gates, d, d, dtype=kept) / d**0.5
    y = draw(B, H, d, dtype=kept)
    match op:
        case "sum":
            return _leaves(q.softmax(-1), k.softmax(-1), v), (matrix,)
        case "delta":
            return _leaves(q.softmax(-1), k.softmax(-1), v, beta.sigmoid()), (matrix,)
        case "delta_rnn":
            return _leaves(q, k.softmax(-1), v, beta.sigmoid()), (matrix, y)
        case "delta_lstm":
            return _leaves(q, k.softmax(-1), v, beta.sigmoid()), (matrix, y, draw(B, H, d, dtype=kept))
        case "recurrent_delta":
            maps = draw(H, d, d), draw(H, d, d), draw(H, d, d), draw(H, d)
            return _leaves(q, k, v, beta, *(R / d**0.5 for R in maps)), (matrix, y)
    raise unknown("op", op, OPS)


def run_op(
    op: str, backend: str, inputs: tuple[Tensor, ...], state: tuple[Tensor, ...] | None = None, reset: Tensor | None = None
) -> tuple[Tensor, ...]:
    """y and the final state, as one flat tuple."""
    given: Any = state[0] if state is not None and len(state) == 1 else state
    y, final = OPS[op](*inputs, state=given, reset=reset, backend=backend)
    return (y, final) if isinstance(final, Tensor) else (y, *final)


def backends(op: str, wanted: tuple[str, ...], like: Tensor) -> list[str]:
    """Our backends to time: those that can run here. One that was asked for must run."""
    found, d = [], like.shape[-1]
    for name in wanted or BACKENDS:
        try:
            found.append(resolve(op, name, like, d, d))
        except RFWPError:
            if wanted:
                raise
    return list(dict.fromkeys(found))


def ours(op: str, backend: str, leaves: tuple[Tensor, ...]) -> Contender:
    return Contender(backend, op, lambda *x: run_op(op, backend, x), leaves, ours=True)


def affordable(backend: str, shape: OpShape, device: torch.device) -> bool:
    """The reference keeps every W_t."""
    return backend != "reference" or shape.tokens * shape.H * shape.d**2 <= REFERENCE_LIMIT[device.type]


def delta_peers(leaves: tuple[Tensor, ...], mode: Mode) -> list[Contender]:
    """fla's kernels for the delta rule, on the same inputs."""
    if leaves[0].device.type != "cuda":
        return []
    try:
        from fla.ops.delta_rule import chunk_delta_rule, fused_recurrent_delta_rule
    except ImportError:
        return []

    def peer(name: str, kernel: Callable[..., Any]) -> Contender:
        # they want contiguous inputs, and would copy others in every call
        x = _leaves(*(leaf.contiguous() for leaf in leaves))
        return Contender(name, "delta", lambda *x: tuple(kernel(*x, scale=1.0)), x, ours=False)

    # the chunked one refuses float32
    chunk = [peer("fla chunk", chunk_delta_rule)] if mode == "bf16" else []
    return [*chunk, peer("fla recurrent", fused_recurrent_delta_rule)]


def general_peers(shape: OpShape, mode: Mode, device: torch.device) -> list[Contender]:
    """An LSTM as wide as all heads together, and causal softmax attention with as many heads."""
    dtype, width = DTYPES[mode], shape.H * shape.d
    inputs = max(1, width // 2)
    lstm = nn.LSTM(inputs, width, batch_first=True, device=device, dtype=dtype)
    x = torch.randn(shape.B, shape.T, inputs, device=device, dtype=dtype, requires_grad=True)
    # the weights are leaves too: their gradients are part of the work
    weights = tuple(lstm.parameters())
    zeros = torch.zeros(1, shape.B, width, device=device, dtype=dtype)

    def run_lstm(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        return torch.lstm(x, (zeros, zeros), weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)

    qkv = tuple(torch.randn(shape.B, shape.T, shape.H, shape.d, device=device, dtype=dtype, requires_grad=True) for _ in range(3))

    def attention(*qkv: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (x.transpose(1, 2) for x in qkv)  # B H T d
        return (F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2),)

    library = "cuDNN" if device.type == "cuda" else "CPU"
    return [
        Contender(f"{library} nn.LSTM({inputs}, {width})", "LSTM", run_lstm, (x, *weights), ours=False),
        Contender("PyTorch attention", "attention", attention, qkv, ours=False),
    ]


def _leaves(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.detach().requires_grad_() for x in tensors)
