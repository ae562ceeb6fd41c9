"""Ctrl-C, SIGTERM and a closed terminal as wishes: the step is finished and saved before the process ends."""

import os
import signal
import threading
from types import FrameType
from typing import Any, Self

HANG_UP: signal.Signals | None = getattr(signal, "SIGHUP", None)
"""Comes when a terminal is closed, and counts as SIGTERM; Windows has none."""
STOPS = (signal.SIGINT, signal.SIGTERM) if HANG_UP is None else (signal.SIGINT, signal.SIGTERM, HANG_UP)
WAIT = b"\nstopping as soon as this step is done and saved; Ctrl-C again leaves at once\n"


class StopSignals:
    """`with StopSignals() as stop:` catches them; `stop.wish` is 0, or the number of the first signal that came."""

    def __init__(self, leave_at_second: bool = True):
        self.wish = 0
        self.leave_at_second = leave_at_second
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        # only the main thread may; and what ignores Ctrl-C in the background goes on ignoring it
        if threading.current_thread() is threading.main_thread():
            chosen = [s for s in STOPS if signal.getsignal(s) is not signal.SIG_IGN]
            self._before = {s: signal.signal(s, self._handle) for s in chosen}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.wish and number == signal.SIGINT and self.leave_at_second:
            raise KeyboardInterrupt
        if not self.wish and number == signal.SIGINT and self.leave_at_second:
            # not through Python's files: whoever is interrupted may be writing to them
            os.write(2, WAIT)
        self.wish = self.wish or (signal.SIGTERM if number == HANG_UP else number)
