"""`sum` in Triton: the chunk-parallel form of `delta`, where what is written is the value itself."""

from torch import Tensor

from rfwp.ops.gpu import delta_chunk
from rfwp.ops.gpu.delta import checkpoints as checkpoints


def forward(q: Tensor, k: Tensor, v: Tensor, state: Tensor, reset: Tensor | None, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    return delta_chunk.forward(q, k, v, None, state, reset, keep)


def backward(
    dy: Tensor, dstate: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Tensor, reset: Tensor | None, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv, _, dW = delta_chunk.backward(dy, dstate, q, k, v, None, reset, starts)
    return dq, dk, dv, dW
