"""Losses and time of steps, counted into the progress of a run."""

import math
import time

import torch
from torch import Tensor

from rfwp.train.distributed import World
from rfwp.train.progress import Counted, Progress

CHECK_EVERY = 50
"""Steps between two looks at the losses: each look waits for the device."""


class Meter:
    """Of one process; losses are added up over all of them, which look together."""

    def __init__(self, world: World):
        self.world = world
        self._pending: list[tuple[int, Counted, Tensor]] = []
        self.start()

    def start(self) -> None:
        """From here on time counts."""
        self._clock = self._looked = time.monotonic()

    def add(self, step: int, batch: Counted, loss: Tensor) -> None:
        """A step of the epoch; its loss may still be under way."""
        self._pending.append((step, batch, loss))

    def due(self, live: bool) -> bool:
        """Whether to look: after so many steps, or after a second if somebody is watching, a minute if not."""
        # several processes look together, so they cannot go by their own clocks
        late = self.world.size == 1 and time.monotonic() - self._looked > (1 if live else 60)
        return late or len(self._pending) >= CHECK_EVERY

    def look(self, progress: Progress) -> tuple[int, float] | None:
        """Count the steps since the last look; one whose loss is not finite comes back, with that loss."""
        if self._pending:
            losses = self.world.sum(torch.stack([loss for _, _, loss in self._pending])).tolist()
            for (step, batch, _), loss in zip(self._pending, losses, strict=True):
                if not math.isfinite(loss):
                    return step, loss
                progress.add(batch, loss)
            self._pending.clear()
        progress.train_seconds += self.lap(progress)
        self._looked = time.monotonic()
        return None

    def lap(self, progress: Progress) -> float:
        """Seconds since the last lap, added to those of the epoch and the run."""
        now = time.monotonic()
        lap, self._clock = now - self._clock, now
        progress.epoch_seconds += lap
        progress.seconds += lap
        return lap
