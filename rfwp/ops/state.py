"""States of ops: float32 at least, checked on the way in, zeroed where a reset says so."""

import torch
from torch import Tensor

from rfwp.errors import InvalidInput, check_device
from rfwp.fwp.rules import forget_rows


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """States are kept in float32 at least."""
    return torch.promote_types(dtype, torch.float32)


def autocast_enabled(like: Tensor) -> bool:
    """Whether autocast is on where this tensor lives; the meta device knows none."""
    # on GPUs without asking for the name of the device, which takes longer than the rest
    if like.is_cuda:
        return torch.is_autocast_enabled("cuda")
    device = like.device.type
    return device != "meta" and torch.is_autocast_enabled(device)


def transforming() -> bool:
    """Whether this runs inside of torch.func.grad, vmap or another of its transforms; a graph is never traced inside of one."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def check_state(op: str, name: str, state: Tensor | None, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros of the right shape if there is no state; otherwise the state, if it fits. In float32 at least."""
    dtype = state_dtype(like.dtype)
    if state is None:
        return torch.zeros(shape, dtype=dtype, device=like.device)
    if not isinstance(state, Tensor):
        raise InvalidInput(f"{op}: {name} is a {type(state).__name__}, expected a tensor {shape}; it may come from another op")
    if tuple(state.shape) != shape:
        raise InvalidInput(
            f"{op}: {name} has shape {tuple(state.shape)}, expected {shape}; it may come from another model or batch size"
        )
    if state.dtype != dtype:
        raise InvalidInput(f"{op}: {name} is {state.dtype}, expected {dtype} for inputs of {like.dtype}; try .to({dtype})")
    check_device(op, name, state, "the input", like)
    return state


def check_states(op: str, states: tuple[Tensor, ...] | None, shapes: dict[str, tuple[int, ...]], like: Tensor) -> list[Tensor]:
    """The same for a tuple of tensors; `shapes` gives their names in order."""
    given = (None,) * len(shapes) if states is None else states
    if not isinstance(given, tuple | list) or len(given) != len(shapes):
        seen = f"{len(given)} tensors" if isinstance(given, tuple | list) else f"a {type(given).__name__}"
        raise InvalidInput(f"{op}: state is {seen}, expected the tuple ({', '.join(shapes)}); it may come from another op")
    return [check_state(op, f"state {name}", s, shape, like) for s, (name, shape) in zip(given, shapes.items(), strict=True)]


def forget(state: Tensor, reset: Tensor | None, t: int) -> Tensor:
    """Zero the rows of a state (B, ...) whose reset (B, T) is True at step t, whatever is in them: 0 · NaN would stay NaN."""
    if reset is None:
        return state
    return forget_rows(state, reset[:, t])
