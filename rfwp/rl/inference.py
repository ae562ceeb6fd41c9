"""Choosing actions for N environments: one step of an agent in fixed memory, replayed as a CUDA graph where that is asked for."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rfwp.errors import InvalidInput
from rfwp.layers.state import flat, map_state
from rfwp.models import Agent
from rfwp.train.step import WARM_UP


class Inference:
    """a ~ softmax(logits),  logits and the next state = agent.step(observation, reward, state, done)

    Observation, reward and done (N, ...) are read where they were at the start; `action`, `value` (N,) and `logits` (N, actions)
    stay where they are; `state` goes on from call to call. Noise is drawn for `total` environments, of which these are
    numbers first, first + 1, ...: so a set of environments acts the same however it is split over processes.
    """

    def __init__(
        self,
        agent: Agent,
        observation: Tensor,
        reward: Tensor,
        done: Tensor,
        *,
        seed: int,
        greedy: bool = False,
        first: int = 0,
        total: int | None = None,
        autocast: bool = False,
    ):
        self.agent, self.greedy, self.autocast = agent, greedy, autocast
        self.observation, self.reward, self.done = observation, reward, done
        N, device, actions = len(observation), observation.device, agent.config.actions
        self.generator = torch.Generator(device).manual_seed(seed)
        self._noise = torch.ones(total or N, actions, device=device)
        self._mine = self._noise[first : first + N]
        self.action = torch.zeros(N, dtype=torch.int64, device=device)
        self.logits = torch.zeros(N, actions, dtype=agent.value.weight.dtype, device=device)
        self.value = torch.zeros_like(self.logits[:, 0])
        self.state = self._zero_state()
        self._graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def __call__(self) -> None:
        """Write `action` and `logits`, and move the state on."""
        if not self.greedy:
            self._noise.exponential_(generator=self.generator)
        if self._graph is not None:
            self._graph.replay()
        else:
            self.state = self._step()

    def _step(self) -> Any:
        return self._act(self.state)

    def _act(self, state: Any) -> Any:
        with torch.autocast(self.observation.device.type, torch.bfloat16, enabled=self.autocast):
            output, state = self.agent.step(self.observation, self.reward, state, self.done)
        self.logits.copy_(output.logits)
        self.value.copy_(output.value)
        # the largest of logits with Gumbel noise is a sample of their softmax
        noisy = self.logits if self.greedy else self.logits - self._mine.log()
        torch.argmax(noisy, -1, out=self.action)
        return state

    @torch.no_grad()
    def _zero_state(self) -> Any:
        """What a call without a state starts from, as tensors."""
        with torch.autocast(self.observation.device.type, torch.bfloat16, enabled=self.autocast):
            _, state = self.agent.step(self.observation, self.reward)
        return map_state(torch.zeros_like, state)

    @torch.no_grad()
    def record(self) -> None:
        """From now on a call replays a CUDA graph, which reads and writes the state in its place.

        The steps that warm up leave nothing behind.
        """
        self._graph = recorded(lambda: copy_state(self.state, self._step()), self.observation.device)
        self._clear()

    def _clear(self) -> None:
        for tensor in flat(self.state):
            tensor.zero_()


def recorded(run: Callable[[], None], device: torch.device) -> torch.cuda.CUDAGraph:
    """As a CUDA graph, on the current stream, which is not the default one; it is run a few times before."""
    for _ in range(WARM_UP):
        run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream(device), capture_error_mode="thread_local"):
        run()
    return graph


def copy_state(place: Any, state: Any) -> None:
    """Into the memory of another state of the same shapes."""
    old, new = flat(place), flat(state)
    if [t.shape for t in old] != [t.shape for t in new]:
        raise InvalidInput("the state of this core grows from step to step, so it cannot stay in its place; use another core")
    for tensor, value in zip(old, new, strict=True):
        tensor.copy_(value)
