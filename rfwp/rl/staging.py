"""Between environments and a device: observations that go there and actions that come back, in memory that stays in place."""

import math
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from rfwp.errors import InvalidInput
from rfwp.models import Agent
from rfwp.tasks.environments import Step, VectorEnvironment

ALIGNED = 16
"""Bytes: where a tensor of any type may begin."""


class Staging:
    """One set of answers on the host, and `now`, the same on the device: observation, reward and done (N, ...).

    One set is enough: whoever waits for the actions waits for everything before, so also for the copy from here.
    `notes` whole numbers for each of them go along: `notes` here, `notes_now` there, (notes, N). One copy moves everything.
    `blocking`: whoever waits there leaves its core to others, and wakes up a little later.
    """

    def __init__(
        self, environment: VectorEnvironment, device: torch.device, first: Step, *, blocking: bool = False, notes: int = 0
    ):
        self.device, self.pinned = device, device.type == "cuda"
        N = len(first.observation)
        dtype = torch.from_numpy(np.empty(0, environment.dtype)).dtype
        parts = (((N, *environment.shape), dtype), ((N,), torch.float32), ((N,), torch.bool), ((notes, N), torch.int64))
        self._here, (*self._host, self.notes) = in_one_block(*parts, pin_memory=self.pinned)
        self._there, self.now, self.notes_now = self._here, tuple(self._host), self.notes
        if self.pinned:
            self._there, (*now, self.notes_now) = in_one_block(*parts, device=device)
            self.now = tuple(now)
        self._chosen = torch.empty(N, dtype=torch.int64, pin_memory=self.pinned)
        self._ready = torch.cuda.Event(blocking=blocking) if self.pinned else None
        self.put(first)
        self.to_device()

    def put(self, step: Step) -> None:
        """Answers of the environments."""
        for name, place, array in zip(Step._fields, self._host, step, strict=True):
            # otherwise it would be repeated until it fits
            if array.shape != place.shape:
                raise InvalidInput(f"Actor: the environment's {name} has shape {array.shape}, expected {tuple(place.shape)}")
            place.numpy()[...] = array

    def to_device(self) -> None:
        """A GPU may still be at it when this returns."""
        if self.pinned:
            self._there.copy_(self._here, non_blocking=True)

    def from_device(self, actions: Tensor) -> None:
        """As soon as they are chosen."""
        self.take(actions)
        self.taken()

    def take(self, actions: Tensor) -> None:
        """The first half of `from_device`, which a CUDA graph can hold."""
        self._chosen.copy_(actions, non_blocking=True)

    def taken(self) -> None:
        """The second half: what the current stream has been given so far is what `actions` waits for."""
        if self._ready is not None:
            self._ready.record(torch.cuda.current_stream(self.device))

    def actions(self) -> np.ndarray:
        """Waits for them."""
        if self._ready is not None:
            self._ready.synchronize()
        chosen: np.ndarray = self._chosen.numpy()
        return chosen


def in_one_block(
    *parts: tuple[tuple[int, ...], torch.dtype], device: torch.device | str = "cpu", pin_memory: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """A block of bytes, and tensors of these shapes and types one after another in it."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in parts]
    starts = [0, *accumulate(-(-size // ALIGNED) * ALIGNED for size in sizes)]
    block = torch.empty(starts[-1], dtype=torch.uint8, device=device, pin_memory=pin_memory)
    pieces = zip(parts, starts, sizes, strict=False)
    return block, [block[start : start + size].view(dtype).view(shape) for (shape, dtype), start, size in pieces]


def check_fits(agent: Agent, environment: VectorEnvironment, steps: int) -> None:
    """The agent to the environment, and an unroll of so many steps."""
    if steps < 1:
        raise InvalidInput(f"Actor: steps={steps}; an unroll has at least 1")
    if environment.actions != agent.config.actions:
        raise InvalidInput(
            f"Actor: the environment has {environment.actions} actions but the agent {agent.config.actions}; make them equal"
        )
