"""`delta` in Triton: which of the two forms runs, by shape. Both leave the same checkpoints."""

from types import ModuleType

import torch
from torch import Tensor

from rfwp.ops.gpu import delta_chunk, delta_sequential
from rfwp.ops.gpu.delta_chunk import SEGMENT

FORMS: dict[str, ModuleType] = {"sequential": delta_sequential, "chunk": delta_chunk}


def choose(B: int, T: int, H: int, K: int, V: int, dtype: torch.dtype) -> str:
    """`chunk` wherever half a chunk can be filled, and its tiles of keys still fit in registers."""
    return "sequential" if T < 8 or K > 128 else "chunk"


def _form(q: Tensor, v: Tensor) -> ModuleType:
    B, T, H, K = q.shape
    return FORMS[choose(B, T, H, K, v.shape[-1], q.dtype)]


def checkpoints(T: int) -> int:
    return -(-T // SEGMENT)


def forward(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor, reset: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return _form(q, v).forward(q, k, v, beta, state, reset, keep)


def backward(
    dy: Tensor,
    dstate: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    state: Tensor,
    reset: Tensor | None,
    starts: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _form(q, v).backward(dy, dstate, q, k, v, beta, reset, starts)
