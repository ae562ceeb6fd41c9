"""A measurement is one JSON line: what, on which shape, how long, and on which machine and code."""

import json
import os
import platform
import re
import subprocess
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from rfwp.errors import InvalidFile
from rfwp.version import __version__


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
    tokens_per_s: float | None = None
    peak_mb: float | None = None
    """Memory at its peak: beside the inputs for an op, in all for a training step."""
    floor_ratio: float | None = None
    """Time relative to the same model with the op replaced by an elementwise product."""
    error: float | None = None
    """Worst relative error against the float64 reference."""
    note: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a benchmark found: rows to show and to keep, what failed its check, and texts and files beside them."""

    rows: list[Row]
    failures: list[str]
    texts: list[str]
    files: list[Path]


def environment(device: torch.device, commit: str = "") -> dict[str, Any]:
    """The machine and the code."""
    found = {"commit": commit, "dirty": None} if commit else _git()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(device),
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "torch": torch.__version__,
        "triton": _version("triton"),
        "rfwp": __version__,
        **found,
    }


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def stem(where: dict[str, Any]) -> str:
    """`2026-01-31-nvidia-h200`: the start of the names of all files of a day and a device."""
    slug = re.sub(r"[^a-z0-9]+", "-", where["device"].lower()).strip("-")
    return f"{where['time'][:10]}-{slug}"


def append(rows: list[Row], where: dict[str, Any], folder: Path) -> Path:
    """Add the rows to the file of the day and device, in one write, so that two runs at a time never mix within a line."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem(where)}.jsonl"
    lines = "".join(json.dumps(asdict(row) | where, allow_nan=False) + "\n" for row in rows)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, lines.encode())
    finally:
        os.close(handle)
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
        try:
            data = {name: value for name, value in json.loads(line).items() if name in names}
            rows.append(Row(**data | {"ms": Timing(**data["ms"]) if data["ms"] else None}))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise InvalidFile(f"{path}: line {number} is not a row of a benchmark") from None
    return rows


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git() -> dict[str, Any]:
    """The commit of the code and whether the tree differs from it; None where there is no git."""
    here = Path(__file__).parent

    def ask(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        return {"commit": ask("rev-parse", "HEAD"), "dirty": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}
