"""The checkpoints of a run whose weights are parted over the processes."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from rfwp.train.checkpoint import LAST, Checkpoint, Loaded, NoneWhole
from rfwp.train.sharded import load_sharded, save_sharded, spread_weights, weights_are_finite, whole_weights
from rfwp.train.store import Store


class ShardedStore(Store):
    """`last`: every process writes and reads its part. `best`: whole weights, which only the first process has for a moment."""

    def finite(self) -> bool:
        return weights_are_finite(self.model, self.world)

    def save_last(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        save_sharded(self.run / LAST, self.model, self.optimiser, state, self.world, tensors)

    def load_last(self) -> Loaded | None:
        return load_sharded(self.run / LAST, self.model, self.optimiser, self.world, self.warn)

    def best(self) -> dict[str, Any] | None:
        return self._read_by_first()[1]

    def load_best(self) -> dict[str, Any] | None:
        found, state = self._read_by_first()
        if state is not None:
            spread_weights(self.model, found.model if found else {}, self.world)
        return state

    def _weights(self) -> dict[str, Tensor]:
        return whole_weights(self.model, keep=self.world.first)

    def _read_by_first(self) -> tuple[Checkpoint | None, dict[str, Any] | None]:
        """The best checkpoint, in the first process; and in all of them what it says of itself, or that it is damaged."""
        found, problems = None, ""
        if self.world.first:
            try:
                found = self._read_best()
            except NoneWhole as error:
                problems = error.problems
        said: list[tuple[dict[str, Any] | None, str]] = [(found.state if found else None, problems)]
        dist.broadcast_object_list(said, src=0, device=self.world.device)
        state, problems = said[0]
        if problems:
            raise NoneWhole([problems])
        return found, state
