"""What a person sees of a run: a live line on a terminal; elsewhere one line an epoch, and in long ones one every few minutes.

TensorBoard's curves as well, if it is installed.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from rfwp.errors import reason
from rfwp.train.curves import Curves

log = logging.getLogger("rfwp")

SILENCE = 120.0
"""Seconds without a line, where there is no terminal, after which one says how far a run is."""


@dataclass(frozen=True)
class Moment:
    """How far a run is."""

    epoch: int
    """The one under way, from 1."""
    epochs: int
    """0: there are only steps."""
    step: int
    steps: int
    loss: float
    """Mean over the targets of the epoch so far."""
    tokens_per_s: float
    seconds_left: float | None
    score: float | None
    """Of the last validation."""
    best: float | None
    """Of all validations so far."""
    metric: str = "accuracy"
    """What the scores are."""


class Log:
    """Says little, through Python's logging; the base of logs that say more."""

    live = False
    """Whether it wants to know every second."""

    def say(self, line: str) -> None:
        log.info(line)

    def warn(self, line: str) -> None:
        """What must be known."""
        log.warning(line)

    def start(self, folder: Path, epochs: int, done: int) -> None: ...

    def moment(self, moment: Moment) -> None: ...

    def epoch(self, record: dict[str, Any], moment: Moment) -> None: ...

    def working(self, what: str, done: int, total: int) -> None:
        """On something that takes a while, such as a test."""

    def show(self, line: str) -> None:
        """How far a run is that has no epochs: the live line."""

    def scalars(self, values: dict[str, float], step: int) -> None:
        """Numbers for TensorBoard."""

    def end(self) -> None: ...


class Screen(Console):
    """A console whose reader may go away, as in `rfwp presets | head`: that is an error like others, not the end."""

    def on_broken_pipe(self) -> None:
        # the BrokenPipeError that rich has caught
        raise


class ConsoleLog(Log):
    """On a console, and for TensorBoard. If nobody reads any more, or the disk is full, the run goes on without."""

    def __init__(self, console: Screen | None = None, tensorboard: bool = True):
        self.console = console or Screen()
        self.live = self.console.is_terminal
        self._tensorboard = tensorboard
        self._line: Live | None = None
        self._curves: Curves | None = None
        self._said = time.monotonic()

    def say(self, line: str) -> None:
        self._said = time.monotonic()
        with self._heard():
            # no wrapping and no colours in the middle of a path
            self.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def warn(self, line: str) -> None:
        self.say(line)

    def start(self, folder: Path, epochs: int, done: int) -> None:
        if self._tensorboard:
            self._draw(lambda: self._open(folder / "tensorboard", done))
        if self.live:
            self._begin_line()

    def moment(self, moment: Moment) -> None:
        if not self.live and time.monotonic() - self._said > SILENCE:
            self.say(describe(moment))
        self._update(Text(describe(moment), overflow="ellipsis", no_wrap=True))

    def epoch(self, record: dict[str, Any], moment: Moment) -> None:
        if self._line is None:
            valid = ", ".join(f"{name} {shown(name, value)}" for name, value in record["valid"].items())
            left = f", {duration(moment.seconds_left)} left" if moment.seconds_left else ""
            speed = f"{record['tokens_per_s']:,.0f} tokens/s"
            self.say(f"{_place(moment)}: loss {record['loss']:.4f}, {valid}, {speed}{left}")
        else:
            self.moment(moment)
        values = {"train/loss": record["loss"], "speed/tokens_per_s": record["tokens_per_s"]}
        values |= {f"valid/{name}": value for name, value in record["valid"].items()}
        self.scalars(values, record.get("step", record["epoch"]))

    def working(self, what: str, done: int, total: int) -> None:
        if not self.live:
            return
        if self._line is None:
            self._begin_line()
        self._update(Text(f"{what}  {done / total:.0%} of {total:,} words"))

    def show(self, line: str) -> None:
        self._update(Text(line, overflow="ellipsis", no_wrap=True))

    def scalars(self, values: dict[str, float], step: int) -> None:
        if (curves := self._curves) is not None:
            self._draw(lambda: curves.add(values, step))

    def end(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            with self._heard():
                line.stop()
        if self._curves is not None:
            self._draw(self._curves.close)
            self._curves = None

    def _begin_line(self) -> None:
        line = Live(console=self.console, auto_refresh=False, transient=True)
        with self._heard():
            line.start()
            self._line = line

    def _update(self, line: RenderableType) -> None:
        if self._line is not None:
            with self._heard():
                self._line.update(line, refresh=True)

    @contextmanager
    def _heard(self) -> Iterator[None]:
        """What cannot be printed is no reason to lose a run: metrics.jsonl has all of it."""
        try:
            yield
        except OSError:
            self.console.quiet, self.live = True, False
            line, self._line = self._line, None
            if line is not None:
                line.stop()
            # at the exit Python would write what is left, and fail once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.console.file.fileno())

    def _open(self, folder: Path, done: int) -> None:
        try:
            self._curves = Curves(folder, done)
        except ImportError:
            self._tensorboard = False
            self.say('no TensorBoard here; to have its curves: pip install "rfwp[train]"')

    def _draw(self, write: Callable[[], None]) -> None:
        """Curves that cannot be written are no reason to lose a run either."""
        try:
            write()
        except OSError as error:
            curves, self._curves = self._curves, None
            with suppress(OSError):
                if curves is not None:
                    curves.close()
            self.say(f"no curves for TensorBoard from here on ({reason(error)}); metrics.jsonl has the same numbers")


def describe(moment: Moment) -> str:
    """One line."""
    parts = [_place(moment), f"loss {moment.loss:.4f}"]
    if moment.epochs:
        parts.insert(1, f"step {moment.step}/{moment.steps}")
    if moment.score is not None and moment.best is not None:
        parts.append(f"valid {shown(moment.metric, moment.score)} (best {shown(moment.metric, moment.best)})")
    parts.append(f"{moment.tokens_per_s:,.0f} tokens/s")
    if moment.seconds_left is not None:
        parts.append(f"{duration(moment.seconds_left)} left")
    return "  ".join(parts)


def shown(metric: str, value: float) -> str:
    """Accuracies in %, perplexities and returns as they are."""
    return f"{value:.2f}" if metric.startswith(("perplexity", "return")) else f"{value:.2%}"


def _place(moment: Moment) -> str:
    return f"epoch {moment.epoch}/{moment.epochs}" if moment.epochs else f"step {moment.step:,}/{moment.steps:,}"


def duration(seconds: float) -> str:
    """`2 h 05 min`, `3 min 20 s`, `8 s`"""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
