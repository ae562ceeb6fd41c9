"""Which implementation of an op runs: said once, never switched in silence.

A backend is a package with one module an op. Each module has
    forward(*tensors, *state, reset, keep) -> (y, *state, *checkpoints)
    backward(dy, *dstate, *tensors, *state, reset, *checkpoints) -> gradients in the order of the inputs
    checkpoints(T) -> how many copies of the state forward leaves for backward
and, if forward leaves more than that, a last output `trace` that backward gets after the checkpoints,
    trace_size(...) -> how many float32 numbers
    checkpoints(T, K, V, dtype), of sum and delta
with contiguous outputs, y in the dtype of the inputs, states and checkpoints in float32 (float64 for float64 inputs).
ops/README.md has the signatures of all five.
"""

import logging
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from rfwp.errors import InvalidInput, unknown
from rfwp.ops import cpu, gpu, plain
from rfwp.ops.state import autocast_enabled, transforming

log = logging.getLogger("rfwp")

BACKENDS = {
    "reference": "a loop over time in plain PyTorch, the definition of the op",
    "plain": "plain PyTorch with hand-written gradients: chunk-parallel for sum and delta, a loop for the others",
    "cpu": "kernels compiled for this CPU by numba",
    "gpu": "Triton kernels",
}
FASTEST = {"cuda": "gpu", "cpu": "cpu"}
"""By the type of the device; plain on all others."""
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_said: set[tuple[str, str, str | None]] = set()
_AS_IT_IS = nullcontext()


def check_backend(backend: str) -> None:
    if backend != "auto" and backend not in BACKENDS:
        raise unknown("backend", backend, ["auto", *BACKENDS])


def resolve(op: str, backend: str, like: Tensor, K: int, V: int) -> str:
    """The backend that will run: the named one if it can, or for `auto` the fastest one that can."""
    check_backend(backend)
    if like.dtype not in DTYPES:
        raise InvalidInput(f"{op}: dtype {like.dtype} is not supported; use float32, bfloat16, float16 or float64")
    if backend != "auto":
        reason = unsupported(op, backend, like, K, V)
        if reason:
            raise InvalidInput(f"{op}: backend '{backend}' cannot run: {reason}; backend='plain' would work")
        return backend
    device = like.device.type
    fastest = FASTEST.get(device, "plain")
    reason = unsupported(op, fastest, like, K, V)
    chosen = "plain" if reason else fastest
    _say(op, device, chosen, reason and f"not '{fastest}': {reason}")
    return chosen


def unsupported(op: str, backend: str, like: Tensor, K: int, V: int) -> str | None:
    """Why a backend cannot run an op on inputs like these, or None."""
    if backend == "gpu":
        return gpu.unsupported(op, like, K, V)
    if backend == "cpu":
        return cpu.unsupported(like)
    return None


def implementation(op: str, backend: str) -> ModuleType:
    return {"plain": plain, "cpu": cpu, "gpu": gpu}[backend].OPS[op]


def with_trace(op: str, backend: str, outputs: tuple[Tensor, ...]) -> Any:
    """The outputs of a forward pass, with an empty trace where the backend leaves none."""
    traces = hasattr(implementation(op, backend), "trace_size")
    return outputs if traces else (*outputs, outputs[1].new_empty(0))


def kept_trace(op: str, backend: str, trace: Tensor) -> tuple[Tensor, ...]:
    """What a backward pass gets of it."""
    return (trace,) if hasattr(implementation(op, backend), "trace_size") else ()


def copies(op: str, backend: str, keep: bool, T: int, *sizes: Any) -> int:
    """How many copies of the state `sum` and `delta` leave: with a trace beside them, that may depend on more than T."""
    module = implementation(op, backend)
    if not keep:
        return 0
    return module.checkpoints(T, *sizes) if hasattr(module, "trace_size") else module.checkpoints(T)


def trace_size(op: str, backend: str, keep: bool, *sizes: Any) -> int:
    """How many numbers forward leaves for backward beside the checkpoints."""
    module = implementation(op, backend)
    return module.trace_size(*sizes) if keep and hasattr(module, "trace_size") else 0


def needs_checkpoints(*tensors: Tensor | None) -> bool:
    """Whether a backward pass may follow; inside of torch.vmap a tensor does not say so."""
    return torch.is_grad_enabled() and (any(t is not None and t.requires_grad for t in tensors) or transforming())


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """Autocast stays outside: it would turn the products inside an op, and with them the states, to half precision."""
    return torch.autocast(like.device.type, enabled=False) if autocast_enabled(like) else _AS_IT_IS


def check_scan(what: str, backend: str, like: Tensor) -> None:
    """What no op covers runs as a loop over time: an error where another backend was asked for, said where none was."""
    if backend not in ("auto", "reference"):
        raise InvalidInput(f"{what}: backend '{backend}' cannot run: no kernels for it; backend='reference' would work")
    if backend == "auto":
        _say(what, like.device.type, "reference", "no kernels for it" if like.device.type == "cuda" else None)


def _say(op: str, device: str, chosen: str, reason: str | None) -> None:
    """One line the first time that `auto` takes a backend for an op."""
    if torch.compiler.is_compiling() or (op, chosen, reason) in _said:
        return
    _said.add((op, chosen, reason))
    say = log.warning if reason else log.info
    say("%s on %s: backend '%s' (%s)", op, device, chosen, reason or BACKENDS[chosen])
