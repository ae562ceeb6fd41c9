"""The optimiser, and its state as tensors with names."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from rfwp.config import LanguageTrainConfig, TrainConfig
from rfwp.errors import InvalidFile, InvalidInput

PREFIX = "adam."
"""Of the names of Adam's tensors in a checkpoint."""


def make_optimiser(model: nn.Module, config: TrainConfig | LanguageTrainConfig) -> torch.optim.Adam:
    """Adam with the run's settings; fused where PyTorch has one kernel for all of it."""
    fused = next(model.parameters()).device.type in ("cuda", "cpu")
    betas = config.beta1, config.beta2
    return torch.optim.Adam(model.parameters(), lr=config.lr, betas=betas, eps=config.eps, fused=fused)


def decayed(config: TrainConfig, done: float) -> float:
    """lr · min(1, (1 - done) / decay), where `done` of the training is over"""
    return config.lr * min(1.0, (1 - done) / config.decay)


def prefix_of(optimiser: torch.optim.Optimizer) -> str:
    """`adam.`, `rmsprop.`"""
    return f"{type(optimiser).__name__.lower()}."


def optimiser_tensors(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """`adam.exp_avg.core.blocks.0.norm.weight`, ...: nothing before the first step."""
    tensors, prefix = {}, prefix_of(optimiser)
    for name, parameter in model.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            tensors[f"{prefix}{key}.{name}"] = torch.as_tensor(value)
    return tensors


def restore_optimiser(
    model: nn.Module, optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor], lr: float | None = None
) -> None:
    """The inverse of `optimiser_tensors`; the learning rate stays as it is where none is given."""
    prefix = prefix_of(optimiser)
    states: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(prefix):
            key, _, parameter = name.removeprefix(prefix).partition(".")
            states.setdefault(parameter, {})[key] = tensor
    places = {name: place for place, (name, _) in enumerate(model.named_parameters())}
    if unknown := set(states) - set(places):
        raise InvalidFile(f"the optimiser's state has {min(unknown)}, which the model does not have; it is of another model")
    groups = optimiser.state_dict()["param_groups"]
    for group in groups if lr is not None else ():
        group["lr"] = lr
    optimiser.load_state_dict({"state": {places[name]: state for name, state in states.items()}, "param_groups": groups})
    for weight, kept in optimiser.state.items():
        for key, value in kept.items():
            # a file keeps values, not their order in memory, which for a convolution may be channels last
            if value.shape == weight.shape and value.stride() != weight.stride():
                kept[key] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


def check_training(config: TrainConfig) -> None:
    """Settings that cannot work, in one line."""
    check_counts(config, "epochs", "batch", "accumulate")
    if config.accumulate > config.batch:
        raise InvalidInput(f"train.accumulate={config.accumulate} parts of a batch of {config.batch}; use at most {config.batch}")
    check_adam(config)
    if not 0 <= config.decay <= 1:
        raise InvalidInput(f"train.decay={config.decay}; use a share of the training, from 0 to 1")
    if config.patience is not None and config.patience < 1:
        raise InvalidInput(f"train.patience={config.patience}; use at least 1, or none for no early stop")


def check_counts(config: TrainConfig | LanguageTrainConfig, *names: str) -> None:
    for name in names:
        if getattr(config, name) < 1:
            raise InvalidInput(f"train.{name}={getattr(config, name)}; use at least 1")


def check_adam(config: TrainConfig | LanguageTrainConfig) -> None:
    for name in ("lr", "eps", "clip"):
        value = getattr(config, name)
        if value is not None and not 0 < value < float("inf"):
            raise InvalidInput(f"train.{name}={value}; use a positive number")
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(config, name) < 1:
            raise InvalidInput(f"train.{name}={getattr(config, name)}; use a number from 0 to below 1")
