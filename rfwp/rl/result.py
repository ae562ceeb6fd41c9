"""The folder of an agent's run and what the run is worth: one JSON object."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rfwp.config import RLRunConfig
from rfwp.train.folder import CONFIG, Folder
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


def is_rl_run(folder: Path) -> bool:
    """Whether a folder holds an agent's run, finished or not."""
    try:
        return bool(json.loads((folder / CONFIG).read_bytes())["run"]["kind"] == "rlrun")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def curve(records: Iterable[dict[str, Any]]) -> tuple[tuple[int, float], ...]:
    """(agent steps, return) of the records that have one."""
    found = ((record["steps"], record.get("return", record.get("return_life"))) for record in records)
    return tuple((steps, value) for steps, value in found if value is not None)
