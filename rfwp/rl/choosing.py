"""Choosing actions for whoever plays with an agent and does not train it; on a GPU as one CUDA graph."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np
import torch

from rfwp.errors import InvalidInput
from rfwp.layers import LSTM
from rfwp.models import Agent, AgentOutput
from rfwp.rl.inference import Inference
from rfwp.rl.staging import Staging
from rfwp.tasks.environments import Step, VectorEnvironment


class Choosing:
    """What the agent thinks of a step, and its actions (N,), both the caller's to keep; the core's state goes on.

    With `record`, on a GPU, it is one CUDA graph, where the core's state does not grow. There all is done on a stream of its own,
    since the default stream cannot be recorded.
    """

    def __init__(self, agent: Agent, environment: VectorEnvironment, first: Step, *, seed: int, greedy: bool, record: bool):
        self.device = agent.value.weight.device
        record = record and self.device.type == "cuda"
        self._stream = torch.cuda.Stream(self.device) if record else None
        with self._on_stream():
            self.staging = Staging(environment, self.device, first)
            self.inference = Inference(agent, *self.staging.now, seed=seed, greedy=greedy)
            # a state that grows is found out by the first step that warms up
            with recordable(agent), suppress(InvalidInput):
                if record:
                    self.inference.record()

    def __call__(self, step: Step) -> tuple[AgentOutput, np.ndarray]:
        self.staging.put(step)
        with self._on_stream():
            self.staging.to_device()
            self.inference()
            self.staging.from_device(self.inference.action)
        actions = self.staging.actions().copy()
        # the next step writes over it, after these copies: it waits for the caller's stream
        return AgentOutput(self.inference.logits.clone(), self.inference.value.clone()), actions

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """After everything that the caller's stream has been given so far, such as the agent's weights."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._stream):
            yield


@contextmanager
def recordable(agent: Agent) -> Iterator[None]:
    """Its LSTMs as CUDA graphs can hold them; the agent is the caller's, so only for as long as it takes."""
    before = {module: module.recordable for module in agent.modules() if isinstance(module, LSTM)}
    try:
        for module in before:
            module.recordable = True
        yield
    finally:
        for module, recordable in before.items():
            module.recordable = recordable
