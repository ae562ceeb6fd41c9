"""The environments of a run, in one process, and the actors that play in them for its learner."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rfwp.config import AtariConfig, EnvironmentConfig, GymConfig, RLRunConfig
from rfwp.models import Agent
from rfwp.rl.cores import BusyClock, threads_of_group
from rfwp.rl.faults import Restarting
from rfwp.rl.free import Free
from rfwp.rl.learner import Learned, Learner, lockstep
from rfwp.rl.rows import RowActor
from rfwp.rl.unroll import Actor
from rfwp.tasks.environments import VectorEnvironment
from rfwp.train.random import derived

Make = Callable[..., VectorEnvironment]
"""As `rfwp.tasks.environments.make`: config, environments, threads, first and, if not 1, parts."""
PARTS = 2
"""Parts in which the games of a group answer side by side: one is played while actions are chosen for the other."""


def parts_of_group(environment: EnvironmentConfig, n: int, side_by_side: bool) -> int:
    """Parts in which n environments answer: only games can, and it helps whoever has a thread for them."""
    return PARTS if side_by_side and isinstance(environment, AtariConfig) and n % PARTS == 0 else 1


@dataclass
class Actors:
    """Free or in lockstep, as the config says."""

    config: RLRunConfig
    learner: Learner
    rank: int
    """Of the process."""
    rows: int
    """Unrolls an update, of this process."""
    environments: int
    """Of this process."""
    make: Make
    threads: int
    """Cores for environments."""
    record: bool
    """Choosing actions and updates, as CUDA graphs."""
    compile_stem: bool
    side_by_side: bool
    """In free mode: a thread for each group, but where environments may want to be stepped by the thread that made them."""
    warn: Callable[[str], None]
    """Hears of environments that failed."""
    _made: list[Restarting] = field(default_factory=list)
    _free: Free | None = None

    def __post_init__(self) -> None:
        self.busy = BusyClock(self.threads)

    def updates(self) -> Learned:
        """Make the environments; then the numbers of every update and the episodes that ended before it, to the last step."""
        if self.config.impala.mode == "lockstep":
            # of one large set of environments these are numbers rank · n, ...: the set does not depend on the processes
            first, impala = self.rank * self.rows, self.config.impala
            # noise is drawn for the whole set, so all its parts must draw the same
            seed = self._seed("actor")
            made = self._make(self.rows, self.threads, first)
            agent, autocast = self.learner.agent, self.learner.autocast
            actor = Actor(agent, made, impala.unroll, seed=seed, first=first, total=impala.batch, autocast=autocast)
            return lockstep(self.learner, actor)
        return self.free().run()

    def free(self) -> Free:
        """Make the environments of free mode, and their actors."""
        impala = self.config.impala
        n = self.environments // impala.groups
        side_by_side = self.side_by_side and not isinstance(self.config.environment, GymConfig)
        parts = parts_of_group(self.config.environment, n, side_by_side)
        threads = threads_of_group(self.threads, impala.groups, parts)

        def make_actor(agent: Agent, group: int) -> RowActor:
            first = self.rank * self.environments + group * n
            return RowActor(
                agent,
                self._make(n, threads, first, parts),
                impala.unroll,
                # rows shall end one after another
                skip=(group * n + np.arange(n)) * impala.unroll // self.environments,
                seed=self._seed("actor", first),
                autocast=self.learner.autocast,
                record=self.record,
                blocking=side_by_side,
            )

        self._free = Free(
            self.learner,
            make_actor,
            groups=impala.groups,
            rows=self.rows,
            record=self.record,
            compile_stem=self.compile_stem,
            side_by_side=side_by_side,
        )
        return self._free

    @property
    def failures(self) -> int:
        """Times that environments failed and were made anew."""
        return sum(made.failures for made in self._made)

    def close(self) -> None:
        if self._free is not None:
            self._free.close()
            self._free = None
        for made in self._made:
            made.close()

    def _make(self, n: int, threads: int, first: int, parts: int = 1) -> Restarting:
        how = (n, threads, first, parts) if parts > 1 else (n, threads, first)

        def make() -> VectorEnvironment:
            with self.busy.counting():
                return self.make(self.config.environment, *how)

        made = Restarting(make, self.warn)
        self._made.append(made)
        return made

    def _seed(self, *parts: str | int) -> int:
        """Another one after a resume."""
        resumed = (self.learner.updates,) if self.learner.updates else ()
        return derived(self.config.impala.seed, *parts, *resumed) % 2**31
