"""A run in its folder: what all trainings share, whatever they train.

What is trained and how, the kinds of runs say: `rfwp.train.epochs` for models of sequences, `rfwp.rl.trainer` for agents.
"""

import shlex
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypedDict, TypeVar

import torch

from rfwp.config import PLACES, check_fields
from rfwp.environment import environment, now
from rfwp.errors import InvalidInput, RFWPError
from rfwp.train.distributed import join
from rfwp.train.folder import Folder
from rfwp.train.log import Log
from rfwp.train.result import RunResult
from rfwp.train.signals import StopSignals
from rfwp.train.speed import find_device
from rfwp.train.store import Store

C = TypeVar("C")
R = TypeVar("R", bound=RunResult)


class Diverged(RFWPError, ArithmeticError):
    """The loss or the weights are no longer finite numbers."""


class Options(TypedDict, total=False):
    """Where a run is trained and who hears of it: no part of its config."""

    device: str | torch.device
    """auto: a GPU if there is one."""
    log: Log | None
    save_minutes: float
    """Between two checkpoints, 5 if nothing is said; 0 for one after every step."""
    commit: str
    """Which code this is, where git cannot say it."""


class Runner(ABC, Generic[C, R]):
    """Trains one run in one folder; a run that is there already is resumed, a finished one gives its result.

    In one process or in several that train together; then only the first one writes and speaks.
    """

    unit = "step"
    """What a checkpoint can come after."""
    store: Store
    """Made as soon as there are a model and its optimiser."""
    _signals: StopSignals

    def __init__(
        self,
        config: C,
        folder: Folder[C, R],
        *,
        device: str | torch.device = "auto",
        log: Log | None = None,
        save_minutes: float = 5.0,
        commit: str = "",
    ):
        if not isinstance(config, folder.configs):
            kinds = " or ".join(kind.__name__ for kind in folder.configs)
            raise InvalidInput(f"a run of {folder.of} needs a {kinds}, saw {config!r:.60}; rfwp.presets makes those of the paper")
        check_fields(config)
        if not save_minutes >= 0:
            raise InvalidInput(f"save_minutes={save_minutes}; use 0 for a checkpoint after every {self.unit}, or more")
        self.config, self.folder, self.save_minutes = config, folder, save_minutes
        # where its data have moved to; that they are the same is checked when they are read
        self.folder.check(config, moved=PLACES)
        self.world = join(find_device(device))
        self.log = log if log and self.world.first else Log()
        # now and not at the end, when the files may be those of another commit
        self.environment = environment(self.world.device, commit)

    @property
    def parameters(self) -> int:
        """How many numbers are trained."""
        return sum(p.numel() for p in self.store.model.parameters())

    # --- What the kinds of runs say ---

    @abstractmethod
    def _resume(self) -> None:
        """Go on from the last whole checkpoint, or begin."""

    @abstractmethod
    def _introduce(self) -> None:
        """Say what is trained, and start the log."""

    @abstractmethod
    def _train(self) -> str | None:
        """Why it stopped before its end, or None."""

    @abstractmethod
    def _finish(self, stopped: str | None) -> R:
        """The result, which is written if the run is at its end."""

    def _create(self) -> None:
        """Write what a new folder has to say of its run."""
        self.folder.create(self.config)

    def at_work(self) -> AbstractContextManager[None]:
        """What holds for the time of training."""
        return nullcontext()

    # --- A run ---

    def run(self) -> R:
        """Train to the end, or until it is stopped."""
        if self.folder.finished:
            return self.folder.result()
        if not self.world.first:
            # the first one makes the folder
            self.world.wait()
            return self._run()
        with self.folder.locked():
            self._create()
            self.world.wait()
            return self._run()

    def _run(self) -> R:
        self._resume()
        # nobody writes before everybody has read
        self.world.wait()
        # torchrun passes a signal on that the processes may have had already
        with StopSignals(leave_at_second=self.world.size == 1) as self._signals, self.at_work():
            try:
                self._introduce()
                stopped = self._train()
            finally:
                self.log.end()
        return self._finish(stopped)

    def _origin(self) -> dict[str, Any]:
        """Fields of the result: the run, and the machine and code that its numbers come from."""
        where = {name: self.environment[name] for name in ("device", "commit", "dirty", "torch", "rfwp")}
        return {"config": self.config, "parameters": self.parameters, "time": now(), **where}

    # --- Words ---

    def _say(self, line: str) -> None:
        if self.world.first:
            self.log.say(line)

    def _warn(self, line: str) -> None:
        if self.world.first:
            self.log.warn(line)

    def _say_stopped(self, by: str, where: str) -> None:
        self._say(f"stopped by {by} {where}, saved; go on with: rfwp train --resume {shlex.quote(str(self.folder))}")

    def _start_log(self, epochs: int, done: int) -> None:
        """`epochs`: 0 if there are only steps. `done`: epochs or steps that TensorBoard has already."""
        self.log.start(self.folder.path, epochs, done)
