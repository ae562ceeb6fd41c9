"""A training run of an agent in its folder: free or in lockstep, in one process or many, stopped anywhere and resumed.

What a checkpoint cannot hold are the games under way: after a resume the environments start anew, with other seeds.
"""

import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, Unpack

import torch

from rfwp.config import RLRunConfig
from rfwp.errors import InvalidInput
from rfwp.rl.actors import Actors, Make
from rfwp.rl.cores import environment_threads, torch_threads
from rfwp.rl.faults import EnvironmentFailed
from rfwp.rl.free import Free
from rfwp.rl.learner import Learned, Learner, check_impala
from rfwp.rl.meter import Meter, describe
from rfwp.rl.result import RLFolder, RLResult, curve
from rfwp.rl.saved import AgentStore, first_agent, place
from rfwp.rl.shares import shares
from rfwp.tasks import environments
from rfwp.train import Diverged
from rfwp.train.runner import Options, Runner
from rfwp.train.step import switched
from rfwp.version import __version__

RECORD_SECONDS = 10.0
"""Between two records; on a terminal the line is renewed every second."""
RECORD, SAVE, TIME_IS_UP, SIGNAL = 1, 2, 4, 8
"""Wishes, which add up; a signal's number times SIGNAL is larger than all the others together."""


class RLTrainer(Runner[RLRunConfig, RLResult]):
    """Trains one agent in one folder; a run that is there already is resumed, a finished one gives its result.

    >>> result = RLTrainer(config, Path("runs/pong")).run()
    >>> result.metrics["return"]

    `seconds`: stop after so many, saved. `graphs`: record choosing actions and updates as CUDA graphs; auto: on a GPU.
    `compile_stem`: torch.compile for the vision net, in free mode.
    `side_by_side`: a thread for each group of environments, in free mode; auto: on a GPU.
    `threads`: cores for environments; 0 for all but a few. `make` makes environments as `rfwp.tasks.environments.make` does.
    The other options: `rfwp.train.Options`.
    """

    unit = "update"

    def __init__(
        self,
        config: RLRunConfig,
        folder: str | Path,
        *,
        seconds: float | None = None,
        graphs: Literal["auto"] | bool = "auto",
        channels_last: Literal["auto"] | bool = "auto",
        compile_stem: bool = False,
        side_by_side: Literal["auto"] | bool = "auto",
        threads: int = 0,
        make: Make = environments.make,
        **options: Unpack[Options],
    ):
        check_impala(config.impala)
        if threads < 0:
            raise InvalidInput(f"threads={threads}; use at least 1, or 0 for all cores but one in four")
        if seconds is not None and not seconds > 0:
            raise InvalidInput(f"seconds={seconds}; use a positive number")
        super().__init__(config, RLFolder(Path(folder)), **options)
        self.seconds = seconds
        self.rows, self.environments = shares(config, self.world)
        gpu = self.world.device.type == "cuda"
        if graphs is True and not gpu:
            raise InvalidInput(f"CUDA graphs need a GPU, this is {self.world.device}; leave graphs on auto")
        self.graphs = gpu and graphs is not False and config.impala.mode == "free"
        layout = gpu if channels_last == "auto" else channels_last
        self.agent = place(first_agent(config), self.world.device, channels_last=layout, record=self.graphs)
        self.threads = threads or environment_threads()
        self.autocast = config.impala.precision == "bf16"
        reduce = self._sum_gradients if self.world.size > 1 else None
        self.learner = Learner(self.agent, config.impala, reduce=reduce, processes=self.world.size, autocast=self.autocast)
        self.store = AgentStore(self.folder.path, self.agent, self.learner.optimiser, self.world, self._warn)
        self.actors = Actors(
            config,
            self.learner,
            self.world.rank,
            rows=self.rows,
            environments=self.environments,
            make=make,
            threads=self.threads,
            record=self.graphs,
            compile_stem=compile_stem,
            side_by_side=gpu if side_by_side == "auto" else side_by_side,
            warn=self.log.warn,
        )
        self.meter, self.failures, self._seconds = Meter(), 0, 0.0
        self._last: dict[str, float] = {}

    def _sum_gradients(self) -> None:
        self.world.sum_gradients(self.agent.parameters())

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """PyTorch's switches as training wants them, for the time of it; environments that were made are closed at the end."""
        tuned, torch_had = torch.backends.cudnn.benchmark, torch.get_num_threads()
        with switched(self.config.impala.precision):
            # images are always of one size
            torch.backends.cudnn.benchmark = True
            if self.world.device.type == "cpu":
                torch.set_num_threads(torch_threads())
            try:
                yield
            finally:
                torch.backends.cudnn.benchmark = tuned
                torch.set_num_threads(torch_had)
                self.actors.close()

    # --- Training ---

    def _train(self) -> str | None:
        self._begun = self._saved = self._recorded = self._shown = time.monotonic()
        self._before, self._recorded_steps = self._seconds, self.learner.steps
        updates = self.updates()
        # from here on
        self.actors.busy.lap()
        try:
            # not when nobody refers to it any more: there a second Ctrl-C would be lost
            with closing(updates):
                for metrics, episodes in updates:
                    self.meter.add(metrics, episodes)
                    if stopped := self._look():
                        return stopped
        except EnvironmentFailed:
            # several processes cannot save together when one of them is about to end
            if self.world.size == 1:
                self._finish_update()
                self._save()
                self._say_stopped("its environments", f"after {self.learner.steps:,} steps")
            raise
        if self._recorded_steps < self.learner.steps:
            self._record()
        self._save()
        return None

    def _finish_update(self) -> None:
        """Environments fail at any moment; an update that is under way on the GPU then would be saved half done."""
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)

    def updates(self) -> Learned:
        """Make the environments; then the numbers of every update and the episodes that ended before it, to the last step."""
        return self.actors.updates()

    def free(self) -> Free:
        """Make the environments of free mode, and their actors."""
        return self.actors.free()

    def _look(self) -> str | None:
        """What there is to do after an update; why to stop, if that is it."""
        wish = self.world.agree(self._wish(), self.learner.updates, last=-1)
        number = wish // SIGNAL
        if wish & RECORD or number or wish & TIME_IS_UP:
            self._record()
        if wish & SAVE or number or wish & TIME_IS_UP:
            self._save()
        if number or wish & TIME_IS_UP:
            name = signal.Signals(number).name if number else "time"
            self._say_stopped(name, f"after {self.learner.steps:,} steps")
            return name
        return None

    def _wish(self) -> int:
        """A signal is everybody's wish, all else the first process's."""
        clock, wish = time.monotonic(), SIGNAL * self._signals.wish
        if self.world.first:
            wish += TIME_IS_UP * (self.seconds is not None and clock - self._begun > self.seconds)
            wish += SAVE * (clock - self._saved > 60 * self.save_minutes)
            wish += RECORD * (clock - self._recorded > RECORD_SECONDS)
            if self.log.live and clock - self._shown > 1:
                self._shown = clock
                self.log.show(self._line() if self._last else "the first unrolls")
        return wish

    # --- Words and numbers ---

    def _introduce(self) -> None:
        impala = self.config.impala
        how = ", ".join(
            [f"{self.parameters:,} parameters", str(self.world.device), impala.precision, impala.mode]
            + ["CUDA graphs"] * self.graphs
            + [f"{self.world.size} processes"] * (self.world.size > 1)
        )
        name = getattr(self.config.environment, "game", None) or getattr(self.config.environment, "id", "")
        self._say(f"{self.config.preset or 'agent'} plays {name}, seed {impala.seed} ({how}) -> {self.folder}")
        if self.learner.updates:
            self._say(f"resumed after {self.learner.steps:,} steps; the environments start anew")
        self._start_log(0, self.learner.steps)

    def _record(self) -> None:
        """A line of metrics.jsonl, TensorBoard and the console, of what happened since the last one."""
        clock, steps = time.monotonic(), self.learner.steps
        record = self.meter.record(self.world, self._failures())
        self._seconds = self._before + clock - self._begun
        record |= {
            "steps": steps,
            "updates": self.learner.updates,
            "seconds": round(self._seconds, 3),
            "steps_per_s": round((steps - self._recorded_steps) / max(1e-9, clock - self._recorded), 1),
            "lr": self.learner.lr,
        }
        if (busy := self.actors.busy.lap()) is not None:
            record["busy"] = round(busy, 4)
        self._recorded, self._recorded_steps, self._last = clock, steps, record
        if self.world.first:
            self.folder.add_record(record)
            self.log.scalars({f"rl/{name}": value for name, value in record.items() if name != "steps"}, steps)
            if not self.log.live:
                self.log.say(self._line())

    def _line(self) -> str:
        return describe(self._last | {"steps": self.learner.steps}, self.config.impala.steps)

    def _failures(self) -> int:
        """Of this process, since the start of the run."""
        return self.failures + self.actors.failures

    # --- Checkpoints and result ---

    def _save(self) -> None:
        """The first process writes; weights that are not finite are never saved."""
        self._saved = time.monotonic()
        if not self.world.first:
            return
        if not self.store.finite():
            raise Diverged(f"the weights are not finite after update {self.learner.updates}; try a smaller lr")
        state: dict[str, Any] = {
            "rfwp": __version__,
            "steps": self.learner.steps,
            "updates": self.learner.updates,
            "seconds": self._before + time.monotonic() - self._begun,
            "failures": self._failures(),
            **self.meter.state(),
        }
        self.store.save_last(state, {})

    def _resume(self) -> None:
        if (found := self.store.load_last()) is not None:
            state = found.state
            self.learner.steps, self.learner.updates, self._seconds = state["steps"], state["updates"], state["seconds"]
            # other processes begin new ones, so that what is added up over processes is not counted twice
            if self.world.first:
                self.failures = state["failures"]
                self.meter.restore(state)
        if self.world.first:
            self.folder.keep_records(self.learner.steps)

    def _finish(self, stopped: str | None) -> RLResult:
        result = self._result(stopped)
        if stopped is None and self.world.first:
            self.folder.write_result(result)
        self.world.wait()
        return result

    def _result(self, stopped: str | None) -> RLResult:
        records, steps = self.folder.records(), self.learner.steps
        last = records[-1] if records else {}
        return RLResult(
            seed=self.config.impala.seed,
            metrics={name: last[name] for name in ("return", "return_life") if name in last},
            steps=steps,
            updates=self.learner.updates,
            seconds=round(self._seconds, 3),
            steps_per_s=round(steps / max(1e-9, self._seconds), 1),
            failures=int(last.get("failures", 0)),
            curve=curve(records),
            stopped=stopped,
            **self._origin(),
        )
