"""One generic loop over time: the reference for every composition. Slow, exact, differentiable twice."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from rfwp.errors import InvalidInput
from rfwp.fwp.composition import Composition
from rfwp.fwp.rules import forget_rows, read
from rfwp.fwp.types import Program, State

FeedBack = Callable[[Tensor, Tensor], Tensor]
"""(u_t, y_{t-1}) -> u_t: what a slow net that sees the fast net's output adds to its program."""


class StepCell:
    """One step of a fast net: tensors have no T."""

    def __init__(self, composition: Composition, u: Tensor, state: State, head_size: int, parameters: Mapping[str, Tensor]):
        self.composition, self.head_size, self.parameters = composition, head_size, parameters
        self.programs = composition.programs(u, head_size)
        self.old, self.new = state, dict(state)

    def program(self, name: str) -> Program:
        return self.composition.named("fast matrix", name, self.programs)

    def query(self, name: str) -> Tensor:
        return self.composition.query(self.programs, name)

    def read(self, name: str, query: Tensor, program: Program | None = None) -> Tensor:
        matrix = self.composition.matrix(name, self.head_size)
        program = program or self.program(name)
        key = self.composition.map_key(matrix, program.key)
        beta = None if program.beta is None else program.beta.sigmoid()
        W = self.composition.rule_of(matrix).update(self.old[name], key, program.value, beta)
        self.new[name] = W
        return read(W, self.composition.map_query(matrix, query))

    def previous(self, name: str) -> Tensor:
        if name not in self.old:
            raise InvalidInput(f"{self.composition.fast.title} keeps no '{name}' from step to step; name it in vectors(d)")
        return self.old[name]

    def keep(self, name: str, value: Tensor) -> None:
        if value.shape != self.previous(name).shape:
            seen, expected = tuple(value.shape), tuple(self.old[name].shape)
            raise InvalidInput(
                f"{self.composition.fast.title} keeps '{name}' of shape {seen}, expected {expected}; see vectors(d)"
            )
        self.new[name] = value

    def parameter(self, name: str) -> Tensor:
        return self.composition.named("parameter", name, self.parameters)


def scan(
    composition: Composition,
    u: Tensor,
    state: State,
    reset: Tensor | None,
    *,
    head_size: int,
    feed_back: FeedBack | None = None,
    parameters: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, State]:
    """Run a composition over the slow net's output u (B, T, H, live outputs): y (B, T, H, V) and the final state.

    The slow net's part that sees y_{t-1} comes in as `feed_back`. `reset` (B, T) zeroes the whole state before step t.
    """
    u, dtype = u.to(torch.promote_types(u.dtype, torch.float32)), u.dtype
    outputs = []
    for t in range(u.shape[1]):
        if reset is not None:
            state = {name: forget_rows(s, reset[:, t]) for name, s in state.items()}
        u_t = feed_back(u[:, t], state["y"]) if feed_back is not None else u[:, t]
        cell = StepCell(composition, u_t, state, head_size, parameters or {})
        y = composition.fast.step(cell)
        composition.check_output(y, u_t, head_size)
        state = cell.new | ({"y": y} if "y" in state else {})
        outputs.append(y)
    return torch.stack(outputs, dim=1).to(dtype), state
