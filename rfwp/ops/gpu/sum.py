"""`sum` in Triton: the chunk-parallel form of `delta`, where what is written is the value itself."""

import torch
from torch import Tensor

from rfwp.ops.gpu import delta_chunk
from rfwp.ops.gpu.delta_chunk import checkpoints as checkpoints


def trace_size(B: int, T: int, H: int, K: int, V: int, dtype: torch.dtype) -> int:
    """How many float32 numbers forward leaves for backward beside the copies: none, but for large heads."""
    return delta_chunk.trace_size(B, T, H, K, V, dtype, delta=False)


def forward(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, reset: Tensor | None, keep: bool, phi: str = "identity"
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return delta_chunk.forward(q, k, v, None, state, reset, keep, phi)


def backward(
    dy: Tensor,
    dstate: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    reset: Tensor | None,
    starts: Tensor,
    trace: Tensor,
    phi: str = "identity",
    out: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, into `out` where given, and of the first state."""
    into = None if out is None else (*out, out[0])
    dq, dk, dv, _, dW = delta_chunk.backward(dy, dstate, q, k, v, None, reset, starts, trace, phi, out=into)
    return dq, dk, dv, dW
