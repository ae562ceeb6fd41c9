"""`rfwp bench rl`: agent steps a second of environments, of choosing actions, of learning, and of all of it together."""

import gc
import logging
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch

from rfwp.bench.options import Mode, RLOptions
from rfwp.bench.plain_loop import plain_loop
from rfwp.bench.records import Outcome, Row, append, one_line
from rfwp.bench.rl_check import check
from rfwp.bench.timing import find_device, set_threads, summary, synchronise
from rfwp.config import AtariConfig, ImpalaConfig, RLRunConfig
from rfwp.environment import environment
from rfwp.errors import InvalidInput, RFWPError
from rfwp.presets import agent_run
from rfwp.rl.actors import parts_of_group
from rfwp.rl.changes import CHOICES, fit
from rfwp.rl.cores import BusyClock, environment_threads, threads_of_group
from rfwp.rl.learner import check_impala
from rfwp.rl.rows import RowActor, Store
from rfwp.rl.shares import shares
from rfwp.rl.trainer import RLTrainer
from rfwp.rl.unroll import Actor
from rfwp.rl.updates import Updates
from rfwp.tasks.environments import Step, VectorEnvironment, make
from rfwp.train.distributed import World
from rfwp.train.step import WARM_UP

log = logging.getLogger("rfwp")

ENDLESS = 10**12
"""Agent steps of a training that is stopped by the clock."""


@dataclass(frozen=True)
class Setting:
    """One agent in one precision."""

    agent: str
    config: RLRunConfig
    device: torch.device
    threads: int
    options: RLOptions

    @property
    def seconds(self) -> float:
        return 0.3 if self.options.quick else self.options.seconds

    @property
    def side_by_side(self) -> bool:
        return self.device.type == "cuda" if self.options.side_by_side == "auto" else self.options.side_by_side == "yes"

    @property
    def parts(self) -> int:
        """In which a group's environments answer."""
        impala = self.config.impala
        return parts_of_group(self.config.environment, impala.environments // impala.groups, self.side_by_side)

    def trainer(self, config: RLRunConfig, folder: str) -> RLTrainer:
        return RLTrainer(
            config,
            folder,
            device=self.device,
            graphs=CHOICES[self.options.graph],  # type: ignore[arg-type]
            channels_last=CHOICES[self.options.channels_last],  # type: ignore[arg-type]
            compile_stem=self.options.compile_stem,
            side_by_side=self.side_by_side,
            threads=self.threads,
        )

    def row(self, what: str, **numbers: object) -> Row:
        impala, agent = self.config.impala, self.config.agent
        sizes = {
            "N": impala.environments,
            "groups": impala.groups,
            "threads": self.threads,
            "T": impala.unroll,
            "B": impala.batch,
        }
        how = f"{agent.stem} stem" + ", compiled" * self.options.compile_stem
        how += ", side by side" * self.side_by_side
        how += " + graph" * (self.device.type == "cuda" and self.options.graph == "auto")
        return Row(f"rl {what}", self.options.game, sizes, impala.precision, how, **numbers)  # type: ignore[arg-type]


def bench_rl(options: RLOptions, say: Callable[[str], None] = log.info) -> Outcome:
    """Every part of every agent, one after another, so that none disturbs another; the rows are also added to the JSON lines."""
    device = find_device(options.device)
    set_threads(options)
    settings = choose(options, device)
    outcome, where = Outcome([], [], [], []), environment(device, options.commit)
    timed: dict[str, Callable[[Setting], Row]] = {
        "environments": time_environments,
        "actions": time_actions,
        "learner": time_learner,
        "all": time_all,
        "gymnasium": time_plain,
    }
    timed_environments: set[int] = set()
    for setting in settings:
        if options.compile_stem:
            # what was compiled for the last setting counts towards PyTorch's limit
            torch.compiler.reset()
        try:
            problem = check(setting.config, setting.trainer) if options.check else ""
        except RFWPError:
            raise
        except Exception as error:
            log.exception("%s", setting.agent)
            problem = one_line(error)
        if problem:
            outcome.failures.append(f"{setting.agent} {setting.config.impala.precision}: {problem}")
            continue
        for part in options.parts or timed:
            if part == "environments":
                # they do not know who plays
                if (groups := setting.config.impala.groups) in timed_environments:
                    continue
                timed_environments.add(groups)
            # what the last part recorded would hold its memory until then
            gc.collect()
            say(f"{part}: {setting.agent} {setting.config.impala.precision}")
            try:
                outcome.rows.append(timed[part](setting))
            except RFWPError:
                raise
            except Exception as error:
                log.exception("%s: %s", part, setting.agent)
                outcome.failures.append(f"{part} {setting.agent} {setting.config.impala.precision}: {one_line(error)}")
                continue
            # at once: who stops a long benchmark keeps what it has found
            outcome.files[:] = [append(outcome.rows[-1:], where, options.out)]
    return outcome


def choose(options: RLOptions, device: torch.device) -> list[Setting]:
    """Every agent in every precision."""
    gpu = device.type == "cuda"
    small = options.quick or not gpu
    impala = ImpalaConfig(
        steps=ENDLESS,
        unroll=options.unroll or (5 if options.quick else 20 if small else 50),
        batch=options.batch or (2 if options.quick else 8 if small else 32),
        environments=options.envs or (4 if options.quick else 16 if small else 96),
        max_lag=options.max_lag,
    )
    if not options.agent:
        raise InvalidInput("--agent needs at least one row of the table atari; leave it away for rdn and lstm")
    if not options.seconds > 0:
        raise InvalidInput(f"--seconds {options.seconds:g}; use a positive number")
    if options.emulators < 0:
        raise InvalidInput(f"--emulators {options.emulators}; use at least 1, or 0 for all cores but one in four")
    if not options.groups:
        raise InvalidInput("--groups needs at least one number; leave it away for 2 groups")
    stem = ("deep" if gpu else "shallow") if options.stem == "auto" else options.stem
    precisions: tuple[Mode, ...] = options.precision or (("tf32",) if gpu else ("fp32",))
    found = []
    for precision, groups, name in product(precisions, options.groups, options.agent):
        base = agent_run(name if "/" in name else f"atari/{name}", AtariConfig(options.game))
        changed = replace(impala, precision=precision, groups=groups)
        config = replace(base, agent=replace(base.agent, stem=stem), impala=changed)
        # what cannot be trained is not timed in part
        check_impala(changed)
        shares(config, World(device=device))
        found.append(Setting(name, fit(config), device, options.emulators or environment_threads(), options))
    return found


# --- Each part alone ---


def time_environments(setting: Setting) -> Row:
    """Random actions, all groups at once: as fast as environments can be."""
    impala = setting.config.impala
    n, parts = impala.environments // impala.groups, setting.parts
    threads, clock = threads_of_group(setting.threads, impala.groups, parts), BusyClock(setting.threads)
    with clock.counting():
        groups = [make(setting.config.environment, n, threads, n * g, parts) for g in range(impala.groups)]
    random = np.random.default_rng(0)

    def act(group: VectorEnvironment) -> None:
        group.send(random.integers(group.actions, size=n // parts))

    for group in groups:
        group.reset(1)
        act(group)

    def play() -> None:
        for group in groups:
            group.recv()
            act(group)

    # until all of them have been sent an action
    for _ in range(parts):
        play()
    clock.lap()
    steps_per_s, _ = repeat(play, setting, n // parts * len(groups))
    busy = clock.lap()
    for group in groups:
        group.close()
    return setting.row("environments", tokens_per_s=steps_per_s, busy=busy, note=f"agent steps/s{how_busy(busy)}")


class Still:
    """Environments that answer at once, always the same."""

    def __init__(self, n: int, shape: tuple[int, ...], dtype: np.dtype, actions: int):
        self.n, self.shape, self.dtype, self.actions = n, shape, dtype, actions
        self._step = Step(np.ones((n, *shape), dtype), np.zeros(n, np.float32), np.zeros(n, bool))

    def reset(self, seed: int) -> Step:
        return self._step

    def send(self, actions: np.ndarray) -> None: ...

    def recv(self) -> Step:
        return self._step

    def finished(self) -> list:
        return []

    def close(self) -> None: ...


def still(setting: Setting, n: int) -> Still:
    agent = setting.config.agent
    return Still(n, (agent.frames, agent.pixels, agent.pixels), np.dtype(np.uint8), agent.actions)


def on_a_stream(setting: Setting) -> torch.cuda.StreamContext:
    """Recordings need a stream that is not the default one."""
    stream = torch.cuda.Stream(setting.device) if setting.device.type == "cuda" else None
    synchronise(setting.device)
    return torch.cuda.stream(stream)


def part_of_free(setting: Setting, folder: str) -> RLTrainer:
    """A trainer whose agent is as free mode would make it."""
    trainer = setting.trainer(setting.config, folder)
    if setting.options.compile_stem:
        trainer.agent.stem.compile(fullgraph=True, dynamic=False)
    return trainer


def time_actions(setting: Setting) -> Row:
    """Observations of one group's part to the device, actions back, and all of it into the store."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = part_of_free(setting, folder)
        impala = setting.config.impala
        n = trainer.environments // impala.groups // setting.parts
        with trainer.at_work(), on_a_stream(setting):
            actor = RowActor(trainer.agent, still(setting, n), impala.unroll, autocast=trainer.autocast, record=trainer.graphs)
            actor.write_to(Store(actor.example, 1))

            def act() -> None:
                actor.choose(lambda: None)
                actor.send()
                actor.receive()

            steps_per_s, times = repeat(act, setting, n)
    return setting.row(
        f"actions {setting.agent}", tokens_per_s=steps_per_s, ms=summary(times), note=f"agent steps/s, {n} environments"
    )


def time_learner(setting: Setting) -> Row:
    """Updates one after another."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = part_of_free(setting, folder)
        with trainer.at_work(), on_a_stream(setting):
            unroll, autocast = setting.config.impala.unroll, trainer.autocast
            batch = Actor(trainer.agent, still(setting, trainer.rows), unroll, autocast=autocast).collect()
            updates = Updates(trainer.learner, batch.empty(trainer.rows), record=trainer.graphs)

            def learn() -> None:
                for place, tensor in zip(updates.batch.tensors(), batch.tensors(), strict=True):
                    place.copy_(tensor)
                updates.start()
                updates.finish(wait=True)

            for _ in range(WARM_UP + 2):
                learn()
            steps_per_s, times = repeat(learn, setting, batch.steps)
    return setting.row(f"learner {setting.agent}", tokens_per_s=steps_per_s, ms=summary(times), note="agent steps/s")


# --- All together ---


def time_all(setting: Setting) -> Row:
    """Free mode, from the first replayed update on."""
    with tempfile.TemporaryDirectory() as folder:
        trainer = setting.trainer(setting.config, folder)
        with trainer.at_work():
            updates = trainer.updates()
            for _ in range(WARM_UP + 3):
                next(updates)
            trainer.actors.busy.lap()
            start, steps, seen = time.perf_counter(), trainer.learner.steps, []
            while time.perf_counter() - start < setting.seconds:
                seen.append(next(updates)[0])
            seconds, busy = time.perf_counter() - start, trainer.actors.busy.lap()
            steps_per_s = (trainer.learner.steps - steps) / seconds
    lag, most = sum(m["lag"] for m in seen) / len(seen), max(m["lag_max"] for m in seen)
    note = f"agent steps/s{how_busy(busy)}, lag {lag:.1f}, at most {most:.0f}, {len(seen)} updates"
    return setting.row(f"end to end {setting.agent}", tokens_per_s=steps_per_s, busy=busy, lag=lag, note=note)


def time_plain(setting: Setting) -> Row:
    """The same agent in a plain loop over gymnasium's own vector environment: step, act and learn in turn, nothing recorded."""
    setting = replace(setting, options=replace(setting.options, graph="no", compile_stem=False))
    threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        trainer = setting.trainer(setting.config, folder)
        with trainer.at_work():
            # as many as PyTorch takes by itself
            torch.set_num_threads(threads)
            steps_per_s = plain_loop(trainer, setting.config, setting.seconds)
    return setting.row(f"plain gymnasium loop {setting.agent}", tokens_per_s=steps_per_s, note="agent steps/s, without overlap")


def how_busy(busy: float | None) -> str:
    return "" if busy is None else f", busy {busy:.0%}"


def repeat(run: Callable[[], None], setting: Setting, steps: int) -> tuple[float, list[float]]:
    """Agent steps a second and the milliseconds of every repetition, for as long as the setting says, at least three times."""
    for _ in range(3):
        run()
    synchronise(setting.device)
    start = time.perf_counter()
    times: list[float] = []
    last = start
    while last - start < setting.seconds or len(times) < 3:
        run()
        now = time.perf_counter()
        times.append((now - last) * 1e3)
        last = now
    synchronise(setting.device)
    return steps * len(times) / (time.perf_counter() - start), times
