"""Free mode: groups of environments are played in turn, and the learner works whenever it has enough unrolls.

One thread does it all: environments have threads of their own, and a GPU works by itself. While the environments of one group
play, actions are chosen for another, on a stream that goes before the learner's. Between two steps the thread looks
whether an update is done; then the actors get the new weights, and the next update starts.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import fmean

import torch

from rfwp.errors import InvalidInput
from rfwp.models import Agent
from rfwp.rl.learner import Learner
from rfwp.rl.unroll import Actor, Unroll
from rfwp.rl.updates import Updates
from rfwp.tasks.environments import Episode

MakeActor = Callable[[Agent, int], Actor]
"""The actor of group g with this agent; it skips g T / groups steps, so that the groups' unrolls end one after another."""


@dataclass(eq=False)
class Waiting:
    """Rows of an unroll that nobody has learned from yet."""

    unroll: Unroll
    start: int = 0

    @property
    def rows(self) -> int:
        return len(self.unroll.action) - self.start


class Free:
    """Groups of environments and a learner of `rows` unrolls an update.

    >>> for metrics, episodes in Free(learner, make_actor, groups=2, rows=32).run(): ...

    Actors have a copy of the agent that is renewed after each update, in the middle of an unroll too: every step knows how old
    its weights are. A group begins an unroll only if all its steps will be at most max_lag updates old when learned from.
    """

    def __init__(
        self,
        learner: Learner,
        make_actor: MakeActor,
        *,
        groups: int,
        rows: int,
        record: bool = False,
        compile_stem: bool = False,
    ):
        self.learner, self.rows, self.device = learner, rows, learner.device
        gpu = self.device.type == "cuda"
        # before the learner: environments wait for actions, nobody waits for an update
        self.stream = torch.cuda.Stream(self.device, priority=-1) if gpu else None
        self.acting = copy.deepcopy(learner.agent).requires_grad_(False)
        for agent in (learner.agent, self.acting) if compile_stem else ():
            agent.stem.compile(fullgraph=True, dynamic=False)
        self._renewed = [p.detach() for p in self.acting.parameters()], [p.detach() for p in learner.parameters]
        if gpu:
            torch.cuda.synchronize(self.device)
        with self._on_stream():
            self.actors = [make_actor(self.acting, group) for group in range(groups)]
            for actor in self.actors:
                actor.keep(rows)
        self.environments = sum(actor.environment.n for actor in self.actors)
        check_lag(self.environments, rows, learner.config.max_lag)
        self.updates = Updates(learner, self.actors[0].next.empty(rows), record=record)
        # what was made here is used on other streams
        if gpu:
            torch.cuda.synchronize(self.device)
        self._set_version()
        self._waiting: list[Waiting] = []
        self._episodes: list[Episode] = []
        self._lag: dict[str, float] = {}

    def run(self) -> Iterator[tuple[dict[str, float], list[Episode]]]:
        """The numbers of every update and the episodes that ended since the last. When it yields, no update is under way."""
        playing: set[Actor] = set()
        while True:
            for actor in self.actors:
                if actor in playing:
                    self._observe(actor)
                    playing.remove(actor)
                if actor.t != 0 or self._has_room(actor):
                    self._act(actor)
                    playing.add(actor)
                assert playing or self.updates.running or self._enough, "actors wait for a learner that waits for them"
                yield from self._learn(wait=not playing)
                if self._ended:
                    return

    @property
    def _ended(self) -> bool:
        return self.learner.steps >= self.learner.config.steps

    # --- Acting ---

    def _act(self, actor: Actor) -> None:
        with self._on_stream():
            actor.act()

    def _observe(self, actor: Actor) -> None:
        with self._on_stream():
            unroll = actor.observe()
        if unroll is not None:
            self._waiting.append(Waiting(unroll))
            self._episodes += unroll.episodes

    def _has_room(self, actor: Actor) -> bool:
        """Its place is free, and all that will be learned before the last of its rows makes at most max_lag updates."""
        if any(waiting.unroll is actor.next for waiting in self._waiting):
            return False
        before = sum(waiting.rows for waiting in self._waiting) + self.rows * self.updates.running
        return before + self.environments <= (self.learner.config.max_lag + 1) * self.rows

    # --- Learning ---

    def _learn(self, wait: bool = False) -> Iterator[tuple[dict[str, float], list[Episode]]]:
        """Finish the update under way, if it is done or waited for, and start the next one, if there is enough for it."""
        while True:
            metrics = self.updates.finish(wait)
            if metrics is not None:
                self._renew()
                episodes, self._episodes = self._episodes, []
                yield metrics | self._lag | {"steps": float(self.learner.steps)}, episodes
                # one is enough: whoever waits looks again
                wait = False
            if self.updates.running or not self._enough or self._ended:
                return
            with self._on_stream():
                self._fill()
                self.updates.start()

    @property
    def _enough(self) -> bool:
        return sum(waiting.rows for waiting in self._waiting) >= self.rows

    def _fill(self) -> None:
        """Move the rows that have waited longest into the learner's batch."""
        filled, ages, places = 0, [], self.updates.batch.tensors()
        while filled < self.rows:
            waiting = self._waiting[0]
            n = min(self.rows - filled, waiting.rows)
            for place, tensor in zip(places, waiting.unroll.tensors(), strict=True):
                place[filled : filled + n].copy_(tensor[waiting.start : waiting.start + n])
            versions = waiting.unroll.versions
            ages.append((n, self.learner.updates - fmean(versions), self.learner.updates - min(versions)))
            filled, waiting.start = filled + n, waiting.start + n
            if not waiting.rows:
                self._waiting.pop(0)
        self._lag = {"lag": sum(n * mean for n, mean, _ in ages) / self.rows, "lag_max": float(max(most for *_, most in ages))}

    def _renew(self) -> None:
        """The actors get the learner's weights; the next update starts after this."""
        with self._on_stream(), torch.no_grad():
            torch._foreach_copy_(self._renewed[0], self._renewed[1])
        self._set_version()

    def _set_version(self) -> None:
        for actor in self.actors:
            actor.version = self.learner.updates

    def _on_stream(self) -> AbstractContextManager:
        return torch.cuda.stream(self.stream)


def check_lag(environments: int, rows: int, max_lag: int) -> None:
    """Environments whose unrolls make more updates than max_lag allows would wait for ever."""
    most = (max_lag + 1) * rows - (rows - 1)
    if environments > most:
        raise InvalidInput(
            f"{environments} environments with {rows} unrolls an update have a lag above max_lag={max_lag}; use at most {most}"
        )
