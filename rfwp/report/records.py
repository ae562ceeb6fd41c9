"""A finished run is one JSON line: preset, seed, config, metrics, and the machine and code that it ran on.

Tables and plots are made from these lines.
"""

import json
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rfwp.config import PLACES, LanguageRunConfig, RLRunConfig, RunConfig, differences, to_dict
from rfwp.errors import InvalidFile, RFWPError
from rfwp.presets import is_language, language_run, run_config


@dataclass(frozen=True)
class Run:
    """One line of results/runs/*.jsonl; a line may have more fields than these."""

    preset: str
    seed: int
    config: dict[str, Any]
    """As `to_dict` gives it."""
    metrics: dict[str, float]
    """Of the best checkpoint on the test set."""
    valid: dict[str, float]
    """Of the best checkpoint on the validation set."""
    seconds: float
    epochs: int
    best_epoch: int
    parameters: int
    tokens_per_s: float | None = None
    curve: list[list[float]] = field(default_factory=list)
    """[epoch, training loss, validation score] for every epoch; of an agent [agent steps, return]."""
    device: str = ""
    commit: str | None = None
    dirty: bool | None = None
    """Whether the code differed from that commit; None: not known."""
    data: str = ""
    """Tells the text of a language model from others."""
    words: int = 0
    """Of that text."""
    torch: str = ""
    rfwp: str = ""
    time: str = ""

    @property
    def code(self) -> str:
        return code_name(self.commit, self.dirty)

    def value(self, metric: str, split: str = "test") -> float | None:
        if metric == "parameters":
            return self.parameters
        return (self.metrics if split == "test" else self.valid).get(metric)


def code_name(commit: str | None, dirty: bool | None) -> str:
    """`d7a9759`, `d7a9759 with changes`"""
    return (commit or "unknown")[:7] + (" with changes" if dirty else "")


def devices_and_codes(runs: Iterable[Run]) -> tuple[str, str]:
    """`NVIDIA H200` and `37c566f, d7a9759`: where they ran, and with which code."""
    found = list(runs)
    devices = ", ".join(sorted({run.device for run in found if run.device}))
    return devices or "an unknown device", ", ".join(sorted({run.code for run in found}))


def append_line(path: Path, data: Mapping[str, Any]) -> None:
    """Add one line of JSON, in one write, so that processes that finish together never mix within a line."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        append_text(path, json.dumps(data, allow_nan=False) + "\n")
    except OSError as error:
        raise InvalidFile(f"cannot write {path}: {error.strerror}") from error


def append_text(path: Path, text: str) -> None:
    # a line that a full disk cut off must not swallow the next one; readers pass over an empty line
    if path.exists() and not _ends_with_newline(path):
        text = "\n" + text
    data = text.encode()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        written = os.write(handle, data)
    finally:
        os.close(handle)
    if written != len(data):
        raise InvalidFile(f"{path}: only {written} of {len(data)} bytes could be written; is the disk full?")


def read_runs(folder: Path) -> list[Run]:
    """All runs in all .jsonl files of a folder; none where there is no such folder."""
    return [run for path in sorted(folder.glob("*.jsonl")) for run in read_file(path)]


def read_file(path: Path) -> list[Run]:
    """The runs of one file; a damaged line is named."""
    runs = []
    for number, run in read_lines(path):
        if run is None:
            raise InvalidFile(f"{path}: line {number} is not a finished run; remove the line or mend it")
        runs.append(run)
    return runs


def read_lines(path: Path) -> Iterator[tuple[int, Run | None]]:
    """Every line that is not empty, with its number; None for what is no finished run."""
    names = {f.name for f in fields(Run)}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            run = Run(**{name: value for name, value in json.loads(line).items() if name in names})
            yield number, run if _is_whole(run) else None
        except (ValueError, TypeError, AttributeError, RecursionError):
            yield number, None


def deviations(run: Run) -> list[str]:
    """Where a run's config differs from its preset's, the seed apart: `train.epochs 200 -> 2`."""
    try:
        expected = language_run(run.preset) if is_language(run.preset) else run_config(run.preset)
    except RFWPError:
        return [f"no preset '{run.preset}' to compare it with"]
    return differences(to_dict(expected), run.config, ignore=("train.seed",))


def same_run(run: Run, config: RunConfig | LanguageRunConfig | RLRunConfig) -> bool:
    """A finished run of this very config, the seed included, wherever its data lay."""
    return not differences(to_dict(config), run.config, ignore=PLACES)


@dataclass(frozen=True)
class Chosen:
    """The runs of a preset that count, one a seed, and those that do not, with the reason."""

    runs: list[Run]
    left_out: list[tuple[Run, list[str]]]


def choose(runs: Iterable[Run], preset: str) -> Chosen:
    """Runs at other settings than the preset's are left out; where a seed ran twice, the later run counts.

    Agents do not belong here: their runs have a table with the steps that they had.
    """
    counted: dict[int, Run] = {}
    left_out = []
    mine = (run for run in runs if run.preset == preset and run.config.get("kind") != "rlrun")
    for run in sorted(mine, key=lambda run: run.time):
        if reasons := deviations(run):
            left_out.append((run, reasons))
        else:
            counted[run.seed] = run
    return Chosen([counted[seed] for seed in sorted(counted)], left_out)


@dataclass(frozen=True)
class Summary:
    """Over n seeds. `std` is the sample standard deviation, with n - 1; None for a single seed."""

    mean: float
    std: float | None
    lowest: float
    highest: float
    n: int


def summarise(values: Iterable[float | None]) -> Summary | None:
    """None if there is no value at all."""
    found = [value for value in values if value is not None]
    if not found:
        return None
    std = statistics.stdev(found) if len(found) > 1 else None
    return Summary(statistics.fmean(found), std, min(found), max(found), len(found))


def _is_whole(run: Run) -> bool:
    numbers = [*run.metrics.values(), *run.valid.values(), run.seconds, run.epochs, run.best_epoch, run.parameters]
    return (
        isinstance(run.preset, str)
        and isinstance(run.config, dict)
        and type(run.seed) is int
        and all(isinstance(number, int | float) for number in numbers)
        and all(len(point) == (2 if run.config.get("kind") == "rlrun" else 3) for point in run.curve)
    )


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
