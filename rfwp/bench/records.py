"""A measurement is one JSON line: what, on which shape, how long, and on which machine and code."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rfwp.environment import stem
from rfwp.errors import InvalidFile
from rfwp.report.records import append_text


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the median, the 20th and the 80th percentile of n repetitions."""

    median: float
    p20: float
    p80: float
    n: int


@dataclass(frozen=True)
class Row:
    """One line of a benchmark. Without a timing, `note` says why."""

    what: str
    """The op with its passes, or the model with its training step."""
    shape: str
    sizes: dict[str, int]
    dtype: str
    backend: str
    ms: Timing | None = None
    device_ms: Timing | None = None
    """Of the kernels alone, where that was timed: without what Python takes to launch them."""
    tokens_per_s: float | None = None
    peak_mb: float | None = None
    """Memory at its peak: beside the inputs for an op, in all for a training step."""
    floor_ratio: float | None = None
    """Time relative to the same model with the op replaced by an elementwise product."""
    error: float | None = None
    """Worst relative error against the float64 reference."""
    busy: float | None = None
    """Share of the time in which the threads of environments worked."""
    lag: float | None = None
    """Updates between the weights that acted and those that learned, in the mean."""
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a benchmark found: rows to show and to keep, what failed its check, and texts and files beside them."""

    rows: list[Row]
    failures: list[str]
    texts: list[str]
    files: list[Path]


def append(rows: list[Row], where: dict[str, Any], folder: Path) -> Path:
    """Add the rows to the file of the day and device, in one write, so that two runs at a time never mix within a line."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem(where)}.jsonl"
    lines = "".join(json.dumps(asdict(row) | where, allow_nan=False) + "\n" for row in rows)
    append_text(path, lines)
    return path


def one_line(error: Exception) -> str:
    """`RuntimeError: what it says in its first line`"""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def read(path: Path) -> list[Row]:
    """The rows of a file of JSON lines."""
    if not path.is_file():
        raise InvalidFile(f"{path} is no file; give one of the .jsonl files that `rfwp bench` writes")
    names = {f.name for f in fields(Row)}
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            data = {name: value for name, value in json.loads(line).items() if name in names}
            times = {"ms": data["ms"], "device_ms": data.get("device_ms")}
            rows.append(Row(**data | {name: Timing(**ms) if ms else None for name, ms in times.items()}))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise InvalidFile(f"{path}: line {number} is not a row of a benchmark") from None
    return rows
