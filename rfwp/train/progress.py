"""How far a run is, and its best epoch: what a checkpoint counts."""

from dataclasses import dataclass


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


@dataclass(frozen=True)
class Best:
    """The best validation so far."""

    epoch: int
    score: float
    valid: dict[str, float]
