"""A training run of an agent in its folder: free or in lockstep, in one process or many, stopped anywhere and resumed.

What a checkpoint cannot hold are the games under way: after a resume the environments start anew, with other seeds.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from rfwp.config import AtariConfig, EnvironmentConfig, RLRunConfig, to_dict
from rfwp.environment import environment, now
from rfwp.errors import InvalidInput
from rfwp.layers import LSTM
from rfwp.models import Agent
from rfwp.rl.cores import BusyClock, environment_threads
from rfwp.rl.faults import EnvironmentFailed, Restarting
from rfwp.rl.free import Free
from rfwp.rl.learner import Learner, check_impala, lockstep
from rfwp.rl.meter import Meter, describe
from rfwp.rl.result import RLFolder, RLResult, curve
from rfwp.rl.saved import first_agent, load_weights
from rfwp.rl.shares import shares
from rfwp.rl.unroll import Actor
from rfwp.tasks import environments
from rfwp.tasks.environments import Episode, VectorEnvironment
from rfwp.train import checkpoint
from rfwp.train.checkpoint import Checkpoint, writing
from rfwp.train.distributed import join
from rfwp.train.log import Log
from rfwp.train.loop import Diverged
from rfwp.train.optim import optimiser_tensors, restore_optimiser
from rfwp.train.random import derived
from rfwp.train.signals import StopSignals
from rfwp.train.speed import find_device
from rfwp.train.step import switched
from rfwp.version import __version__

RECORD_SECONDS = 10.0
"""Between two records; on a terminal the line is renewed every second."""
RECORD, SAVE, TIME_IS_UP, SIGNAL = 1, 2, 4, 8
"""Wishes, which add up; a signal's number times SIGNAL is larger than all the others together."""

Make = Callable[[EnvironmentConfig, int, int, int], VectorEnvironment]


class RLTrainer:
    """Trains one agent in one folder; a run that is there already is resumed, a finished one gives its result.

    >>> result = RLTrainer(config, Path("runs/pong")).run()
    >>> result.metrics["return"]

    `seconds`: stop after so many, saved. `graphs`: record choosing actions and updates as CUDA graphs; auto: on a GPU.
    `compile_stem`: torch.compile for the vision net, in free mode. `threads` of each group of environments: 0 for all cores but a
    few. `make` makes environments as `rfwp.tasks.environments.make` does.
    """

    def __init__(
        self,
        config: RLRunConfig,
        folder: str | Path,
        *,
        device: str | torch.device = "auto",
        log: Log | None = None,
        save_minutes: float = 5.0,
        seconds: float | None = None,
        graphs: Literal["auto"] | bool = "auto",
        channels_last: Literal["auto"] | bool = "auto",
        compile_stem: bool = False,
        threads: int = 0,
        commit: str = "",
        make: Make = environments.make,
    ):
        """`commit`: which code this is, where git cannot say it."""
        check_impala(config.impala)
        if not save_minutes >= 0:
            raise InvalidInput(f"save_minutes={save_minutes}; use 0 for a checkpoint after every update, or more")
        if seconds is not None and not seconds > 0:
            raise InvalidInput(f"seconds={seconds}; use a positive number")
        self.config, self.folder, self.save_minutes, self.seconds = config, RLFolder(Path(folder)), save_minutes, seconds
        self.folder.check(config)
        self.world = join(find_device(device))
        self.rows, self.environments = shares(config, self.world)
        gpu = self.world.device.type == "cuda"
        if graphs is True and not gpu:
            raise InvalidInput(f"CUDA graphs need a GPU, this is {self.world.device}; leave graphs on auto")
        self.graphs = gpu and graphs is not False and config.impala.mode == "free"
        self.agent = first_agent(config).to(self.world.device)
        if gpu if channels_last == "auto" else channels_last:
            self.agent.stem.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        for module in self.agent.modules():
            if isinstance(module, LSTM):
                module.recordable = self.graphs
        self.compile_stem = compile_stem
        self.threads = threads or environment_threads()
        self.make, self.log = make, log or Log()
        # now and not at the end, when the files may be those of another commit
        self.environment = environment(self.world.device, commit)
        self.autocast = config.impala.precision == "bf16"
        reduce = self._sum_gradients if self.world.size > 1 else None
        self.learner = Learner(self.agent, config.impala, reduce=reduce, processes=self.world.size, autocast=self.autocast)
        self.meter, self.failures, self._seconds = Meter(), 0, 0.0
        self._last: dict[str, float] = {}
        self._made: list[Restarting] = []

    def run(self) -> RLResult:
        """Train to the last step, or until a signal or the end of the time."""
        if self.folder.finished:
            return self.folder.result()
        if not self.world.first:
            # the first one makes the folder
            self.world.wait()
            return self._run()
        with self.folder.locked():
            self.folder.create(self.config)
            self.world.wait()
            return self._run()

    def _run(self) -> RLResult:
        self._resume()
        # nobody writes before everybody has read
        self.world.wait()
        # torchrun passes a signal on that the processes may have had already
        with StopSignals(leave_at_second=self.world.size == 1) as self._signals, self.at_work():
            try:
                self._start_log()
                stopped = self._train()
            finally:
                self.log.end()
        result = self._result(stopped)
        if stopped is None and self.world.first:
            self.folder.write_result(result)
        self.world.wait()
        return result

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """PyTorch's switches as training wants them, for the time of it; environments that were made are closed at the end."""
        tuned = torch.backends.cudnn.benchmark
        with switched(self.config.impala.precision):
            # images are always of one size
            torch.backends.cudnn.benchmark = True
            try:
                yield
            finally:
                torch.backends.cudnn.benchmark = tuned
                for made in self._made:
                    made.close()

    def _sum_gradients(self) -> None:
        self.world.sum_gradients(self.agent.parameters())

    # --- Training ---

    def _train(self) -> str | None:
        """Why it stopped before the last step, or None."""
        self._begun = self._saved = self._recorded = self._shown = time.monotonic()
        self._before, self._recorded_steps = self._seconds, self.learner.steps
        updates = self.updates()
        self._busy = BusyClock(self.threads)
        try:
            for metrics, episodes in updates:
                self.meter.add(metrics, episodes)
                if stopped := self._look():
                    return stopped
        except EnvironmentFailed:
            # several processes cannot save together when one of them is about to end
            if self.world.size == 1:
                self._save()
            raise
        if self._recorded_steps < self.learner.steps:
            self._record()
        self._save()
        return None

    def updates(self) -> Iterator[tuple[dict[str, float], list[Episode]]]:
        """Make the environments; then the numbers of every update and the episodes that ended before it, to the last step."""
        config, world = self.config.impala, self.world
        if config.mode == "lockstep":
            # of one large set of environments these are numbers rank · n, ...: the set does not depend on the processes
            first = world.rank * self.rows
            actor = self._actor(self.agent, self.rows, first, total=config.batch)
            return lockstep(self.learner, actor)
        return self.free().run()

    def free(self) -> Free:
        """Make the environments of free mode, and their actors."""
        config, world = self.config.impala, self.world
        n = self.environments // config.groups

        def make_actor(agent: Agent, group: int) -> Actor:
            first = world.rank * self.environments + group * n
            skip = group * config.unroll // config.groups
            return self._actor(agent, n, first, skip=skip, record=self.graphs)

        return Free(
            self.learner,
            make_actor,
            groups=config.groups,
            rows=self.rows,
            record=self.graphs,
            compile_stem=self.compile_stem,
        )

    def _actor(self, agent: Agent, n: int, first: int, *, total: int | None = None, skip: int = 0, record: bool = False) -> Actor:
        config = self.config
        made = Restarting(lambda: self.make(config.environment, n, self.threads, first), self.log.warn)
        self._made.append(made)
        # with noise for a larger set, all its parts must draw the same
        parts = ("actor",) if total else ("actor", first)
        if self.learner.updates:
            parts = (*parts, self.learner.updates)
        seed = derived(config.impala.seed, *parts) % 2**31
        first = first if total else 0
        return Actor(
            agent,
            made,
            config.impala.unroll,
            seed=seed,
            skip=skip,
            first=first,
            total=total,
            autocast=self.autocast,
            record=record,
        )

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
            self._say(
                f"stopped by {name} after {self.learner.steps:,} steps, saved; go on with: rfwp train --resume {self.folder}"
            )
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
        if isinstance(self.config.environment, AtariConfig) and (self.graphs or torch.get_num_threads() == 1):
            record["busy"] = round(self._busy.lap(), 4)
        self._recorded, self._recorded_steps, self._last = clock, steps, record
        if self.world.first:
            self.folder.add_record(record)
            with writing(self.folder.path / "tensorboard"):
                self.log.scalars({f"rl/{name}": value for name, value in record.items() if name != "steps"}, steps)
            if not self.log.live:
                self.log.say(self._line())

    def _line(self) -> str:
        return describe(self._last | {"steps": self.learner.steps}, self.config.impala.steps)

    def _failures(self) -> int:
        """Of this process, since the start of the run."""
        return self.failures + sum(made.failures for made in self._made)

    def _say(self, line: str) -> None:
        if self.world.first:
            self.log.say(line)

    def _warn(self, line: str) -> None:
        if self.world.first:
            self.log.warn(line)

    def _start_log(self) -> None:
        if not self.world.first:
            self.log = Log()
            return
        impala = self.config.impala
        size = sum(p.numel() for p in self.agent.parameters())
        how = ", ".join(
            [f"{size:,} parameters", str(self.world.device), impala.precision, impala.mode]
            + ["CUDA graphs"] * self.graphs
            + [f"{self.world.size} processes"] * (self.world.size > 1)
        )
        name = getattr(self.config.environment, "game", None) or getattr(self.config.environment, "id", "")
        self._say(f"{self.config.preset or 'agent'} plays {name}, seed {impala.seed} ({how}) -> {self.folder}")
        if self.learner.updates:
            self._say(f"resumed after {self.learner.steps:,} steps; the environments start anew")
        with writing(self.folder.path / "tensorboard"):
            self.log.start(self.folder.path, 0, self.learner.steps)

    # --- Checkpoints ---

    def _save(self) -> None:
        """The first process writes; weights that are not finite are never saved."""
        self._saved = time.monotonic()
        if not self.world.first:
            return
        weights = {name: tensor.detach().cpu() for name, tensor in self.agent.state_dict().items()}
        if not all(bool(tensor.isfinite().all()) for tensor in weights.values()):
            raise Diverged(f"the weights are not finite after update {self.learner.updates}; try a smaller lr")
        state: dict[str, Any] = {
            "rfwp": __version__,
            "steps": self.learner.steps,
            "updates": self.learner.updates,
            "seconds": self._before + time.monotonic() - self._begun,
            "returns": {kind: list(window) for kind, window in self.meter.returns.items()},
            "episodes": self.meter.episodes,
            "failures": self._failures(),
        }
        config = {"rfwp": __version__, "model": to_dict(self.config.agent)}
        saved = Checkpoint(weights, optimiser_tensors(self.agent, self.learner.optimiser), config, state)
        checkpoint.save(saved, self.folder.path, checkpoint.LAST, checkpoint.PREVIOUS)

    def _resume(self) -> None:
        """Go on from the last whole checkpoint, or begin."""
        found = checkpoint.load(self.folder.path, (checkpoint.LAST, checkpoint.PREVIOUS), self._warn)
        if found is not None:
            load_weights(self.agent, found.model, self.folder)
            restore_optimiser(self.agent, self.learner.optimiser, found.optimiser)
            state = found.state
            self.learner.steps, self.learner.updates, self._seconds = state["steps"], state["updates"], state["seconds"]
            # other processes begin new ones, so that what is added up over processes is not counted twice
            if self.world.first:
                self.failures, self.meter.episodes = state["failures"], state["episodes"]
                for kind, returns in state["returns"].items():
                    self.meter.returns[kind].extend(returns)
        if self.world.first:
            self.folder.keep_records(self.learner.steps)

    def _result(self, stopped: str | None) -> RLResult:
        where, records, steps = self.environment, self.folder.records(), self.learner.steps
        last = records[-1] if records else {}
        return RLResult(
            config=self.config,
            seed=self.config.impala.seed,
            metrics={name: last[name] for name in ("return", "return_life") if name in last},
            steps=steps,
            updates=self.learner.updates,
            seconds=round(self._seconds, 3),
            steps_per_s=round(steps / max(1e-9, self._seconds), 1),
            parameters=sum(p.numel() for p in self.agent.parameters()),
            failures=int(last.get("failures", 0)),
            device=where["device"],
            commit=where["commit"],
            dirty=where["dirty"],
            torch=where["torch"],
            rfwp=where["rfwp"],
            time=now(),
            curve=curve(records),
            stopped=stopped,
        )
