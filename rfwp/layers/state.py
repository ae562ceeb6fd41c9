"""What goes into a layer: x, its state and resets. Nothing hides in a module; whoever runs it holds its state.

States of layers and models are plain tensors in dicts and tuples, batch first, so that they can be kept, cut and compared.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from rfwp.errors import InvalidInput, check_device, check_reset, check_same, check_shapes
from rfwp.ops.state import autocast_enabled, transforming

S = TypeVar("S")


def map_state(f: Callable[[Tensor], Tensor], state: S) -> S:
    """The same nesting with f of every tensor; None stays None."""
    mapped: Any = state
    if isinstance(state, Tensor):
        mapped = f(state)
    elif isinstance(state, dict):
        mapped = {name: map_state(f, part) for name, part in state.items()}
    elif isinstance(state, tuple | list):
        mapped = tuple(map_state(f, part) for part in state)
    elif state is not None:
        raise InvalidInput(f"a state is made of tensors in dicts and tuples, saw {type(state).__name__}")
    return mapped


def flat(state: Any) -> list[Tensor]:
    """All tensors of a state, in its order."""
    found: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    map_state(keep, state)
    return found


def detach(state: S) -> S:
    """The same state, cut from the graph: truncated backpropagation through time."""
    return map_state(lambda s: s.detach(), state)


def select(state: S, rows: Tensor | Sequence[int] | slice) -> S:
    """Some rows of the batch: indices (n,), a mask (B,) or a slice."""
    # to PyTorch a tuple is one place, and a number takes the dimension away
    index = rows if isinstance(rows, slice) else torch.as_tensor(rows)
    if isinstance(index, Tensor) and (index.dim() != 1 or index.is_floating_point()):
        raise InvalidInput(f"select: rows={rows!r}; use indices like [0, 2], a mask of the batch, or a slice")
    try:
        return map_state(lambda s: s[index], state)
    except IndexError as error:
        raise InvalidInput(f"select: rows={rows!r} do not fit this state: {error}") from None


class Stepwise(nn.Module):
    """A module with `y, state = module(x, state, reset)` that can also take one step at a time."""

    def step(self, x: Tensor, state: Any = None, reset: Tensor | None = None) -> tuple[Tensor, Any]:
        """One step, x (B, inputs), reset (B,) -> y (B, outputs) and the next state. It trains like the whole sequence."""
        check_step(f"{type(self).__name__}.step", "x", x, "B inputs", reset)
        y, state = self(x.unsqueeze(1), state, None if reset is None else reset.unsqueeze(1))
        return y.squeeze(1), state


def may_look(x: Tensor) -> bool:
    """Whether values can be checked: a graph and torch.func show none, and on a GPU every look would wait for it."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and not transforming()


def check_step(where: str, name: str, x: Tensor, pattern: str, reset: Tensor | None) -> None:
    """The input of one step, like "B inputs", and reset (B,), before they get their T."""
    check_shapes(where, {name: (x, pattern)} | ({} if reset is None else {"reset": (reset, "B")}))


def check_state(
    where: str,
    state: dict[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    like: Tensor,
    dtypes: Mapping[str, torch.dtype] | None = None,
) -> None:
    """Names, shapes, dtypes and device of a layer's state, in one line if they do not fit.

    `dtypes` names the tensors that are not floating; all others have the dtype of `like`, or float32 where that is wider.
    """
    expected = ", ".join(shapes) or "nothing"
    if not isinstance(state, dict):
        raise InvalidInput(f"{where}: this state is a {type(state).__name__}; the layer expects a dict with {expected}")
    if set(state) != set(shapes):
        seen = ", ".join(map(str, state)) or "nothing"
        raise InvalidInput(f"{where}: this state has {seen}; the layer expects {expected}; it comes from another model")
    for name, shape in shapes.items():
        tensor = state[name]
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != shape:
            seen = f"has shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else f"is a {type(tensor).__name__}"
            raise InvalidInput(f"{where}: state {name} {seen}, expected {shape}; it comes from another model or batch size")
        given = (dtypes or {}).get(name)
        fitting = (given,) if given else (like.dtype, torch.promote_types(like.dtype, torch.float32))
        if tensor.dtype not in fitting:
            raise InvalidInput(f"{where}: state {name} is {tensor.dtype}, expected {fitting[-1]} for inputs of {like.dtype}")
        check_device(where, f"state {name}", tensor, "the input", like)


def check_input(where: str, x: Tensor, width: int, reset: Tensor | None, weight: Tensor) -> None:
    """x (B, T, width) and reset (B, T), on the device and in the dtype of the weights; autocast converts by itself."""
    if isinstance(x, PackedSequence) or (isinstance(x, Tensor) and x.layout != torch.strided):
        kind = "a PackedSequence" if isinstance(x, PackedSequence) else "not strided"
        why = "outputs do not depend on padding behind them, the last state does"
        raise InvalidInput(f"{where}: x is {kind}; pad it to (B, T, {width}): {why}")
    size = check_shapes(where, {"x": (x, f"B T {width}")})
    check_device(where, "x", x, "the layer", weight)
    if not autocast_enabled(x):
        check_same(where, x=x, weights=weight)
    elif not x.is_floating_point() or (x.dtype == torch.float64) != (weight.dtype == torch.float64):
        raise InvalidInput(
            f"{where}: x is {x.dtype} and the weights {weight.dtype}, which autocast does not convert; try x.float()"
        )
    check_reset(where, reset, size["B"], size["T"], x)
