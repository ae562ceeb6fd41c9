"""The machine and the code that a number comes from."""

import os
import platform
import re
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from rfwp.version import __version__


def environment(device: torch.device, commit: str = "") -> dict[str, Any]:
    """The machine and the code. `commit`: which code it is, where git cannot say it."""
    found = {"commit": commit, "dirty": None} if commit else _git()
    return {
        "time": now(),
        "device": device_name(device),
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "torch": torch.__version__,
        "triton": _version("triton"),
        "rfwp": __version__,
        **found,
    }


def now() -> str:
    """`2026-01-31T12:00:00+00:00`"""
    return datetime.now(UTC).isoformat(timespec="seconds")


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


def process_age() -> float:
    """Seconds since this process was started, its imports included; 0 where the system does not tell, or tells nonsense."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, LookupError):
        return 0.0
    return age if 0 < age < 300 else 0.0


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git() -> dict[str, Any]:
    """The commit of the code and whether the code differs from it; None where git does not know this code."""
    here = Path(__file__).parent

    def ask(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        # an installed copy may lie inside a repository of somebody else
        ask("ls-files", "--error-unmatch", Path(__file__).name)
        # only the package: results that are written beside it are no change of the code
        return {"commit": ask("rev-parse", "HEAD"), "dirty": bool(ask("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}
