"""Acting: environments stepped by an agent, and what the learner gets of it, written in place on the learner's device."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rfwp.errors import InvalidInput
from rfwp.layers.state import map_state
from rfwp.models import Agent
from rfwp.tasks.environments import Episode, Step, VectorEnvironment


@dataclass
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

    @property
    def steps(self) -> int:
        """Agent steps: N T."""
        return self.action.numel()

    def keep_state(self, state: Any) -> None:
        """A copy, in the place of the old one where the shapes allow it: memory that a learner reads does not move."""
        old, new = _tensors(self.state), _tensors(state)
        if [t.shape for t in old] == [t.shape for t in new]:
            for place, tensor in zip(old, new, strict=True):
                place.copy_(tensor)
        else:
            self.state = map_state(torch.clone, state)


class Actor:
    """Steps environments with an agent and fills unrolls.

    >>> actor = Actor(agent, environment, steps=50, seed=1)
    >>> unroll = actor.collect()        # stays as it is until the call of `collect` after the next

    The agent is used as it is at each step: whoever changes its weights does so between two unrolls. The core's state goes on
    from unroll to unroll and is reset where an episode ended. `act` and `observe` are the two halves of a step, for
    whoever has something to do while the environments work. Actions are sampled, or with `greedy` the most probable.
    """

    def __init__(self, agent: Agent, environment: VectorEnvironment, steps: int, *, seed: int = 0, greedy: bool = False):
        if steps < 1:
            raise InvalidInput(f"Actor: steps={steps}; an unroll has at least 1")
        if environment.actions != agent.config.actions:
            raise InvalidInput(
                f"Actor: the environment has {environment.actions} actions but the agent {agent.config.actions}; make them equal"
            )
        self.agent, self.environment, self.steps, self.greedy = agent, environment, steps, greedy
        self.device = agent.value.weight.device
        self.generator = torch.Generator(self.device).manual_seed(seed)
        N, pinned = environment.n, self.device.type == "cuda"
        dtype = torch.from_numpy(np.empty(0, environment.dtype)).dtype
        # one is enough: reading the actions waits for everything before, so also for the copy from here
        self._staging = (
            torch.empty((N, *environment.shape), dtype=dtype, pin_memory=pinned),
            torch.empty(N, pin_memory=pinned),
            torch.empty(N, dtype=torch.bool, pin_memory=pinned),
        )
        self._now = self._received(environment.reset(seed))
        self.state = self._zero_state()
        self._unrolls = self._allocate(), self._allocate()
        self.t = 0

    def collect(self) -> Unroll:
        """The next unroll; there are two in turn, so the one before it can still be in use."""
        while True:
            self.act()
            unroll = self.observe()
            if unroll is not None:
                return unroll

    @torch.no_grad()
    def act(self) -> None:
        """Choose actions for the observation at hand and send them to the environments."""
        unroll = self._unrolls[0]
        if self.t == 0:
            unroll.keep_state(self.state)
            self._write(0)
        observation, reward, done = self._now
        output, self.state = self.agent.step(observation, reward, self.state, done)
        action = self._choose(output.logits)
        unroll.action[:, self.t] = action
        unroll.logits[:, self.t] = output.logits
        self.environment.send(action.cpu().numpy())

    def observe(self) -> Unroll | None:
        """Take what the actions brought; the unroll, if this was its last step."""
        self._now = self._received(self.environment.recv())
        self.t += 1
        self._write(self.t)
        if self.t < self.steps:
            return None
        unroll, other = self._unrolls
        unroll.episodes = list(self.environment.finished())
        # the last observation becomes the first of the next unroll when that begins: until then the other one is in use
        self._unrolls, self.t = (other, unroll), 0
        return unroll

    def _choose(self, logits: Tensor) -> Tensor:
        if not self.greedy:
            # the largest of logits with Gumbel noise is a sample of their softmax
            noise = torch.empty_like(logits, dtype=torch.float32).exponential_(generator=self.generator)
            logits = logits - noise.log()
        return logits.argmax(-1)

    def _received(self, step: Step) -> tuple[Tensor, ...]:
        """Observation, reward and done, on the agent's device."""
        for place, array in zip(self._staging, (step.observation, step.reward, step.done), strict=True):
            place.numpy()[...] = array
        return tuple(place.to(self.device, non_blocking=True) for place in self._staging)

    def _write(self, t: int) -> None:
        unroll = self._unrolls[0]
        for place, tensor in zip((unroll.observation, unroll.reward, unroll.done), self._now, strict=True):
            place[:, t] = tensor

    @torch.no_grad()
    def _zero_state(self) -> Any:
        """What a call without a state starts from, as tensors."""
        observation, reward, _ = self._now
        _, state = self.agent.step(observation, reward)
        return map_state(torch.zeros_like, state)

    def _allocate(self) -> Unroll:
        N, T, actions = self.environment.n, self.steps, self.agent.config.actions
        observation, reward, done = (t.new_empty(N, T + 1, *t.shape[1:]) for t in self._now)
        action = torch.empty(N, T, dtype=torch.int64, device=self.device)
        logits = torch.empty(N, T, actions, dtype=self.agent.value.weight.dtype, device=self.device)
        return Unroll(observation, reward, done, action, logits, map_state(torch.clone, self.state))


def _tensors(state: Any) -> list[Tensor]:
    """The tensors of a state, in order."""
    found: list[Tensor] = []
    map_state(lambda tensor: found.append(tensor) or tensor, state)  # type: ignore[func-returns-value]
    return found
