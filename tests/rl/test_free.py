import hashlib
import itertools
import os
import threading
import time
from itertools import takewhile
from statistics import fmean

import numpy as np
import pytest
import torch

from rfwp.config import ImpalaConfig
from rfwp.errors import InvalidInput
from rfwp.layers import LSTM
from rfwp.models import Agent
from rfwp.rl import Learner
from rfwp.rl.cores import SHARED_BY, BusyClock, environment_threads, threads_of_group, torch_threads
from rfwp.rl.free import Free, check_lag
from rfwp.rl.rows import RowActor, Store
from rfwp.rl.updates import Updates
from rfwp.tasks.environments import Episode, Step, make
from tests.rl.fake import CORES, Noise, make_agent
from tests.rl.tape import on_tape, use_tapes
from tests.rl.tiny import CATCH, tiny_config
from tests.tolerances import FLOAT32

WAYS = pytest.mark.parametrize("side_by_side", [False, True], ids=["in turn", "side by side"])


def make_free(core, groups=2, n=3, rows=2, unroll=10, side_by_side=False, environment=Noise, **impala):
    config = ImpalaConfig(unroll=unroll, **{"steps": 10 * rows * unroll, **impala})
    agent = make_agent(CORES[core], Noise())
    learner = Learner(agent, config)

    def make_actor(acting, group):
        skip = (group * n + np.arange(n)) * unroll // (groups * n)
        return RowActor(acting, environment(n), unroll, seed=group, skip=skip)

    return Free(learner, make_actor, groups=groups, rows=rows, side_by_side=side_by_side)


@WAYS
@pytest.mark.parametrize("core", CORES)
def test_with_weights_that_stay_the_learner_sees_the_actors_logits_in_every_batch(core, side_by_side):
    free = make_free(core, lr=1e-12, side_by_side=side_by_side)
    for metrics, _ in free.run():
        batch = free.updates.batch
        output, _ = free.learner.agent(batch.observation, batch.reward, batch.state, batch.done)
        torch.testing.assert_close(output.logits[:, :-1], batch.logits, **FLOAT32)
        assert metrics["cut"] == 0
    assert free.learner.updates == 10


@WAYS
def test_batches_hold_every_row_once_and_in_the_order_in_which_they_began(side_by_side):
    free = make_free("feedforward", n=5, rows=3, side_by_side=side_by_side)
    collected, learned, begin, choose = {}, [], free._begin, free._choose

    def first(version):
        if (row := begin(version)) is not None:
            collected[row] = None
        return row

    def last(actor):
        going_on = [row for row in actor._rows if row is not None]
        any_full = choose(actor)
        full = [row for row in going_on if row.full]
        assert any_full == bool(full)
        for row in full:
            collected[row] = free.store.unroll.logits[row.place].clone()
        return any_full

    free._begin, free._choose = first, last
    for _ in free.run():
        learned.append(free.updates.batch.logits.clone())
    learned = torch.cat(learned)
    collected = torch.stack(list(takewhile(lambda logits: logits is not None, collected.values())))
    assert torch.equal(learned, collected[: len(learned)])


@WAYS
def test_actors_get_the_new_weights_after_every_update_and_know_their_age(side_by_side):
    free = make_free("lstm", side_by_side=side_by_side)
    lags = []
    for metrics, _ in free.run():
        for acting, learning in zip(free.acting.parameters(), free.learner.agent.parameters(), strict=True):
            assert torch.equal(acting, learning)
        assert all(actor.version == free.learner.updates for actor in free.actors)
        assert 0 <= metrics["lag"] <= metrics["lag_max"] <= 4
        lags.append(metrics["lag_max"])
    assert lags[0] == 0
    assert max(lags) > 0


def test_rows_end_one_after_another():
    free = make_free("feedforward", n=5, rows=3)
    next(free.run())
    assert len({t for actor in free.actors for t in actor._t}) >= 5


class InParts(Noise):
    """Two of them answer at a time, in any order, and never the same two: as emulators do."""

    def reset(self, seed):
        step = super().reset(seed)
        self.new, self.given = np.ones(self.n, bool), step.observation
        self.order, self.actions_of = list(self.random.permutation(self.n)), {}
        return self.answer()

    def answer(self):
        self.rows = np.array([self.order.pop(0) for _ in range(2)])
        return Step(self.given[self.rows], np.zeros(2, np.float32), self.take_new())

    def take_new(self):
        new, self.new[self.rows] = self.new[self.rows].copy(), False
        return new

    def send(self, actions):
        assert len(actions) == 2
        self.order += list(self.rows)
        self.actions_of |= dict(zip(self.rows.tolist(), actions, strict=True))

    def recv(self):
        at = self.random.permutation(len(self.order) - 1)[:2]
        self.rows = np.array([self.order[i] for i in at])
        self.order = [row for row in self.order if row not in self.rows]
        observation = np.zeros((2, *self.shape), np.float32)
        observation[:, 0] = self.rows
        observation[:, 1:] = self.random.random((2, self.shape[0] - 1))
        new = self.take_new()
        done = new | (self.random.random(2) < 0.1)
        reward = np.array([0.0 if n else self.actions_of[row] for row, n in zip(self.rows.tolist(), new, strict=True)])
        self.over += [Episode(1.0, 1, True, int(row)) for row in self.rows[done & ~new]]
        return Step(observation, reward.astype(np.float32), done)


@WAYS
@pytest.mark.parametrize("core", CORES)
def test_environments_that_answer_in_parts_fill_rows_of_their_own(core, side_by_side):
    """The reward of a step is its action, and what is seen names the environment."""
    free = make_free(core, n=6, rows=4, lr=1e-12, environment=InParts, side_by_side=side_by_side)
    ended = 0
    for metrics, episodes in free.run():
        batch = free.updates.batch
        output, _ = free.learner.agent(batch.observation, batch.reward, batch.state, batch.done)
        torch.testing.assert_close(output.logits[:, :-1], batch.logits, **FLOAT32)
        told = batch.reward[:, 1:] != 0
        assert torch.equal(batch.reward[:, 1:][told], batch.action[told].float())
        environment = batch.observation[:, 1:, 0]
        assert (environment == environment[:, :1]).all()
        assert metrics["cut"] == 0
        ended += len(episodes)
    assert free.learner.updates == 10
    assert ended > 0


def played(core, record):
    """What is in the store after unrolls that ended and began, and steps that nobody learns from; and where the rows were."""
    agent = on_tape(make_agent(CORES[core], Noise()))
    for layer in agent.modules():
        if isinstance(layer, LSTM):
            layer.recordable = True
    actor = RowActor(agent, InParts(6), 4, seed=1, skip=np.arange(6) % 3, record=record)
    store = Store(actor.example, 20)
    for tensor in store.unroll.tensors():
        tensor.zero_()
    actor.write_to(store)
    refuse, full = itertools.cycle([True, False, False]), []
    for _ in range(60):
        full += actor.choose(lambda: None if next(refuse) or not store._free else store.begin(0))
        actor.send()
        actor.receive()
    return [row.place for row in full], store.unroll.tensors()


@pytest.mark.parametrize("core", CORES)
def test_a_recorded_actor_writes_what_one_that_is_not_recorded_writes(core, monkeypatch):
    use_tapes(monkeypatch)
    places, expected = played(core, record=False)
    same_places, found = played(core, record=True)
    assert places == same_places
    assert len(places) > 12
    for plain, recorded in zip(expected, found, strict=True):
        # the last place is for what nobody wants
        torch.testing.assert_close(recorded[:-1], plain[:-1], **FLOAT32)


@WAYS
def test_steps_without_a_row_are_not_learned_from(side_by_side):
    """Whoever would wait for a learner that waits for him plays on."""
    free = make_free("lstm", n=6, rows=4, max_lag=3, environment=InParts, side_by_side=side_by_side, steps=2000)
    begin, refused = free._begin, []

    def sometimes(version):
        refused.append(len(refused) % 3 == 0)
        return None if refused[-1] else begin(version)

    free._begin = sometimes
    for metrics, _ in free.run():
        assert metrics["lag_max"] <= 3
        batch = free.updates.batch
        environment = batch.observation[:, 1:, 0]
        assert (environment == environment[:, :1]).all()
    assert any(refused)


def test_a_learner_that_is_slow_makes_actors_wait_until_the_lag_is_bounded(monkeypatch):
    """Updates that are never done unless somebody waits for them, as on a busy GPU."""
    finish = Updates.finish
    monkeypatch.setattr(Updates, "finish", lambda self, wait=False: finish(self) if wait else None)
    free = make_free("lstm", max_lag=3)
    seen = [metrics["lag_max"] for metrics, _ in free.run()]
    assert len(seen) == 10
    assert max(seen) == 3


def test_players_wait_for_a_slow_learner_until_the_lag_is_bounded(monkeypatch):
    monkeypatch.setattr(Updates, "wait", lambda self: time.sleep(0.05))
    free = make_free("lstm", max_lag=3, side_by_side=True)
    seen = [metrics["lag_max"] for metrics, _ in free.run()]
    assert len(seen) == 10
    assert max(seen) == 3


@WAYS
@pytest.mark.parametrize(("groups", "n", "rows"), [(2, 1, 8), (1, 5, 8), (1, 1, 3), (2, 2, 3)])
def test_a_few_environments_fill_a_large_batch_with_several_unrolls(groups, n, rows, side_by_side):
    free = make_free("feedforward", groups=groups, n=n, rows=rows, unroll=3, steps=12 * rows * 3, side_by_side=side_by_side)
    assert len(list(free.run())) == 12


def test_a_group_that_plays_faster_than_another_does_not_make_its_unrolls_too_old():
    class Slow(Noise):
        made = 0

        def __init__(self, n):
            super().__init__(n)
            self.wait = 0.01 * (Slow.made % 2)
            Slow.made += 1

        def recv(self):
            time.sleep(self.wait)
            return super().recv()

    free = make_free("feedforward", side_by_side=True, environment=Slow, max_lag=3, steps=800)
    assert max(metrics["lag_max"] for metrics, _ in free.run()) <= 3


def living_players():
    return [thread for thread in threading.enumerate() if thread.name == "player"]


def test_players_end_with_the_last_update_and_when_nobody_asks_for_more():
    free = make_free("feedforward", side_by_side=True)
    assert len(list(free.run())) == 10
    assert not living_players()
    updates = make_free("feedforward", side_by_side=True).run()
    next(updates)
    assert len(living_players()) == 2
    updates.close()
    assert not living_players()


def test_who_asks_for_more_after_close_gets_nothing():
    free = make_free("feedforward", side_by_side=True, steps=10_000)
    updates = free.run()
    next(updates)
    free.close()
    free.close()
    # what was collected before may still be learned from
    assert len(list(updates)) < 10
    with pytest.raises(InvalidInput, match="run once"):
        next(free.run())


def test_what_a_player_raises_is_raised_where_updates_are_asked_for():
    class Broken(Noise):
        def recv(self):
            self.left = getattr(self, "left", 35) - 1
            if not self.left:
                raise OSError("the wire is cut")
            return super().recv()

    free = make_free("feedforward", side_by_side=True, environment=Broken)
    with pytest.raises(OSError, match="the wire is cut"):
        list(free.run())
    assert not living_players()


def test_what_counts_as_busy_is_the_time_of_the_threads_that_were_started_meanwhile():
    clock, worked, looked = BusyClock(cores=2), threading.Barrier(3), threading.Event()

    def work():
        # the interpreter does not keep a core to itself for it
        while time.thread_time() < 0.3:
            hashlib.sha256(bytes(2**22)).digest()
        worked.wait()
        looked.wait()

    other, mine = (threading.Thread(target=work) for _ in range(2))
    other.start()
    assert clock.lap() is None
    with clock.counting():
        mine.start()
    begun = time.monotonic()
    clock.lap()
    worked.wait()
    busy, seconds = clock.lap(), time.monotonic() - begun
    looked.set()
    for thread in (other, mine):
        thread.join()
    assert busy * 2 * seconds == pytest.approx(0.3, abs=0.1)
    # of threads that have ended nothing more is told
    assert clock.lap() is not None


@pytest.mark.parametrize(
    ("cores", "groups", "alone", "in_parts"), [(14, 1, 14, 14), (14, 2, 14, 7), (14, 3, 10, 5), (14, 4, 7, 4), (1, 2, 1, 1)]
)
def test_groups_have_two_threads_a_core_together_and_one_if_they_answer_in_parts(cores, groups, alone, in_parts):
    assert threads_of_group(cores, groups) == alone
    assert threads_of_group(cores, groups, parts=2) == in_parts


def test_trainings_that_run_at_once_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(16))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    assert (environment_threads(), torch_threads()) == (12, 8)
    monkeypatch.setenv(SHARED_BY, "4")
    assert (environment_threads(), torch_threads()) == (3, 2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert (environment_threads(), torch_threads()) == (1, 1)
    monkeypatch.delenv(SHARED_BY)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert torch_threads() == 1


def test_more_environments_than_the_lag_allows_are_refused():
    check_lag(33, 8, 4, groups=1)
    check_lag(32, 8, 4, groups=2)
    with pytest.raises(
        InvalidInput,
        match=r"34 environments with 8 unrolls an update have a lag above max_lag=4; use at most 32, or impala.max_lag=5",
    ):
        check_lag(34, 8, 4, groups=2)
    check_lag(34, 8, 5, groups=2)
    with pytest.raises(InvalidInput, match=r"max_lag=0; use impala.max_lag=1$"):
        check_lag(2, 8, 0, groups=2)


def test_free_mode_learns_to_catch():
    config = tiny_config(unroll=10, batch=16, environments=32, steps=60_000, lr=6e-3, discount=0.9).impala
    torch.manual_seed(0)
    agent = Agent(CATCH)
    learner = Learner(agent, config)

    def make_actor(acting, group):
        return RowActor(acting, make(tiny_config().environment, 16, first=16 * group), 10, seed=1, skip=5 * group)

    scores = []
    for _, episodes in Free(learner, make_actor, groups=2, rows=16).run():
        scores += [episode.score for episode in episodes]
    assert fmean(scores[:100]) < 0
    assert fmean(scores[-100:]) > 0.8


def test_an_lstm_that_can_be_recorded_is_the_same_lstm():
    torch.manual_seed(0)
    layer, x, reset = LSTM(4, 5), torch.randn(3, 7, 4), torch.rand(3, 7) < 0.3
    expected, state = layer(x, None, reset)
    layer.recordable = True
    found, same = layer(x, None, reset)
    torch.testing.assert_close(found, expected, **FLOAT32)
    torch.testing.assert_close(same["c"], state["c"], **FLOAT32)
