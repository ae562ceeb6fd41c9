import hashlib
import threading
import time
from itertools import takewhile
from statistics import fmean

import pytest
import torch

from rfwp.config import ImpalaConfig
from rfwp.errors import InvalidInput
from rfwp.layers import LSTM
from rfwp.models import Agent
from rfwp.rl import Actor, Learner
from rfwp.rl.cores import BusyClock, threads_of_group
from rfwp.rl.free import Free, check_lag
from rfwp.rl.updates import Updates
from rfwp.tasks.environments import make
from tests.rl.fake import CORES, Noise, make_agent
from tests.rl.tiny import CATCH, tiny_config
from tests.tolerances import FLOAT32

WAYS = pytest.mark.parametrize("side_by_side", [False, True], ids=["in turn", "side by side"])


def make_free(core, groups=2, n=3, rows=2, unroll=10, side_by_side=False, environment=Noise, **impala):
    config = ImpalaConfig(unroll=unroll, **{"steps": 10 * rows * unroll, **impala})
    agent = make_agent(CORES[core], Noise())
    learner = Learner(agent, config)

    def make_actor(acting, group):
        return Actor(acting, environment(n), unroll, seed=group, skip=group * unroll // groups)

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
def test_batches_hold_every_row_of_every_unroll_once_and_in_order(side_by_side):
    """Five rows a group in batches of three: a batch may hold the end of one unroll and the beginning of another."""
    free = make_free("feedforward", n=5, rows=3, side_by_side=side_by_side)
    collected, learned = {}, []
    choose, note = free._choose, free._note

    def first(actor):
        if actor.t == 0:
            collected[actor, sum(known is actor for known, _ in collected)] = None
        choose(actor)

    def last(actor):
        unroll = actor.next
        if complete := note(actor):
            collected[actor, sum(known is actor for known, _ in collected) - 1] = unroll.logits.clone()
        return complete

    free._choose, free._note = first, last
    for _ in free.run():
        learned.append(free.updates.batch.logits.clone())
    learned = torch.cat(learned)
    collected = torch.cat(list(takewhile(lambda logits: logits is not None, collected.values())))
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


def test_groups_do_not_end_their_unrolls_together():
    free = make_free("feedforward", groups=2)
    run = free.run()
    next(run)
    assert {actor.t for actor in free.actors} != {free.actors[0].t}


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


@pytest.mark.parametrize(("cores", "groups", "threads"), [(14, 1, 14), (14, 2, 14), (14, 3, 10), (14, 4, 7), (1, 2, 1)])
def test_groups_have_two_threads_a_core_together(cores, groups, threads):
    assert threads_of_group(cores, groups) == threads


def test_more_environments_than_the_lag_allows_are_refused():
    check_lag(33, 8, 4)
    with pytest.raises(InvalidInput, match="34 environments with 8 unrolls an update have a lag above max_lag=4; use at most 33"):
        check_lag(34, 8, 4)


def test_free_mode_learns_to_catch():
    config = tiny_config(unroll=10, batch=16, environments=32, steps=60_000, lr=6e-3, discount=0.9).impala
    torch.manual_seed(0)
    agent = Agent(CATCH)
    learner = Learner(agent, config)

    def make_actor(acting, group):
        return Actor(acting, make(tiny_config().environment, 16, first=16 * group), 10, seed=1, skip=5 * group)

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
