"""An agent's first weights, and those of a checkpoint."""

import torch
from torch import Tensor

from rfwp.config import RLRunConfig
from rfwp.errors import InvalidFile
from rfwp.layers import LSTM
from rfwp.models import Agent
from rfwp.train import model
from rfwp.train.random import derived
from rfwp.train.store import Store


def first_agent(config: RLRunConfig) -> Agent:
    """With its first weights: made on the CPU, so that they are the same on every device."""
    torch.manual_seed(derived(config.impala.seed, "weights"))
    return Agent(config.agent)


def place(agent: Agent, device: torch.device, *, channels_last: bool, record: bool) -> Agent:
    """On its device, with the vision net's layout of memory; `record`: LSTMs as CUDA graphs can hold them."""
    agent.to(device)
    if channels_last:
        agent.stem.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for module in agent.modules():
        if isinstance(module, LSTM):
            module.recordable = record
    return agent


def load_weights(agent: Agent, weights: dict[str, Tensor], where: object) -> None:
    """Of a checkpoint in the folder `where`."""
    for name in ("policy.weight", "policy.bias"):
        seen, actions = len(weights.get(name, ())), agent.config.actions
        if seen != actions:
            raise InvalidFile(f"the agent in {where} has {seen} actions, but this one {actions}; it is of another action set")
    model.load_weights(agent, weights, where)


class AgentStore(Store):
    """An agent of another action set is told so."""

    model: Agent

    def _put(self, weights: dict[str, Tensor]) -> None:
        load_weights(self.model, weights, self.run)
