"""How right a model is on a data set, and what it says to one sequence."""

import torch
from torch import Tensor, nn

from rfwp.models.modes import evaluating
from rfwp.tasks import Task
from rfwp.tasks.types import NO_TARGET
from rfwp.train.data import Data
from rfwp.train.distributed import World
from rfwp.train.step import Precision, precision_of

BATCHES = 4
"""Training batches that are evaluated at once: no gradients, so there is room."""


@torch.no_grad()
def evaluate(
    model: nn.Module, task: Task, data: Data, batch: int, precision: Precision = "fp32", world: World | None = None
) -> dict[str, float]:
    """The task's metrics over all sequences. The device is asked once, at the end."""
    world = world or World(device=data.device)
    empty = torch.full((1, 1), NO_TARGET, device=data.device)
    counts = task.count(empty, empty)
    with evaluating(model), precision_of(precision, data.device):
        for part in data.by_length(BATCHES * batch, world):
            tokens, targets, _ = data.get(part)
            for name, count in task.count(model(tokens)[0].argmax(-1), targets).items():
                counts[name] = counts[name] + count
    totals = world.sum(torch.stack(list(counts.values()))).tolist()
    return {name: right / max(1, counted) for name, (right, counted) in zip(counts, totals, strict=True)}


@torch.no_grad()
def predict(model: nn.Module, tokens: Tensor, precision: Precision = "fp32") -> Tensor:
    """The most likely target at every position of one sequence (T,), on the CPU."""
    device = next(model.parameters()).device
    with evaluating(model), precision_of(precision, device):
        logits, _ = model(tokens.long().unsqueeze(0).to(device))
    return logits[0].argmax(-1).cpu()
