"""Several jobs at a time, the shortest first, until all are done, the time is over or somebody says stop."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from rfwp.reproduce.jobs import Job
from rfwp.train.log import duration

STOP_CODES = (143, 130, -15, -2, -9)
"""How a run leaves that was told to stop, or killed; its checkpoint is whole and it can be continued."""

SAY_EVERY = 60.0
"""Seconds between two lines about what runs."""

WORTH_BEGINNING = 60.0
"""Seconds that must be left to begin a run that cannot end in them: half of these go into its start."""


class Worker(Protocol):
    """A process that does a job."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        ...

    def terminate(self) -> None:
        """Save and leave."""
        ...

    def kill(self) -> None:
        """Leave at once."""
        ...

    def last_lines(self) -> list[str]:
        """What it said last."""
        ...


@dataclass(frozen=True)
class Budget:
    """Seconds for everything, and when before their end runs are told to stop, and killed."""

    seconds: float = float("inf")

    @property
    def stop_at(self) -> float:
        return self.seconds - min(30.0, self.seconds / 10)

    @property
    def kill_at(self) -> float:
        return self.seconds - min(10.0, self.seconds / 15)

    def left(self, now: float) -> float:
        return self.stop_at - now


@dataclass
class Outcome:
    """What became of every job."""

    done: list[Job] = field(default_factory=list)
    stopped: list[Job] = field(default_factory=list)
    waiting: list[Job] = field(default_factory=list)
    failed: dict[Job, list[str]] = field(default_factory=dict)
    """With the last lines of each."""


@dataclass
class Scheduler:
    """The parts that tests replace have defaults: the clock, the sleep."""

    start: Callable[[Job], Worker]
    costs: Callable[[], Callable[[Job], float]]
    """How many seconds each job still needs; asked again whenever a run has ended, for that tells more about the rest."""
    at_once: int
    budget: Budget
    say: Callable[[str], None]
    wish: Callable[[], int]
    """The signal that asks to stop; 0: none."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    grace: float = 30.0
    """Seconds to save in."""
    elapsed: float = 0.0
    """Seconds of the budget that are over before it begins."""

    def run(self, jobs: Sequence[Job]) -> Outcome:
        self.outcome = Outcome(waiting=list(jobs))
        self.running: dict[Job, Worker] = {}
        self.begun = self.clock() - self.elapsed
        self.kill_at: float | None = None
        try:
            self._start_more()
            said = self.now
            while self.running:
                self.sleep(0.2)
                if self.now - said >= SAY_EVERY:
                    said = self.now
                    self.say("running: " + ", ".join(f"{job} {_stage(job)}" for job in self.running))
                self._stop_in_time()
                if self._collect():
                    self._start_more()
        finally:
            # a second Ctrl-C, or a slip of ours: nothing is left behind
            for worker in self.running.values():
                worker.kill()
        return self.outcome

    @property
    def now(self) -> float:
        return self.clock() - self.begun

    def _start_more(self) -> None:
        if self.kill_at is not None or self.wish():
            return
        cost = self.costs()
        waiting = {job: cost(job) for job in self.outcome.waiting}
        while waiting and len(self.running) < self.at_once:
            job = min(waiting, key=waiting.__getitem__)
            left = self.budget.left(self.now)
            # what cannot end in time is continued by the next command
            if waiting[job] > left and left < WORTH_BEGINNING:
                if not self.outcome.done and not self.running:
                    self.say(f"nothing is begun: {job} needs {duration(waiting[job])}, and {duration(max(0, left))} are left")
                return
            seconds = waiting.pop(job)
            self.outcome.waiting.remove(job)
            begun = job.progress()
            what = f"continue {job} at {begun:.0%}" if begun else f"start {job}"
            self.say(f"{what}, about {duration(seconds)}")
            self.running[job] = self.start(job)

    def _stop_in_time(self) -> None:
        if self.kill_at is None and (self.wish() or self.now >= self.budget.stop_at):
            self.kill_at = min(self.now + self.grace, self.budget.kill_at)
            self.say(f"stopping {len(self.running)} runs; they are saved")
            for worker in self.running.values():
                worker.terminate()
        if self.kill_at is not None and self.now >= self.kill_at:
            for worker in self.running.values():
                worker.kill()

    def _collect(self) -> bool:
        """Runs that have ended since; whether there was one."""
        ended = {job: code for job, worker in self.running.items() if (code := worker.poll()) is not None}
        for job, code in ended.items():
            worker = self.running.pop(job)
            if code == 0:
                self.outcome.done.append(job)
                self.say(f"done {job}, {len(self.outcome.waiting)} waiting")
            elif code in STOP_CODES and self.kill_at is not None:
                self.outcome.stopped.append(job)
            else:
                self.outcome.failed[job] = worker.last_lines()
                self.say(f"failed {job} with exit code {code}; the others go on")
        return bool(ended)


def _stage(job: Job) -> str:
    """How far it is; what has been trained is tested."""
    done = job.progress()
    return "in its test" if done >= 1 else f"{done:.0%}"
