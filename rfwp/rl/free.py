"""Free mode: environments are played, and the learner works whenever it has enough unrolls.

Environments are in groups. In turn: one thread plays all of them, one after another. Between two steps it looks whether an update
is done; then the actors get the new weights, and the next update starts.

Side by side: every group has a player, a thread that chooses actions, sends them and waits for what they bring, again and again.
While one waits for its environments or for a GPU, the others go on. Whoever asks for updates starts them and waits for them.
"""

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import takewhile
from statistics import fmean

import torch

from rfwp.errors import InvalidInput
from rfwp.models import Agent
from rfwp.rl.learner import Learned, Learner
from rfwp.rl.players import GroupPlayer
from rfwp.rl.rows import Row, RowActor, Store
from rfwp.rl.updates import Updates
from rfwp.tasks.environments import Episode

MakeActor = Callable[[Agent, int], RowActor]
"""The actor of a group with this agent."""


class Free:
    """Groups of environments and a learner of `rows` unrolls an update.

    >>> for metrics, episodes in Free(learner, make_actor, groups=2, rows=32).run(): ...

    Every environment fills unrolls of its own, rows of one store. Actors have a copy of the agent that is renewed after each
    update, in the middle of a row too: every step knows how old its weights are. Rows are learned from in the order in which
    they began, and one begins only if all its steps will be at most max_lag updates old then.
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
        self.acting = copy.deepcopy(learner.agent).requires_grad_(False)
        for agent in (learner.agent, self.acting) if compile_stem else ():
            agent.stem.compile(fullgraph=True, dynamic=False)
        self._renewed = [p.detach() for p in self.acting.parameters()], [p.detach() for p in learner.parameters]
        self._most = (learner.config.max_lag + 1) * rows
        if gpu:
            torch.cuda.synchronize(self.device)
        self.actors: list[RowActor] = []
        self._streams: dict[RowActor, torch.cuda.Stream] = {}
        for group in range(groups):
            # before the learner: environments wait for actions, nobody waits for an update
            stream = torch.cuda.Stream(self.device, priority=-1) if gpu else None
            with torch.cuda.stream(stream):
                self.actors.append(make_actor(self.acting, group))
            if stream is not None:
                self._streams[self.actors[-1]] = stream
        check_lag(sum(actor.environment.n for actor in self.actors), rows, learner.config.max_lag, groups)
        example = self.actors[0].example
        self.store = Store(example, self._most)
        self.updates = Updates(learner, example.empty(rows), record=record)
        # what was made on one stream is used on others
        if gpu:
            torch.cuda.synchronize(self.device)
        for actor in self.actors:
            with self._on_stream_of(actor):
                actor.write_to(self.store)
        if gpu:
            torch.cuda.synchronize(self.device)
        self._set_version()
        # rows that nobody has learned from yet, in the order in which they began
        self._waiting: list[Row] = []
        # from when rows are taken for an update until it is finished
        self._learning = False
        self._episodes: list[Episode] = []
        self._lag: dict[str, float] = {}
        # whoever holds it may change all of this, the actors' weights, and what their streams get next
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
        # a GPU may still be writing into the store
        for stream in self._streams.values():
            stream.synchronize()

    @property
    def _ended(self) -> bool:
        return self.learner.steps >= self.learner.config.steps

    # --- Side by side ---

    def _run_side_by_side(self) -> Learned:
        if self._closing or self._players:
            raise InvalidInput("Free: its players have begun already; it can be run once")
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
                    self._fill()
                    self._changed.notify_all()
                # players go on: a GPU needs a while to be told of an update
                self.updates.start()
                self.updates.wait()
                with self._changed:
                    metrics = self.updates.finish()
                    assert metrics is not None
                    found = self._finish_update(metrics)
                    self._changed.notify_all()
                yield found
        finally:
            self.close()

    def _play(self, actor: RowActor) -> bool:
        """One step of a group, as soon as there is room for it; False: it was the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or not self._must_wait(actor))
            if self._closing:
                return False
            if self._choose(actor) and self._enough:
                self._changed.notify_all()
        actor.send()
        actor.receive()
        return True

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            # the first: others may follow from it
            self._failed = self._failed or error
            self._changed.notify_all()

    # --- In turn ---

    def _run_in_turn(self) -> Learned:
        playing: set[RowActor] = set()
        while True:
            for actor in self.actors:
                if actor in playing:
                    actor.receive()
                while self._must_wait(actor) and not self._ended:
                    yield from self._learn(wait=True)
                self._choose(actor)
                actor.send()
                playing.add(actor)
                yield from self._learn()
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
            self._fill()
            self.updates.start()

    # --- Acting ---

    def _choose(self, actor: RowActor) -> bool:
        """Whether rows are full now."""
        with self._on_stream_of(actor):
            full = actor.choose(lambda: self._begin(actor.version))
        self._episodes += actor.environment.finished()
        return bool(full)

    def _begin(self, version: int) -> Row | None:
        """The next row, if all that will be learned before it and with it makes at most max_lag updates more."""
        if self._room <= 0:
            return None
        row = self.store.begin(version)
        self._waiting.append(row)
        return row

    @property
    def _room(self) -> int:
        """Rows that may begin now."""
        return self._most - len(self._waiting) - self.rows * self._learning

    def _must_wait(self, actor: RowActor) -> bool:
        """Rows that it wants to begin have no room, and the learner is about to make some.

        Who would wait for a learner that waits for him plays on without a row; it can, for example, have the oldest one.
        """
        return actor.beginners > self._room and (self._learning or self._enough)

    # --- Learning ---

    def _finish_update(self, metrics: dict[str, float]) -> tuple[dict[str, float], list[Episode]]:
        self._learning = False
        self._renew()
        episodes, self._episodes = self._episodes, []
        return metrics | self._lag | {"steps": float(self.learner.steps)}, episodes

    @property
    def _enough(self) -> bool:
        return sum(1 for _ in takewhile(lambda row: row.full, self._waiting)) >= self.rows

    def _fill(self) -> None:
        """Move the rows that have waited longest into the learner's batch; an update follows."""
        self._learning = True
        rows, self._waiting = self._waiting[: self.rows], self._waiting[self.rows :]
        with self._between_steps():
            self.store.move(rows, self.updates.batch)
        now = self.learner.updates
        oldest = now - min(row.first_version for row in rows)
        self._lag = {"lag": now - fmean(row.mean_version for row in rows), "lag_max": float(oldest)}

    def _renew(self) -> None:
        """The actors get the learner's weights; the next update starts after this."""
        with self._between_steps(), torch.no_grad():
            torch._foreach_copy_(self._renewed[0], self._renewed[1])
        self._set_version()

    def _set_version(self) -> None:
        for actor in self.actors:
            actor.version = self.learner.updates

    def _on_stream_of(self, actor: RowActor) -> AbstractContextManager:
        """Groups have streams of their own: while the GPU is at the small steps of one, there is room for those of another."""
        return torch.cuda.stream(self._streams.get(actor))

    @contextmanager
    def _between_steps(self) -> Iterator[None]:
        """On the learner's stream, after the steps that the actors' streams have been given and before the next ones."""
        learning = self.updates.stream
        if learning is None:
            yield
            return
        # the caller's too: it may have looked at the last batch
        for stream in (*self._streams.values(), torch.cuda.current_stream(self.device)):
            learning.wait_stream(stream)
        with torch.cuda.stream(learning):
            yield
        for stream in self._streams.values():
            stream.wait_stream(learning)


def check_lag(environments: int, rows: int, max_lag: int, groups: int) -> None:
    """Environments whose unrolls make more updates than max_lag allows would wait for ever."""
    most = max_lag * rows + 1
    if environments > most:
        fewer = f"at most {most // groups * groups}, or " if most >= groups else ""
        raise InvalidInput(
            f"{environments} environments with {rows} unrolls an update have a lag above max_lag={max_lag}; "
            f"use {fewer}impala.max_lag={-(-(environments - 1) // rows)}"
        )
