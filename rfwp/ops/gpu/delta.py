"""`delta` in Triton: which of the two forms runs, by shape."""

from types import ModuleType

import torch
from torch import Tensor

from rfwp.ops.gpu import delta_chunk, delta_sequential

FORMS: dict[str, ModuleType] = {"sequential": delta_sequential, "chunk": delta_chunk}

SHORTEST = 8
"""Steps that are worth a chunk: half of one."""
LARGEST = 128
"""Keys of which tiles still fit in registers."""


def choose(B: int, T: int, H: int, K: int, V: int, dtype: torch.dtype) -> str:
    """`chunk` wherever half a chunk can be filled, and its tiles of keys still fit in registers."""
    return "sequential" if T < SHORTEST or K > LARGEST else "chunk"


def _form(q: Tensor, v: Tensor) -> ModuleType:
    return FORMS[choose(q.shape[0], q.shape[1], q.shape[2], q.shape[-1], v.shape[-1], q.dtype)]


def _chunked(T: int) -> int:
    """1 from SHORTEST steps on and 0 before, without a question that would split the compiled cases."""
    chunks = T // SHORTEST
    return 2 * chunks // (chunks + 1)


def checkpoints(T: int, K: int, V: int, dtype: torch.dtype) -> int:
    """Before SHORTEST steps it is one in both forms; from there on the chunks of large heads need none."""
    if K > LARGEST:
        return delta_sequential.checkpoints(T)
    if delta_chunk.plan(int(K), int(V), dtype).large:
        return 1 - _chunked(T)
    return delta_chunk.checkpoints(T, K, V, dtype)


def trace_size(B: int, T: int, H: int, K: int, V: int, dtype: torch.dtype) -> int:
    """How many float32 numbers forward leaves for backward beside the copies; H counts all heads, those of all gates."""
    if K > LARGEST:
        return 0
    return _chunked(T) * delta_chunk.trace_size(B, T, H, K, V, dtype, delta=True)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    state: Tensor,
    reset: Tensor | None,
    keep: bool,
    phi: str = "identity",
    sigmoid: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, the final state, copies of the state, and the trace."""
    return _form(q, v).forward(q, k, v, beta, state, reset, keep, phi, sigmoid)


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
    trace: Tensor,
    phi: str = "identity",
    sigmoid: bool = False,
    out: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, beta, into `out` where given, and of the first state."""
    return _form(q, v).backward(dy, dstate, q, k, v, beta, reset, starts, trace, phi, sigmoid, out)
