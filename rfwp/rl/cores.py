"""How many of the machine's cores environments get, and how much of them they use."""

import os
import time


def environment_threads() -> int:
    """Of this process: all cores but one in eight, which choosing actions and learning need; shared with its neighbours."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores //= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, cores - max(1, cores // 8))


class BusyClock:
    """The share of the time in which `threads` threads of environments worked: 1 if none of them ever waited.

    What counts is the time that threads other than this one had a core, since threads that wait have none.
    """

    def __init__(self, threads: int):
        self.threads = threads
        self.lap()

    def lap(self) -> float:
        """Since the last lap."""
        now = time.monotonic(), time.process_time() - time.thread_time()
        before, self._before = getattr(self, "_before", now), now
        seconds, worked = (b - a for a, b in zip(before, now, strict=True))
        return worked / max(1e-9, seconds * self.threads)
