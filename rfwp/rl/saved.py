"""An agent's first weights; weights and RMSProp's state as tensors with names, and back."""

from collections.abc import Mapping

import torch
from torch import Tensor

from rfwp.config import RLRunConfig
from rfwp.errors import InvalidFile
from rfwp.models import Agent
from rfwp.train.random import derived

PREFIX = "rmsprop."


def first_agent(config: RLRunConfig) -> Agent:
    """With its first weights: made on the CPU, so that they are the same on every device."""
    torch.manual_seed(derived(config.impala.seed, "weights"))
    return Agent(config.agent)


def load_weights(agent: Agent, weights: Mapping[str, Tensor], where: object) -> None:
    """Of a checkpoint in the folder `where`."""
    for name in ("policy.weight", "policy.bias"):
        seen, actions = len(weights.get(name, ())), agent.config.actions
        if seen != actions:
            raise InvalidFile(f"the agent in {where} has {seen} actions, but this one {actions}; it is of another action set")
    try:
        agent.load_state_dict(weights)
    except RuntimeError:
        raise InvalidFile(f"the weights in {where} do not fit its agent; were they made by another version?") from None


def optimiser_tensors(agent: Agent, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """`rmsprop.square_avg.stem.out.weight`, ...: nothing before the first update."""
    tensors = {}
    for name, parameter in agent.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            tensors[f"{PREFIX}{key}.{name}"] = torch.as_tensor(value)
    return tensors


def restore_optimiser(agent: Agent, optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of `optimiser_tensors`."""
    places = {name: place for place, (name, _) in enumerate(agent.named_parameters())}
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        key, _, parameter = name.removeprefix(PREFIX).partition(".")
        if parameter not in places:
            raise InvalidFile(f"the optimiser's state has {parameter}, which the agent does not have; it is of another agent")
        states.setdefault(places[parameter], {})[key] = tensor
    optimiser.load_state_dict({"state": states, "param_groups": optimiser.state_dict()["param_groups"]})
