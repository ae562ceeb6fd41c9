"""Which implementation of an op runs: said once, never switched in silence.

A backend is a package with one module an op. Each module has
    forward(*tensors, *state, reset, keep) -> (y, *state, *checkpoints)
    backward(dy, *dstate, *tensors, *state, reset, *checkpoints) -> gradients in the order of the inputs
    checkpoints(T) -> how many copies of the state forward leaves for backward
with contiguous outputs, y in the dtype of the inputs, states and checkpoints in float32 (float64 for float64 inputs).
ops/README.md has the signatures of all five.
"""

import logging
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType

import torch
from torch import Tensor

from rfwp.errors import InvalidInput, unknown
from rfwp.ops import plain

log = logging.getLogger("rfwp")

BACKENDS = {
    "reference": "a loop over time in plain PyTorch, the definition of the op",
    "plain": "plain PyTorch with hand-written gradients: chunk-parallel for sum and delta, a loop for the others",
}
_said: set[tuple[str, str]] = set()


def resolve(op: str, backend: str, like: Tensor) -> str:
    """The backend that will run; `auto` takes the fastest one that can."""
    if backend != "auto" and backend not in BACKENDS:
        raise unknown("backend", backend, ["auto", *BACKENDS])
    if like.dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        raise InvalidInput(f"{op}: dtype {like.dtype} is not supported; use float32, bfloat16, float16 or float64")
    if backend != "auto":
        return backend
    chosen = "plain"
    if not torch.compiler.is_compiling() and (op, like.device.type) not in _said:
        _said.add((op, like.device.type))
        log.info("%s on %s: backend '%s' (%s)", op, like.device.type, chosen, BACKENDS[chosen])
    return chosen


def implementation(op: str, backend: str) -> ModuleType:
    assert backend == "plain", backend
    return plain.OPS[op]


def needs_checkpoints(*tensors: Tensor | None) -> bool:
    """Whether a backward pass may follow."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """Autocast stays outside: it would turn the products inside an op, and with them the states, to half precision."""
    device = like.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.autocast(device, enabled=False)
    return nullcontext()
