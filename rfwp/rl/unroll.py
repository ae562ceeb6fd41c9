"""Acting: environments stepped by an agent, and what the learner gets of it, written in place on the learner's device."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rfwp.layers.state import flat, map_state
from rfwp.models import Agent
from rfwp.rl.inference import Inference
from rfwp.rl.staging import Staging, check_fits
from rfwp.tasks.environments import Episode, VectorEnvironment


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


def room_for(N: int, T: int, inference: Inference) -> Unroll:
    """An unroll of what goes through there."""
    seen = inference.observation, inference.reward, inference.done
    observation, reward, done = (t.new_empty(N, T + 1, *t.shape[1:]) for t in seen)
    action, logits = (t.new_empty(N, T, *t.shape[1:]) for t in (inference.action, inference.logits))
    return Unroll(observation, reward, done, action, logits, map_state(torch.clone, inference.state))


class Actor:
    """Steps environments with an agent and fills unrolls of all of them.

    >>> actor = Actor(agent, environment, steps=50, seed=1)
    >>> unroll = actor.collect()        # stays as it is until the call of `collect` after the next

    The agent is used as it is at each step; whoever changes its weights sets `version`. The core's state goes on
    from unroll to unroll and is reset where an episode ended. Actions are sampled, or with `greedy` the most probable.
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
        first: int = 0,
        total: int | None = None,
        autocast: bool = False,
    ):
        check_fits(agent, environment, steps)
        self.agent, self.environment, self.steps, self.version = agent, environment, steps, 0
        self.staging = Staging(environment, agent.value.weight.device, environment.reset(seed))
        observation, reward, done = self.staging.now
        self.inference = Inference(
            agent, observation, reward, done, seed=seed, greedy=greedy, first=first, total=total, autocast=autocast
        )
        self._next, self._last = (room_for(environment.n, steps, self.inference) for _ in range(2))

    def collect(self) -> Unroll:
        """The next unroll; there are two in turn, so the one before it can still be in use."""
        unroll, self._next, self._last = self._next, self._last, self._next
        unroll.keep_state(self.inference.state)
        unroll.versions = [self.version] * self.steps
        self._write(unroll, 0)
        for t in range(self.steps):
            self.inference()
            unroll.action[:, t] = self.inference.action
            unroll.logits[:, t] = self.inference.logits
            self.staging.from_device(self.inference.action)
            self.environment.send(self.staging.actions())
            self.staging.put(self.environment.recv())
            self.staging.to_device()
            self._write(unroll, t + 1)
        unroll.episodes = list(self.environment.finished())
        return unroll

    def _write(self, unroll: Unroll, t: int) -> None:
        for place, tensor in zip((unroll.observation, unroll.reward, unroll.done), self.staging.now, strict=True):
            place[:, t] = tensor
