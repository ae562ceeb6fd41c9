"""How far a run is, and its best epoch: what a checkpoint counts."""

from dataclasses import dataclass
from typing import Protocol


class Counted(Protocol):
    """What the host knows of a batch."""

    @property
    def targets(self) -> int: ...

    @property
    def tokens(self) -> int: ...


@dataclass
class Progress:
    """How far a run is, with the sums of the epoch under way."""

    epoch: int = 0
    """Whole epochs done."""
    step: int = 0
    """Steps done in the next one."""
    loss: float = 0.0
    """Summed over targets."""
    targets: int = 0
    tokens: int = 0
    train_seconds: float = 0.0
    """Of the steps of this epoch."""
    epoch_seconds: float = 0.0
    """Of this epoch, validation and checkpoints included."""
    seconds: float = 0.0
    """Of the whole run."""

    def add(self, batch: Counted, loss: float) -> None:
        """A step with its loss, a mean over its targets."""
        self.loss += loss * batch.targets
        self.targets += batch.targets
        self.tokens += batch.tokens

    @property
    def mean_loss(self) -> float:
        return self.loss / max(1, self.targets)

    @property
    def tokens_per_s(self) -> float:
        return round(self.tokens / max(self.train_seconds, 1e-9), 1)


@dataclass(frozen=True)
class Best:
    """The best validation so far."""

    epoch: int
    score: float
    valid: dict[str, float]

    def is_below(self, valid: dict[str, float], score: str, higher_is_better: bool) -> bool:
        """Whether another is better: by the score; of two equal ones, such as two zeros, by the other metrics in their order."""
        sign = 1 if higher_is_better else -1
        names = [score, *(name for name in valid if name != score)]
        new, old = ([sign * metrics[name] for name in names] for metrics in (valid, self.valid))
        return new > old
