"""Between environments and a device: observations that go there and actions that come back, in memory that stays in place."""

import numpy as np
import torch
from torch import Tensor

from rfwp.errors import InvalidInput
from rfwp.models import Agent
from rfwp.tasks.environments import Step, VectorEnvironment


class Staging:
    """One set of answers on the host, and `now`, the same on the device: observation, reward and done (N, ...).

    One set is enough: whoever waits for the actions waits for everything before, so also for the copy from here.
    `blocking`: whoever waits there leaves its core to others, and wakes up a little later.
    """

    def __init__(self, environment: VectorEnvironment, device: torch.device, first: Step, blocking: bool = False):
        self.device, self.pinned = device, device.type == "cuda"
        N = len(first.observation)
        dtype = torch.from_numpy(np.empty(0, environment.dtype)).dtype
        self._host = (
            torch.empty((N, *environment.shape), dtype=dtype, pin_memory=self.pinned),
            torch.empty(N, pin_memory=self.pinned),
            torch.empty(N, dtype=torch.bool, pin_memory=self.pinned),
        )
        self.now = tuple(torch.empty_like(t, device=device) for t in self._host) if self.pinned else self._host
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
            for there, here in zip(self.now, self._host, strict=True):
                there.copy_(here, non_blocking=True)

    def from_device(self, actions: Tensor) -> None:
        """As soon as they are chosen."""
        self._chosen.copy_(actions, non_blocking=True)
        if self._ready is not None:
            self._ready.record(torch.cuda.current_stream(self.device))

    def actions(self) -> np.ndarray:
        """Waits for them."""
        if self._ready is not None:
            self._ready.synchronize()
        chosen: np.ndarray = self._chosen.numpy()
        return chosen


def check_actions(agent: Agent, environment: VectorEnvironment, steps: int) -> None:
    if steps < 1:
        raise InvalidInput(f"Actor: steps={steps}; an unroll has at least 1")
    if environment.actions != agent.config.actions:
        raise InvalidInput(
            f"Actor: the environment has {environment.actions} actions but the agent {agent.config.actions}; make them equal"
        )
