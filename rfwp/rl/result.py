"""The folder of an agent's run and what the run is worth: one JSON object."""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rfwp.config import RLRunConfig, from_dict, to_dict
from rfwp.errors import InvalidFile, RFWPError
from rfwp.train.checkpoint import replace_file
from rfwp.train.folder import CONFIG, METRICS, RESULT, RunFolder
from rfwp.version import __version__


@dataclass(frozen=True)
class RLResult:
    """A run, its numbers, and the machine and code that they come from."""

    config: RLRunConfig
    seed: int
    metrics: dict[str, float]
    """Means of the last 100 training episodes: `return` of whole games, `return_life` of lives."""
    steps: int
    """Agent steps learned from."""
    updates: int
    seconds: float
    """Of training, over all parts of a run that was resumed."""
    steps_per_s: float
    parameters: int
    failures: int = 0
    """Times that environments failed and were started anew."""
    device: str = ""
    commit: str | None = None
    """Of the code at the start of its last part; None: git did not know."""
    dirty: bool | None = None
    """Whether the code differed from that commit."""
    torch: str = ""
    rfwp: str = ""
    time: str = ""
    curve: tuple[tuple[int, float], ...] = ()
    """(agent steps, return) of every record that has one: of whole games if any ended, else of lives."""
    stopped: str | None = None
    """Why it ended before its last step: SIGINT, SIGTERM or time. It can be resumed."""

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


class RLFolder(RunFolder):
    """A folder that holds one run of an agent, or none yet."""

    def config(self) -> RLRunConfig:  # type: ignore[override]
        """Of the run that is here; an error if there is none."""
        if not self.used:
            raise InvalidFile(f"{self.path} is no run folder: it has no {CONFIG}; give the folder that `rfwp train` made")
        try:
            config = from_dict(self._json(CONFIG).get("run"), "run")
        except RFWPError as error:
            raise InvalidFile(f"{self.path / CONFIG}: {error}") from error
        if not isinstance(config, RLRunConfig):
            raise InvalidFile(f"{self.path} holds no run of an agent but of another model")
        return config

    def create(self, config: RLRunConfig, data: str = "") -> None:  # type: ignore[override]
        """Write the run's config, unless it is there."""
        if not self.used:
            text = json.dumps({"rfwp": __version__, "run": to_dict(config)}, indent=2) + "\n"
            replace_file(self.path / CONFIG, text.encode())

    # --- Records, by agent steps ---

    def records(self) -> list[dict[str, Any]]:
        """What metrics.jsonl holds; a last line that was cut off does not count."""
        path = self.path / METRICS
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        return [record for line in lines if (record := _parse(line)) is not None]

    def keep_records(self, steps: int) -> None:
        """Drop the records of steps that will be made again."""
        if (self.path / METRICS).exists():
            kept = {record["steps"]: record for record in self.records() if record["steps"] <= steps}
            text = "".join(json.dumps(record) + "\n" for record in kept.values())
            replace_file(self.path / METRICS, text.encode())

    # --- Result ---

    def result(self) -> RLResult:  # type: ignore[override]
        data = self._json(RESULT)
        try:
            return RLResult.from_json(data)
        except (RFWPError, TypeError, KeyError) as error:
            raise InvalidFile(
                f"{self.path / RESULT} is not a result of this version: {error}; delete it to finish again"
            ) from error

    def write_result(self, result: RLResult) -> None:  # type: ignore[override]
        text = json.dumps(result.to_json(), indent=2, allow_nan=False) + "\n"
        replace_file(self.path / RESULT, text.encode())


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


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("steps"), int) else None
