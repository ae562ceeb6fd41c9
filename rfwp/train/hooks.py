"""What a training loop says of itself, for `rfwp.train.epochs` to run it: its steps, its tests, and what else it keeps."""

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from rfwp.train.log import Moment
from rfwp.train.progress import Best, Counted, Progress
from rfwp.train.step import TrainStep


class Hooks(ABC):
    """The parts of a run that differ from loop to loop. An epoch is what lies between two validations."""

    score: str
    """The metric that decides which checkpoint is the best."""
    higher_is_better = True
    steps: int
    """Of an epoch; the last one may have fewer."""
    step: TrainStep
    progress: Progress
    best: Best | None
    _score: float | None
    """Of the last validation."""

    @property
    @abstractmethod
    def epochs(self) -> int: ...

    @abstractmethod
    def _make_step(self) -> TrainStep: ...

    @abstractmethod
    def _begin_epoch(self) -> int:
        """Make ready for the next epoch; how many steps it has."""

    @abstractmethod
    def _take(self, n: int) -> tuple[Counted, Tensor]:
        """Step n of the epoch: its batch and its loss."""

    @abstractmethod
    def _validated(self) -> dict[str, float]: ...

    @abstractmethod
    def _tested(self) -> tuple[dict[str, float], dict[str, float]]:
        """Of the best checkpoint: what it reaches on the test set, and what is to be said of it on the validation set."""

    @abstractmethod
    def _batch(self, epoch: int, step: int) -> dict[str, Tensor]:
        """The whole batch of a step, by name."""

    def _place(self, epoch: int, step: int) -> str:
        """`epoch 3, step 7` for the step after so many epochs and steps."""
        return f"epoch {epoch + 1}, step {step + 1}"

    def _after(self) -> str:
        """What of the run is done."""
        return f"after epoch {self.progress.epoch}, step {self.progress.step}"

    def _where(self) -> str:
        """Where the run stops."""
        progress = self.progress
        if not progress.step:
            return f"after epoch {progress.epoch}"
        return f"in epoch {progress.epoch + 1}, step {progress.step}/{self.steps}"

    def _moment(self) -> Moment:
        """How far it is, for those who watch."""
        progress, epochs = self.progress, self.epochs
        done = progress.epoch + progress.step / self.steps
        return Moment(
            epoch=progress.epoch + 1,
            epochs=epochs,
            step=progress.step,
            steps=self.steps,
            loss=progress.mean_loss,
            tokens_per_s=progress.tokens_per_s,
            seconds_left=progress.seconds / done * max(0.0, epochs - done) if done else None,
            score=self._score,
            best=self.best.score if self.best else None,
        )

    def _more_state(self) -> dict[str, Tensor]:
        """What else going on needs."""
        return {}

    def _restore_more(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `_more_state`, from all tensors of a checkpoint."""
        assert not self._more_state()

    def _beside_weights(self) -> dict[str, bytes]:
        """Files that belong to the weights of the best checkpoint."""
        return {}

    def _more_of_record(self) -> dict[str, Any]:
        """What a line of metrics.jsonl says beside what all runs say; `step` where curves count steps and not epochs."""
        return {}

    def _details(self) -> dict[str, Any]:
        """Fields of the result beside those that all runs have."""
        return {}

    def _patient(self) -> bool:
        """Whether it is worth going on."""
        return True
