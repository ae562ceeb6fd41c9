"""The environments of a run, in one process, and the actors that play in them for its learner."""

from collections.abc import Callable
from dataclasses import dataclass, field

from rfwp.config import EnvironmentConfig, GymConfig, RLRunConfig
from rfwp.models import Agent
from rfwp.rl.cores import BusyClock, threads_of_group
from rfwp.rl.faults import Restarting
from rfwp.rl.free import Free
from rfwp.rl.learner import Learned, Learner, lockstep
from rfwp.rl.unroll import Actor
from rfwp.tasks.environments import VectorEnvironment
from rfwp.train.random import derived

Make = Callable[[EnvironmentConfig, int, int, int], VectorEnvironment]


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
            first = self.rank * self.rows
            actor = self._actor(self.learner.agent, self.rows, first, total=self.config.impala.batch)
            return lockstep(self.learner, actor)
        return self.free().run()

    def free(self) -> Free:
        """Make the environments of free mode, and their actors."""
        impala = self.config.impala
        n = self.environments // impala.groups

        def make_actor(agent: Agent, group: int) -> Actor:
            first = self.rank * self.environments + group * n
            skip = group * impala.unroll // impala.groups
            return self._actor(agent, n, first, skip=skip, record=self.record)

        self._free = Free(
            self.learner,
            make_actor,
            groups=impala.groups,
            rows=self.rows,
            record=self.record,
            compile_stem=self.compile_stem,
            side_by_side=self.side_by_side and not isinstance(self.config.environment, GymConfig),
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

    def _actor(self, agent: Agent, n: int, first: int, *, total: int | None = None, skip: int = 0, record: bool = False) -> Actor:
        impala = self.config.impala
        threads = threads_of_group(self.threads, 1 if impala.mode == "lockstep" else impala.groups)

        def make() -> VectorEnvironment:
            with self.busy.counting():
                return self.make(self.config.environment, n, threads, first)

        made = Restarting(make, self.warn)
        self._made.append(made)
        # with noise for a larger set, all its parts must draw the same
        parts = ("actor",) if total else ("actor", first)
        if self.learner.updates:
            parts = (*parts, self.learner.updates)
        seed = derived(impala.seed, *parts) % 2**31
        return Actor(
            agent,
            made,
            impala.unroll,
            seed=seed,
            skip=skip,
            first=first if total else 0,
            total=total,
            autocast=self.learner.autocast,
            record=record,
            blocking=self.side_by_side,
        )
