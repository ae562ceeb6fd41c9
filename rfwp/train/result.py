"""What a run is worth: one JSON object."""

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from rfwp.config import LanguageRunConfig, RunConfig, from_dict, to_dict


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What all kinds of runs say: their config and numbers, and the machine and code that these come from."""

    config: Any
    """Of the run's kind."""
    seed: int
    metrics: dict[str, float]
    seconds: float
    """Of training and validation, over all parts of a run that was resumed."""
    parameters: int
    device: str = ""
    commit: str | None = None
    """Of the code at the start of its last part; None: git did not know."""
    dirty: bool | None = None
    """Whether the code differed from that commit."""
    torch: str = ""
    rfwp: str = ""
    time: str = ""
    curve: tuple[tuple[float, ...], ...] = ()
    stopped: str | None = None
    """Why it ended before its last step. After a signal, or when its time was up, it can be resumed."""

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the preset's name in front."""
        data = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        data["config"], data["curve"] = to_dict(self.config), [list(point) for point in self.curve]
        return {"preset": self.config.preset, **data}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        values = {name: value for name, value in data.items() if name != "preset"}
        values["config"], values["curve"] = from_dict(data["config"]), tuple(tuple(point) for point in data["curve"])
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Result(RunResult):
    """Of a model of sequences, whose best checkpoint is tested at the end."""

    config: RunConfig | LanguageRunConfig
    metrics: dict[str, float]
    """Of the best checkpoint on the test set; empty while the run is not finished."""
    valid: dict[str, float]
    """Of the best checkpoint on the validation set."""
    best_epoch: int
    """Counted from 1; 0 before the first validation. Of a language model: the best validation."""
    epochs: int
    """Epochs trained. Of a language model: validations."""
    tokens_per_s: float
    """Training tokens a second, padding not counted, in the median epoch."""
    curve: tuple[tuple[int, float, float], ...] = ()
    """(epoch, training loss, validation score) of every epoch; steps in place of epochs for a language model."""
    stopped: str | None = None
    """Why it ended before its last epoch: patience, SIGINT or SIGTERM. After a signal it can be resumed."""
    data: str = ""
    """Tells one text from another."""
    words: int = 0
    """Of the training text of a language model."""


def summary(results: Sequence[Result]) -> tuple[str, list[tuple[str, str]]]:
    """A title, and every test metric with its mean ± standard deviation (n - 1) over the seeds."""
    rows = []
    for name in results[0].metrics:
        factor, unit = (1, "") if name.startswith("perplexity") else (100, " %")
        values = [factor * result.metrics[name] for result in results]
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        rows.append((name, f"{statistics.fmean(values):.2f}{spread}{unit}"))
    title = f"test, {len(results)} seeds: mean ± standard deviation" if len(results) > 1 else "test"
    return title, rows
