"""The checkpoints of a run: `last` to go on from, `best` to be tested and loaded; with weights whole or in parts."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rfwp.config import to_dict
from rfwp.models import Agent, SequenceModel
from rfwp.train import checkpoint
from rfwp.train.checkpoint import BEST, EARLIER_BEST, LAST, PREVIOUS, Checkpoint, Loaded
from rfwp.train.distributed import World
from rfwp.train.model import load_weights
from rfwp.train.optim import optimiser_tensors, restore_optimiser
from rfwp.version import __version__


class Store:
    """Every process has the whole model: the first one writes, all of them read. All call these methods together."""

    def __init__(
        self,
        run: Path,
        model: SequenceModel | Agent,
        optimiser: torch.optim.Optimizer,
        world: World,
        warn: Callable[[str], None],
    ):
        """`warn` hears of damaged checkpoints."""
        self.run, self.model, self.optimiser, self.world, self.warn = run, model, optimiser, world, warn
        self.config = {"rfwp": __version__, "model": to_dict(model.config)}

    def finite(self) -> bool:
        """Whether all weights are numbers."""
        weights = self.model.state_dict().values()
        return bool(torch.stack([weight.isfinite().all() for weight in weights]).all())

    def save_last(self, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Weights, optimiser, and what else going on needs; what stood there becomes `previous`."""
        if self.world.first:
            optimiser = {**optimiser_tensors(self.model, self.optimiser), **tensors}
            found = Checkpoint(self._weights(), optimiser, self.config, dict(state))
            checkpoint.save(found, self.run, LAST, PREVIOUS)

    def save_best(self, state: Mapping[str, Any], beside: Mapping[str, bytes]) -> None:
        """Weights, whole, with the files that belong to them."""
        weights = self._weights()
        if self.world.first:
            checkpoint.save(Checkpoint(weights, {}, self.config, dict(state), dict(beside)), self.run, BEST, EARLIER_BEST)

    def load_last(self) -> Loaded | None:
        """Put weights and optimiser where they were; None if there is no checkpoint."""
        if any((self.run / name).is_dir() and not (self.run / name / checkpoint.MODEL).exists() for name in (LAST, PREVIOUS)):
            # written in parts, perhaps; imported here because it brings all of PyTorch's sharding
            from rfwp.train.sharded import is_sharded, load_sharded

            if any(is_sharded(self.run / name) for name in (LAST, PREVIOUS)):
                return load_sharded(self.run / LAST, self.model, self.optimiser, self.world, self.warn)
        found = checkpoint.load(self.run, (LAST, PREVIOUS), self.warn)
        if found is None:
            return None
        self._put(found.model)
        # a run that sets the learning rate at every step does not keep it
        restore_optimiser(self.model, self.optimiser, found.optimiser, found.state.get("lr"))
        return Loaded(found.state, found.optimiser)

    def best(self) -> dict[str, Any] | None:
        """What the best checkpoint says of itself."""
        found = self._read_best()
        return found.state if found else None

    def load_best(self) -> dict[str, Any] | None:
        """The same, and put its weights in place."""
        found = self._read_best()
        if found is None:
            return None
        self._put(found.model)
        return found.state

    def _put(self, weights: dict[str, Tensor]) -> None:
        load_weights(self.model, weights, self.run)

    def _weights(self) -> dict[str, Tensor]:
        if not self.world.first:
            return {}
        return {name: tensor.detach().cpu() for name, tensor in self.model.state_dict().items()}

    def _read_best(self) -> Checkpoint | None:
        return checkpoint.load(self.run, (BEST, EARLIER_BEST), self.warn)
