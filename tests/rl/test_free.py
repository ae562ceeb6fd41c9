from statistics import fmean

import pytest
import torch

from rfwp.config import ImpalaConfig
from rfwp.errors import InvalidInput
from rfwp.layers import LSTM
from rfwp.models import Agent
from rfwp.rl import Actor, Learner
from rfwp.rl.free import Free, check_lag
from rfwp.rl.updates import Updates
from rfwp.tasks.environments import make
from tests.rl.fake import CORES, Noise, make_agent
from tests.rl.tiny import CATCH, tiny_config
from tests.tolerances import FLOAT32


def make_free(core, groups=2, n=3, rows=2, unroll=10, **impala):
    config = ImpalaConfig(unroll=unroll, **{"steps": 10 * rows * unroll, **impala})
    agent = make_agent(CORES[core], Noise())
    learner = Learner(agent, config)

    def make_actor(acting, group):
        return Actor(acting, Noise(n), unroll, seed=group, skip=group * unroll // groups)

    return Free(learner, make_actor, groups=groups, rows=rows)


@pytest.mark.parametrize("core", CORES)
def test_with_weights_that_stay_the_learner_sees_the_actors_logits_in_every_batch(core):
    free = make_free(core, lr=1e-12)
    for metrics, _ in free.run():
        batch = free.updates.batch
        output, _ = free.learner.agent(batch.observation, batch.reward, batch.state, batch.done)
        torch.testing.assert_close(output.logits[:, :-1], batch.logits, **FLOAT32)
        assert metrics["cut"] == 0
    assert free.learner.updates == 10


def test_batches_hold_every_row_of_every_unroll_once_and_in_order():
    """Five rows a group in batches of three: a batch may hold the end of one unroll and the beginning of another."""
    free = make_free("feedforward", n=5, rows=3)
    collected, learned = [], []
    observe = free._observe

    def kept(actor):
        before = len(free._waiting)
        observe(actor)
        collected.extend(waiting.unroll.logits.clone() for waiting in free._waiting[before:])

    free._observe = kept
    for _ in free.run():
        learned.append(free.updates.batch.logits.clone())
    learned = torch.cat(learned)
    assert torch.equal(learned, torch.cat(collected)[: len(learned)])


def test_actors_get_the_new_weights_after_every_update_and_know_their_age():
    free = make_free("lstm")
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


@pytest.mark.parametrize(("groups", "n", "rows"), [(2, 1, 8), (1, 5, 8), (1, 1, 3), (2, 2, 3)])
def test_a_few_environments_fill_a_large_batch_with_several_unrolls(groups, n, rows):
    free = make_free("feedforward", groups=groups, n=n, rows=rows, unroll=3, steps=12 * rows * 3)
    assert len(list(free.run())) == 12


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
