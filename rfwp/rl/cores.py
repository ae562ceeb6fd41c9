"""How many of the machine's cores environments get, and how much of them they use."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

TASKS = Path("/proc/self/task")
"""Where Linux tells of the threads of this process; other systems have no such place."""


SHARED_BY = "RFWP_CORES_SHARED_BY"
"""Variable of the environment: how many trainings run on the cores of this machine at once."""


def environment_threads() -> int:
    """Cores for the environments of this process: all but one in four, which choosing actions and learning need."""
    return max(1, _cores() - max(1, _cores() // 4))


def torch_threads() -> int:
    """Threads of PyTorch on a CPU that has environments to play, too: half of the cores, or what was asked for if that is less.

    They wait for each other in a busy loop: with one for every core, whatever else runs there makes all of them slow.
    """
    return min(torch.get_num_threads(), max(1, _cores() // 2))


def _cores() -> int:
    """Of this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores // (int(os.environ.get("LOCAL_WORLD_SIZE", "1")) * int(os.environ.get(SHARED_BY, "1")))


def threads_of_group(cores: int, groups: int, parts: int = 1) -> int:
    """Threads that each group of environments gets: one for every core, over all groups, if its environments answer in parts.

    Otherwise not all groups play at once, and two for every core.
    """
    return min(cores, -(-(2 if parts == 1 else 1) * cores // groups))


class BusyClock:
    """Cores that environments used, of those that they have: about 1 if none of these was ever without work.

    >>> clock = BusyClock(cores=14)
    >>> with clock.counting():
    ...     environments = make(...)
    >>> clock.lap()                     # since the last lap, or since it began to count

    What counts is the time that threads which were started inside `counting` had a core; one that waits has none.
    """

    def __init__(self, cores: int):
        self.cores = cores
        self._seconds: dict[str, float] = {}
        self._before = time.monotonic(), 0.0

    @contextmanager
    def counting(self) -> Iterator[None]:
        before = _threads()
        yield
        self._seconds |= dict.fromkeys(_threads() - before, 0.0)

    def lap(self) -> float | None:
        """None: environments have no threads, or the system does not tell."""
        if not self._seconds:
            return None
        # a copy: environments that failed may just be made anew, in another thread
        for thread in list(self._seconds):
            self._seconds[thread] = _seconds(thread, self._seconds[thread])
        now = time.monotonic(), sum(self._seconds.values())
        before, self._before = self._before, now
        return (now[1] - before[1]) / max(1e-9, (now[0] - before[0]) * self.cores)


def _threads() -> set[str]:
    return {task.name for task in TASKS.iterdir()} if TASKS.is_dir() else set()


def _seconds(thread: str, before: float) -> float:
    """Time that it has had a core; as before, if it has ended."""
    try:
        # behind its name, which may hold anything: utime and stime are fields 14 and 15 of all
        fields = (TASKS / thread / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return before
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
