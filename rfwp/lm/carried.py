"""The state that a segment leaves to the next: tensors that stay in one place, zero at the start of each pass."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rfwp.errors import InvalidFile
from rfwp.layers.state import flat, map_state
from rfwp.models import SequenceModel
from rfwp.models.modes import evaluating
from rfwp.train.distributed import World

PREFIX = "carried."


class Carried:
    """The state of `rows` streams as a flat list of tensors, batch first, for `TrainStep(state=...)`."""

    def __init__(self, model: SequenceModel, rows: int, device: torch.device):
        with torch.no_grad(), evaluating(model):
            _, state = model.hidden(torch.zeros(rows, 1, dtype=torch.long, device=device))
        self.nesting = map_state(torch.zeros_like, state)
        self.tensors = flat(self.nesting)

    def clear(self) -> None:
        for tensor in self.tensors:
            tensor.zero_()

    def nested(self, tensors: Sequence[Tensor]) -> Any:
        """The model's state with these tensors."""
        left = iter(tensors)
        return map_state(lambda _: next(left), self.nesting)

    def saved(self, world: World) -> dict[str, Tensor]:
        """`carried.0`, ...: of the streams of all processes, so that another number of processes can go on with them."""
        return {f"{PREFIX}{n}": torch.cat(world.gather(tensor)) for n, tensor in enumerate(self.tensors)}

    def restore(self, saved: Mapping[str, Tensor], world: World) -> None:
        for n, tensor in enumerate(self.tensors):
            found = saved.get(f"{PREFIX}{n}")
            if found is None or found.shape != (len(tensor) * world.size, *tensor.shape[1:]):
                raise InvalidFile(
                    "the carried state in the checkpoint does not fit the model; were they made by another version?"
                )
            tensor.copy_(found[world.rank * len(tensor) : (world.rank + 1) * len(tensor)])
