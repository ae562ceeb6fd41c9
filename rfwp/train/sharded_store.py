"""The checkpoints of a run whose weights are parted over the processes."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import Tensor

from rfwp.train.checkpoint import LAST, Checkpoint, Loaded
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
        return self._said(self._read_best())

    def load_best(self) -> dict[str, Any] | None:
        found = self._read_best()
        state = self._said(found)
        if state is not None:
            spread_weights(self.model, found.model if found else {}, self.world)
        return state

    def _weights(self) -> dict[str, Tensor]:
        return whole_weights(self.model, keep=self.world.first)

    def _read_best(self) -> Checkpoint | None:
        return super()._read_best() if self.world.first else None

    def _said(self, found: Checkpoint | None) -> dict[str, Any] | None:
        """What the first process has read, in all of them."""
        said = [found.state if found else None]
        dist.broadcast_object_list(said, src=0, device=self.world.device)
        return said[0]
