"""The folder of an agent's run and what the run is worth: one JSON object."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rfwp.config import RLRunConfig
from rfwp.train.folder import Folder
from rfwp.train.result import RunResult


@dataclass(frozen=True, kw_only=True)
class RLResult(RunResult):
    """Of an agent, as it was at the end of its training."""

    config: RLRunConfig
    metrics: dict[str, float]
    """Means of the last 100 training episodes: `return` of whole games, `return_life` of lives."""
    steps: int
    """Agent steps learned from."""
    updates: int
    steps_per_s: float
    failures: int = 0
    """Times that environments failed and were started anew."""
    curve: tuple[tuple[int, float], ...] = ()
    """(agent steps, return) of every record that has one: of whole games if any ended, else of lives."""
    stopped: str | None = None
    """Why it ended before its last step: SIGINT, SIGTERM or time. It can be resumed."""


class RLFolder(Folder[RLRunConfig, RLResult]):
    """Of an agent."""

    configs, results = (RLRunConfig,), RLResult
    of, count = "an agent", "steps"


def curve(records: Iterable[dict[str, Any]]) -> tuple[tuple[int, float], ...]:
    """(agent steps, return) of the records that have one."""
    found = ((record["steps"], record.get("return", record.get("return_life"))) for record in records)
    return tuple((steps, value) for steps, value in found if value is not None)


def summary(results: Sequence[RLResult]) -> tuple[str, list[tuple[str, str]]]:
    """A title, and rows: returns of the last 100 training episodes of each seed, steps and speed."""
    titles = {"return": "return of games", "return_life": "return of lives"}
    rows = [
        (title, ", ".join(f"{result.metrics[name]:.2f}" for result in results if name in result.metrics))
        for name, title in titles.items()
        if any(name in result.metrics for result in results)
    ]
    rows = rows or [("return", "no episode ended")]
    rows.append(("agent steps", ", ".join(f"{result.steps:,}" for result in results)))
    rows.append(("steps/s", ", ".join(f"{result.steps_per_s:,.0f}" for result in results)))
    return "the last 100 episodes of training", rows
