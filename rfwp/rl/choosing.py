"""Choosing actions for whoever plays with an agent and does not train it; on a GPU as one CUDA graph."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from rfwp.errors import InvalidInput
from rfwp.layers import LSTM
from rfwp.layers.state import flat
from rfwp.models import Agent, AgentOutput
from rfwp.rl.faults import describe
from rfwp.rl.inference import Inference
from rfwp.rl.staging import Staging
from rfwp.tasks.environments import Step, VectorEnvironment

log = logging.getLogger("rfwp")


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
            if record:
                self._record(agent)

    def __call__(self, step: Step) -> tuple[AgentOutput, np.ndarray]:
        self.staging.put(step)
        with self._on_stream():
            self.staging.to_device()
            self.inference()
            self.staging.from_device(self.inference.action)
        actions = self.staging.actions().copy()
        # the next step writes over it, after these copies: it waits for the caller's stream
        return AgentOutput(self.inference.logits.clone(), self.inference.value.clone()), actions

    def _record(self, agent: Agent) -> None:
        try:
            with recordable(agent):
                self.inference.record()
        except InvalidInput:
            # the state grows, as the first step that warms up has found out; it has changed nothing
            return
        except RuntimeError as error:
            log.warning("an agent cannot be recorded as a CUDA graph (%s); it plays step by step", describe(error))
            for tensor in flat(self.inference.state):
                tensor.zero_()

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
