"""How many of the machine's cores environments get, and how much of them they use."""

import os
import time
from collections.abc import Callable


def environment_threads() -> int:
    """Cores for the environments of this process: all but one in eight, which choosing actions and learning need."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores //= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, cores - max(1, cores // 8))


def threads_of_group(cores: int, groups: int) -> int:
    """Threads that each group of environments gets: two for every core, over all groups, since not all of them play at once."""
    return min(cores, -(-2 * cores // groups))


class BusyClock:
    """Cores that environments used, of the `threads` that they have: about 1 if none was ever without work.

    What counts is the time that threads other than this one had a core, since threads that wait have none; `others`: seconds
    that threads had which are no environments' either.
    """

    def __init__(self, threads: int, others: Callable[[], float] = float):
        self.threads, self.others = threads, others
        self.lap()

    def lap(self) -> float:
        """Since the last lap."""
        now = time.monotonic(), time.process_time() - time.thread_time() - self.others()
        before, self._before = getattr(self, "_before", now), now
        seconds, worked = (b - a for a, b in zip(before, now, strict=True))
        return worked / max(1e-9, seconds * self.threads)
