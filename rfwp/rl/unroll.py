"""Acting: environments stepped by an agent, and what the learner gets of it, written in place on the learner's device."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rfwp.errors import InvalidInput
from rfwp.layers.state import flat, map_state
from rfwp.models import Agent
from rfwp.rl.inference import Inference
from rfwp.tasks.environments import Episode, Step, VectorEnvironment


@dataclass(eq=False)
class Unroll:
    """T actions of N environments and the T+1 observations around them.

    Action t follows observation t; its reward, and whether it ended the episode, come with observation t+1.
    """

    observation: Tensor  # N T+1 ...
    reward: Tensor  # N T+1, as the environment gave it
    done: Tensor  # N T+1 bool: the episode ended before this observation, so the state is reset before it
    action: Tensor  # N T
    logits: Tensor  # N T actions: of the policy that acted
    state: Any
    """The core's state before observation 0."""
    episodes: list[Episode] = field(default_factory=list)
    """Those that ended meanwhile."""
    versions: list[int] = field(default_factory=list)
    """Of each step: the update that the acting weights came from."""

    @property
    def steps(self) -> int:
        """Agent steps: N T."""
        return self.action.numel()

    def keep_state(self, state: Any) -> None:
        """A copy, in the place of the old one where the shapes allow it: memory that a learner reads does not move."""
        old, new = flat(self.state), flat(state)
        if [t.shape for t in old] == [t.shape for t in new]:
            for place, tensor in zip(old, new, strict=True):
                place.copy_(tensor)
        else:
            self.state = map_state(torch.clone, state)

    def tensors(self) -> list[Tensor]:
        """All of them, the state's included, in order."""
        return [self.observation, self.reward, self.done, self.action, self.logits, *flat(self.state)]

    def empty(self, rows: int) -> "Unroll":
        """Room for so many environments."""

        def room(like: Tensor) -> Tensor:
            return like.new_zeros(rows, *like.shape[1:])

        parts = room(self.observation), room(self.reward), room(self.done), room(self.action), room(self.logits)
        return Unroll(*parts, state=map_state(room, self.state))


class Actor:
    """Steps environments with an agent and fills unrolls.

    >>> actor = Actor(agent, environment, steps=50, seed=1)
    >>> unroll = actor.collect()        # stays as it is until the call of `collect` after the next

    The agent is used as it is at each step; whoever changes its weights sets `version`. The core's state goes on
    from unroll to unroll and is reset where an episode ended. `act` and `observe` are the two halves of a step, for
    whoever has something to do while the environments work; each has two halves of its own, for whoever has something to do
    while the device or the environments are waited for. Actions are sampled, or with `greedy` the most probable.
    The first `skip` steps are in no unroll. With `record`, on a GPU, choosing actions is one CUDA graph.
    `blocking`: whoever waits there for actions leaves its core to others, and wakes up a little later.
    `first` and `total`: these environments are numbers first, first + 1, ... of a larger set, see `Inference`.
    """

    def __init__(
        self,
        agent: Agent,
        environment: VectorEnvironment,
        steps: int,
        *,
        seed: int = 0,
        greedy: bool = False,
        skip: int = 0,
        first: int = 0,
        total: int | None = None,
        autocast: bool = False,
        record: bool = False,
        blocking: bool = False,
    ):
        if steps < 1:
            raise InvalidInput(f"Actor: steps={steps}; an unroll has at least 1")
        if environment.actions != agent.config.actions:
            raise InvalidInput(
                f"Actor: the environment has {environment.actions} actions but the agent {agent.config.actions}; make them equal"
            )
        self.agent, self.environment, self.steps, self.version = agent, environment, steps, 0
        self.device = agent.value.weight.device
        N, pinned = environment.n, self.device.type == "cuda"
        dtype = torch.from_numpy(np.empty(0, environment.dtype)).dtype
        # one is enough: reading the actions waits for everything before, so also for the copy from here
        self._staging = (
            torch.empty((N, *environment.shape), dtype=dtype, pin_memory=pinned),
            torch.empty(N, pin_memory=pinned),
            torch.empty(N, dtype=torch.bool, pin_memory=pinned),
        )
        self._chosen = torch.empty(N, dtype=torch.int64, pin_memory=pinned)
        self._ready = torch.cuda.Event(blocking=blocking) if pinned else None
        self._now = tuple(torch.empty_like(t, device=self.device) for t in self._staging) if pinned else self._staging
        self._stage(environment.reset(seed))
        self._to_device()
        self.inference = Inference(
            agent, *self._now, seed=seed, greedy=greedy, first=first, total=total, autocast=autocast, record=record
        )
        self._unrolls = [self._allocate(), self._allocate()]
        self.t = -skip

    def collect(self) -> Unroll:
        """The next unroll; there are two in turn, so the one before it can still be in use."""
        while True:
            self.act()
            unroll = self.observe()
            if unroll is not None:
                return unroll

    def keep(self, rows: int) -> None:
        """Room for as many unrolls as can wait for a learner that takes so many rows at once, of any actors, and for one more."""
        # fewer than `rows` rows wait for more; the first unroll among them may have only one row left
        while len(self._unrolls) < 2 + (rows - 2) // self.environment.n:
            self._unrolls.append(self._allocate())

    @property
    def next(self) -> Unroll:
        """The one that is being filled, or will be."""
        return self._unrolls[0]

    def act(self) -> None:
        """Choose actions for the observation at hand and send them to the environments."""
        self.choose()
        self.send()

    def observe(self) -> Unroll | None:
        """Take what the actions brought; the unroll, if this was its last step."""
        self.receive()
        return self.note()

    # --- The halves of act ---

    def choose(self) -> None:
        """Start to choose actions for the observation at hand; a GPU may still be at it when this returns."""
        unroll = self.next
        if self.t == 0:
            unroll.keep_state(self.inference.state)
            unroll.versions = []
            self._write(0)
        self.inference()
        # first of all: environments wait for it
        self._chosen.copy_(self.inference.action, non_blocking=True)
        if self._ready is not None:
            self._ready.record(torch.cuda.current_stream(self.device))
        if self.t >= 0:
            unroll.action[:, self.t] = self.inference.action
            unroll.logits[:, self.t] = self.inference.logits
            unroll.versions.append(self.version)

    def send(self) -> None:
        """Wait for the actions, and send them to the environments."""
        if self._ready is not None:
            self._ready.synchronize()
        self.environment.send(self._chosen.numpy())

    # --- The halves of observe ---

    def receive(self) -> None:
        """Wait for what the actions brought."""
        self._stage(self.environment.recv())

    def note(self) -> Unroll | None:
        """Write it down; the unroll, if this was its last step."""
        self._to_device()
        self.t += 1
        if self.t > 0:
            self._write(self.t)
        if self.t < self.steps:
            return None
        unroll = self.next
        unroll.episodes = list(self.environment.finished())
        # the last observation becomes the first of the next unroll when that begins: until then that one is in use
        self._unrolls, self.t = [*self._unrolls[1:], unroll], 0
        return unroll

    def _stage(self, step: Step) -> None:
        for name, place, array in zip(Step._fields, self._staging, step, strict=True):
            # otherwise it would be repeated until it fits
            if array.shape != place.shape:
                raise InvalidInput(f"Actor: the environment's {name} has shape {array.shape}, expected {tuple(place.shape)}")
            place.numpy()[...] = array

    def _to_device(self) -> None:
        if self._now is not self._staging:
            for there, place in zip(self._now, self._staging, strict=True):
                there.copy_(place, non_blocking=True)

    def _write(self, t: int) -> None:
        for place, tensor in zip((self.next.observation, self.next.reward, self.next.done), self._now, strict=True):
            place[:, t] = tensor

    def _allocate(self) -> Unroll:
        N, T, actions = self.environment.n, self.steps, self.agent.config.actions
        observation, reward, done = (t.new_empty(N, T + 1, *t.shape[1:]) for t in self._now)
        action = torch.empty(N, T, dtype=torch.int64, device=self.device)
        logits = torch.empty(N, T, actions, dtype=self.agent.value.weight.dtype, device=self.device)
        return Unroll(observation, reward, done, action, logits, map_state(torch.clone, self.inference.state))
