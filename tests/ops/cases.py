"""One table of all ops and versions, so that every property is tested once for all of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from rfwp.ops import delta, delta_lstm, delta_rnn, recurrent_delta, sum

SIZES = {"B": 2, "H": 3, "K": 5, "V": 4}


@dataclass(frozen=True)
class Case:
    """An op with the shapes of its arguments and of its state, and the version if it has some."""

    op: Callable[..., Any]
    inputs: dict[str, str]
    state: dict[str, str]
    options: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "-".join([self.op.__name__, *self.options.values()])

    def __call__(
        self, inputs: Sequence[Tensor], state: Sequence[Tensor] | None = None, reset: Tensor | None = None, backend: str = "plain"
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run the op; its state goes in and comes out as a tuple, also where it is a single tensor."""
        single = len(self.state) == 1
        given = state[0] if state is not None and single else None if state is None else tuple(state)
        y, final = self.op(*inputs, state=given, reset=reset, backend=backend, **self.options)
        return y, (final,) if single else final


def shape(pattern: str, T: int, **sizes: int) -> tuple[int, ...]:
    known = SIZES | sizes | {"T": T}
    return tuple(int(letter) if letter.isdigit() else known[letter] for letter in pattern.split())


@dataclass(frozen=True)
class Example:
    inputs: tuple[Tensor, ...]
    state: tuple[Tensor, ...]
    reset: Tensor

    def leaves(self) -> tuple[Tensor, ...]:
        return *self.inputs, *self.state


def example(case: Case, T: int, *, seed: int = 0, dtype: torch.dtype = torch.float64, grad: bool = True, **sizes: int) -> Example:
    """Random arguments as the op wants them, a random state, and resets: at the first step, in the middle, and more."""
    generator = torch.Generator().manual_seed(seed)

    def draw(pattern: str) -> Tensor:
        return torch.randn(shape(pattern, T, **sizes), generator=generator, dtype=torch.float64)

    raw = case.op is recurrent_delta
    inputs = []
    for name, pattern in case.inputs.items():
        x = draw(pattern)
        if name in ("q", "k") and not raw:
            x = x / x.norm(dim=-1, keepdim=True)
        if name == "beta" and not raw:
            x = x.sigmoid()
        inputs.append(x.to(dtype).requires_grad_(grad))
    states = [draw(pattern).to(torch.promote_types(dtype, torch.float32)).requires_grad_(grad) for pattern in case.state.values()]
    reset = torch.rand(shape("B T", T, **sizes), generator=generator) < 0.1
    reset[-1, 0] = reset[0, T // 2] = True
    return Example(tuple(inputs), tuple(states), reset)


def outputs_and_gradients(
    run: Callable[..., tuple[Tensor, tuple[Tensor, ...]]], leaves: Sequence[Tensor]
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """y and the final state, and the gradient of every leaf for one fixed random gradient of all of them."""
    y, state = run()
    outputs = [y, *state]
    generator = torch.Generator().manual_seed(1)
    # rounded to bfloat16, so that it is the same in every dtype
    arriving = [torch.randn(x.shape, generator=generator).bfloat16().to(x.dtype) for x in outputs]
    return outputs, torch.autograd.grad(outputs, leaves, arriving)


def assert_same(actual: Any, expected: Any, tolerance: dict[str, float]) -> None:
    torch.testing.assert_close(actual, expected, **tolerance)


_RNN = {"z": "B T H V", "k": "B T H V", "v": "B T H V", "beta": "B T H"}
_LSTM = {"z": "B T H 3 V", "k": "B T H 3 V", "v": "B T H 3 V", "beta": "B T H 3"}
_DELTA = {"q": "B T H K", "k": "B T H K", "v": "B T H V", "beta": "B T H"}
_MAPS = {"R_q": "H K V", "R_k": "H K V", "R_v": "H V V", "R_beta": "H V"}

CASES = [
    Case(sum, {"q": "B T H K", "k": "B T H K", "v": "B T H V"}, {"W": "B H V K"}),
    Case(delta, _DELTA, {"W": "B H V K"}),
    *[Case(delta_rnn, _RNN, {"R": "B H V V", "y": "B H V"}, {"version": v}) for v in "AB"],
    *[Case(delta_lstm, _LSTM, {"R": "B H 3 V V", "y": "B H V", "c": "B H V"}, {"version": v}) for v in "ABCD"],
    Case(recurrent_delta, _DELTA | _MAPS, {"W": "B H V K", "y": "B H V"}),
]

OPS = list({case.op: case for case in CASES}.values())  # the last version of each

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_op = pytest.mark.parametrize("case", OPS, ids=lambda case: case.name)
every_backend = pytest.mark.parametrize("backend", ["reference", "plain"])
