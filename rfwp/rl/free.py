"""Free mode: groups of environments are played, and the learner works whenever it has enough unrolls.

In turn: one thread does it all. Environments have threads of their own, and a GPU works by itself. While the environments of
one group play, actions are chosen for another, on a stream that goes before the learner's. Between two steps the thread looks
whether an update is done; then the actors get the new weights, and the next update starts.

Side by side: every group has a player, a thread that chooses actions, sends them and waits for what they bring, again and again.
While one waits for its environments or for a GPU, the others go on. Whoever asks for updates starts them and waits for them.
"""

import copy
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import takewhile
from statistics import fmean

import torch

from rfwp.errors import InvalidInput
from rfwp.models import Agent
from rfwp.rl.learner import Learned, Learner
from rfwp.rl.players import GroupPlayer
from rfwp.rl.unroll import Actor, Unroll
from rfwp.rl.updates import Updates
from rfwp.tasks.environments import Episode

MakeActor = Callable[[Agent, int], Actor]
"""The actor of group g with this agent; it skips g T / groups steps, so that the groups' unrolls end one after another."""


@dataclass(eq=False)
class Waiting:
    """Rows of an unroll that nobody has learned from yet, from its first step on; `full` after its last one."""

    unroll: Unroll
    start: int = 0
    full: bool = False

    @property
    def rows(self) -> int:
        return len(self.unroll.action) - self.start


class Free:
    """Groups of environments and a learner of `rows` unrolls an update.

    >>> for metrics, episodes in Free(learner, make_actor, groups=2, rows=32).run(): ...

    Actors have a copy of the agent that is renewed after each update, in the middle of an unroll too: every step knows how old
    its weights are. Unrolls are learned from in the order in which they began, and a group begins one only if all its steps will
    be at most max_lag updates old then.
    `side_by_side`: a thread for each group, which `close` ends.
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
        side_by_side: bool = False,
    ):
        self.learner, self.rows, self.device = learner, rows, learner.device
        gpu = self.device.type == "cuda"
        self.side_by_side = side_by_side
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
        # whoever holds it may change what is below, the actors' weights, and what the stream gets next
        self._changed = threading.Condition()
        self._players: list[GroupPlayer] = []
        self._failed: BaseException | None = None
        self._closing = False

    def run(self) -> Learned:
        """The numbers of every update and the episodes that ended since the last. When it yields, no update is under way."""
        return self._run_side_by_side() if self.side_by_side else self._run_in_turn()

    def close(self) -> None:
        """End the players; environments are not needed any more."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for player in self._players:
            player.join()

    @property
    def _ended(self) -> bool:
        return self.learner.steps >= self.learner.config.steps

    # --- Side by side ---

    def _run_side_by_side(self) -> Learned:
        if self._closing:
            raise InvalidInput("Free: its players have ended; it can be run once")
        try:
            for actor in self.actors:
                player = GroupPlayer(actor, self._play, self._fail)
                player.start()
                self._players.append(player)
            while not self._ended:
                with self._changed:
                    self._changed.wait_for(lambda: self._enough or self._closing or self._failed is not None)
                    if self._failed is not None:
                        raise self._failed
                    if self._closing:
                        return
                    self._start_update()
                    self._changed.notify_all()
                self.updates.wait()
                with self._changed:
                    metrics = self.updates.finish()
                    assert metrics is not None
                    found = self._finish_update(metrics)
                    self._changed.notify_all()
                yield found
        finally:
            self.close()

    def _play(self, actor: Actor) -> bool:
        """One step of a group, as soon as there is room for it; False: it was the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or actor.t != 0 or self._has_room(actor))
            if self._closing:
                return False
            self._choose(actor)
        actor.send()
        actor.receive()
        with self._changed:
            if self._note(actor):
                self._changed.notify_all()
        return True

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            # the first: others may follow from it
            self._failed = self._failed or error
            self._changed.notify_all()

    # --- In turn ---

    def _run_in_turn(self) -> Learned:
        playing: set[Actor] = set()
        while True:
            for actor in self.actors:
                if actor in playing:
                    actor.receive()
                    self._note(actor)
                    playing.remove(actor)
                if actor.t != 0 or self._has_room(actor):
                    self._choose(actor)
                    actor.send()
                    playing.add(actor)
                assert playing or self.updates.running or self._enough, "actors wait for a learner that waits for them"
                yield from self._learn(wait=not playing)
                if self._ended:
                    return

    def _learn(self, wait: bool = False) -> Learned:
        """Finish the update under way, if it is done or waited for, and start the next one, if there is enough for it."""
        while True:
            metrics = self.updates.finish(wait)
            if metrics is not None:
                yield self._finish_update(metrics)
                # one is enough: whoever waits looks again
                wait = False
            if self.updates.running or not self._enough or self._ended:
                return
            self._start_update()

    # --- Acting ---

    def _choose(self, actor: Actor) -> None:
        if actor.t == 0:
            self._waiting.append(Waiting(actor.next))
        with self._on_stream():
            actor.choose()

    def _note(self, actor: Actor) -> bool:
        """Whether that was the last step of an unroll."""
        with self._on_stream():
            unroll = actor.note()
        if unroll is None:
            return False
        next(waiting for waiting in self._waiting if waiting.unroll is unroll).full = True
        self._episodes += unroll.episodes
        return True

    def _has_room(self, actor: Actor) -> bool:
        """Its place is free, and all that will be learned before the last of its rows makes at most max_lag updates."""
        if any(waiting.unroll is actor.next for waiting in self._waiting):
            return False
        before = sum(waiting.rows for waiting in self._waiting) + self.rows * self.updates.running
        return before + actor.environment.n <= (self.learner.config.max_lag + 1) * self.rows

    # --- Learning ---

    def _start_update(self) -> None:
        with self._on_stream():
            self._fill()
            self.updates.start()

    def _finish_update(self, metrics: dict[str, float]) -> tuple[dict[str, float], list[Episode]]:
        self._renew()
        episodes, self._episodes = self._episodes, []
        return metrics | self._lag | {"steps": float(self.learner.steps)}, episodes

    @property
    def _enough(self) -> bool:
        return sum(waiting.rows for waiting in takewhile(lambda waiting: waiting.full, self._waiting)) >= self.rows

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
