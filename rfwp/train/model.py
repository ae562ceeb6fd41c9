"""The model of a run: its first weights, those of a checkpoint, its loss, and whether it fits its task."""

import torch
from torch import Tensor, nn

from rfwp.config import LanguageRunConfig, RunConfig, SequenceConfig
from rfwp.errors import InvalidFile, InvalidInput
from rfwp.models import SequenceModel
from rfwp.tasks import Task
from rfwp.train.random import derived


def build(config: RunConfig | LanguageRunConfig, empty: bool = False) -> SequenceModel:
    """The model with its first weights: made on the CPU, so that they are the same on every device; or without any."""
    torch.manual_seed(derived(config.train.seed, "weights"))
    with torch.device("meta" if empty else "cpu"):
        return SequenceModel(config.model)


def load_weights(model: nn.Module, weights: dict[str, Tensor], where: object) -> None:
    """Of a checkpoint in the folder `where`."""
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise InvalidFile(f"the weights in {where} do not fit its model; were they made by another version?") from None


def share_of_loss(model: SequenceModel, tokens: Tensor, targets: Tensor, total: Tensor, reset: Tensor | None = None) -> Tensor:
    """What these rows add to the mean loss over all `total` targets of a batch: their own mean × their part of the targets."""
    counted = (targets != -1).sum()
    return model.loss(tokens, targets, reset=reset)[0] * (counted / total)


def check_fits(model: SequenceConfig, task: Task) -> None:
    """Every symbol of the task has a place in the model."""
    for name, vocabulary in (("inputs", task.source), ("outputs", task.target)):
        if getattr(model, name) < len(vocabulary):
            seen = f"model.{name}={getattr(model, name)}, but the task has {len(vocabulary)} symbols"
            raise InvalidInput(f"{seen}; use model.{name}={len(vocabulary)}")
