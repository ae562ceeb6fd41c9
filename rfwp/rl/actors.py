"""The environments of a run, in one process, and the actors that play in them for its learner."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rfwp.config import EnvironmentConfig, RLRunConfig
from rfwp.models import Agent
from rfwp.rl.faults import Restarting
from rfwp.rl.free import Free
from rfwp.rl.learner import Learner, lockstep
from rfwp.rl.unroll import Actor
from rfwp.tasks.environments import Episode, VectorEnvironment
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
    """Of each group of environments."""
    record: bool
    """Choosing actions and updates, as CUDA graphs."""
    compile_stem: bool
    warn: Callable[[str], None]
    """Hears of environments that failed."""
    _made: list[Restarting] = field(default_factory=list)

    def updates(self) -> Iterator[tuple[dict[str, float], list[Episode]]]:
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

        return Free(
            self.learner,
            make_actor,
            groups=impala.groups,
            rows=self.rows,
            record=self.record,
            compile_stem=self.compile_stem,
        )

    @property
    def failures(self) -> int:
        """Times that environments failed and were made anew."""
        return sum(made.failures for made in self._made)

    def close(self) -> None:
        for made in self._made:
            made.close()

    def _actor(self, agent: Agent, n: int, first: int, *, total: int | None = None, skip: int = 0, record: bool = False) -> Actor:
        impala = self.config.impala
        made = Restarting(lambda: self.make(self.config.environment, n, self.threads, first), self.warn)
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
        )
