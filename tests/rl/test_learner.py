import copy
from dataclasses import replace
from statistics import fmean

import pytest
import torch

from rfwp.config import BlocksConfig, FWPConfig, ImpalaConfig, LSTMConfig, NoCoreConfig, from_dict, to_dict
from rfwp.errors import InvalidInput
from rfwp.layers import FWP
from rfwp.layers.state import map_state
from rfwp.rl import Actor, Learner, train_lockstep
from rfwp.rl.learner import mean_returns
from rfwp.tasks.environments import Episode
from rfwp.train import Diverged
from tests.rl.fake import CORES, FAST_WEIGHTS, Noise, Recall, make_agent
from tests.tolerances import FLOAT64


def weights(agent):
    return torch.cat([p.detach().flatten() for p in agent.parameters()])


def gradients(agent, unroll):
    return torch.autograd.grad(Learner(agent, ImpalaConfig()).loss(unroll).total, list(agent.parameters()))


def reference(agent):
    """The same agent in float64, its fast weights written and read one step at a time."""
    slow = copy.deepcopy(agent).double()
    for module in slow.modules():
        if isinstance(module, FWP):
            module.backend = "reference"
    return slow


@pytest.mark.parametrize("name", FAST_WEIGHTS)
def test_gradient_through_the_fast_weights_of_an_unroll_is_the_references(name):
    environment = Noise()
    agent = make_agent(FAST_WEIGHTS[name], environment)
    actor = Actor(agent, environment, steps=50, seed=1)
    actor.collect()
    unroll = actor.collect()
    assert unroll.done[:, 1:].any(1).all()
    precise = replace(unroll, state=map_state(torch.Tensor.double, unroll.state))
    expected = gradients(reference(agent), precise)
    for one, other in zip(gradients(copy.deepcopy(agent).double(), precise), expected, strict=True):
        torch.testing.assert_close(one, other, **FLOAT64)
    # in float32, in which agents train, as one vector
    found, exact = (torch.cat([g.flatten().double() for g in gs]) for gs in (gradients(agent, unroll), expected))
    assert (found - exact).norm() < 1e-5 * exact.norm()


@pytest.mark.parametrize("name", ["lstm", "rdn"])
@pytest.mark.parametrize("lag", [0, 1])
def test_lockstep_training_is_the_same_for_the_same_seed(name, lag):
    def train(seed):
        environment, seen = Noise(), []
        agent = make_agent(CORES[name], environment)
        learner = train_lockstep(agent, environment, ImpalaConfig(steps=150, unroll=10, lag=lag, seed=seed), seen.append)
        assert learner.updates == len(seen) == 5
        return weights(agent), seen

    one, other = train(1), train(1)
    assert torch.equal(one[0], other[0])
    assert one[1] == other[1]
    assert not torch.equal(one[0], train(2)[0])


def test_lag_is_what_it_says():
    """Importance weights are 1 without lag; with a lag of one update they are so at the first update only."""

    def deviations(lag):
        environment, seen = Noise(), []
        config = ImpalaConfig(steps=120, unroll=10, lag=lag, lr=1e-2)
        train_lockstep(make_agent(CORES["lstm"], environment), environment, config, seen.append)
        return [abs(metrics["weight"] - 1) for metrics in seen]

    assert max(deviations(0)) < 1e-5
    first, *later = deviations(1)
    assert first < 1e-5
    assert min(later) > 1e-4


def test_update_is_clipped_rmsprop_with_eps_outside_the_root_and_a_linearly_falling_rate():
    environment = Noise()
    agent = make_agent(CORES["lstm"], environment)
    # steps for four updates of 30; a limit that the gradient is always above
    config = ImpalaConfig(steps=120, unroll=10, clip=0.5)
    learner, actor = Learner(agent, config), Actor(agent, environment, 10)
    square = 0.0
    for update in range(5):
        unroll = actor.collect()
        before = weights(agent)
        g = torch.cat([g.flatten() for g in gradients(agent, unroll)])
        metrics = learner.update(unroll)
        assert metrics["gradient"] == pytest.approx(g.norm().item(), rel=1e-5)
        assert metrics["gradient"] > 0.5
        g = 0.5 * g / g.norm()
        square = 0.99 * square + 0.01 * g**2
        lr = 6e-4 * (1 - update / 4)
        assert metrics["lr"] == pytest.approx(lr)
        torch.testing.assert_close(weights(agent), before - lr * g / (square.sqrt() + 0.01), atol=1e-6, rtol=0)


def test_warm_up_raises_the_rate_in_equal_steps_before_it_falls():
    environment = Noise()
    agent = make_agent(CORES["lstm"], environment)
    learner, actor = Learner(agent, ImpalaConfig(steps=3000, unroll=10, warm_up=3)), Actor(agent, environment, 10)
    rates = [learner.update(actor.collect())["lr"] for _ in range(5)]
    falling = [1 - update / 100 for update in range(5)]
    assert rates == pytest.approx([6e-4 * warm * rest for warm, rest in zip((0.25, 0.5, 0.75, 1, 1), falling, strict=True)])


def test_metrics_are_floats_and_parts_add_up():
    environment = Noise()
    agent = make_agent(CORES["rdn"], environment)
    metrics = Learner(agent, ImpalaConfig()).update(Actor(agent, environment, 50).collect())
    assert all(type(number) is float for number in metrics.values())
    assert metrics["total"] == pytest.approx(metrics["policy"] + metrics["value"] + metrics["entropy_loss"], rel=1e-5)
    assert metrics["steps"] == 150
    assert "return" in metrics


def test_returns_of_games_and_lives_are_apart():
    episodes = [Episode(4.0, 9, True), Episode(1.0, 2, False), Episode(2.0, 3, False)]
    assert mean_returns(episodes) == {"return": 4.0, "return_life": 1.5}
    assert mean_returns([]) == {}


def test_gradients_of_several_learners_can_be_added_before_clipping():
    environment = Noise()
    agent = make_agent(CORES["lstm"], environment)
    unroll = Actor(agent, environment, 10).collect()
    plain = Learner(copy.deepcopy(agent), ImpalaConfig()).update(unroll)["gradient"]

    def double():
        for parameter in agent.parameters():
            parameter.grad *= 2

    assert Learner(agent, ImpalaConfig(), reduce=double).update(unroll)["gradient"] == pytest.approx(2 * plain)


def test_a_loss_that_is_no_number_stops_before_it_spoils_the_weights():
    environment = Noise()
    agent = make_agent(CORES["lstm"], environment)
    unroll = Actor(agent, environment, 5).collect()
    unroll.observation[0, 2] = float("nan")
    before = weights(agent)
    with pytest.raises(Diverged, match="update 1: loss nan"):
        Learner(agent, ImpalaConfig()).update(unroll)
    assert torch.equal(weights(agent), before)


RECALL = ImpalaConfig(steps=64_000, unroll=20, lr=6e-3, discount=0.9)


def trained_to_recall(core, steps):
    """The mean return of the last 20 updates; guessing gives 1/4."""
    environment, seen = Recall(n=16, cues=4, wait=2), []
    train_lockstep(make_agent(core, environment, features=16), environment, replace(RECALL, steps=steps), seen.append)
    return fmean(metrics["return"] for metrics in seen[-20:])


MEMORIES = {
    "lstm": LSTMConfig(hidden=24),
    "rdn": BlocksConfig(layer=FWPConfig(slow="recurrent", phi="softmax"), width=16, layers=1, heads=2, ff=32),
}


@pytest.mark.parametrize("name", MEMORIES)
def test_agent_with_memory_learns_to_recall(name):
    assert trained_to_recall(MEMORIES[name], 64_000) > 0.8


def test_agent_without_memory_stays_at_chance():
    # 20 updates have about 1,600 episodes: a standard deviation of 0.011
    assert trained_to_recall(NoCoreConfig(), 32_000) == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("steps", 0, "impala.steps=0; use at least 1"),
        ("lag", 2, "impala.lag=2; lockstep training has a lag of 0 or 1"),
        ("lr", 0.0, "impala.lr=0.0; use a positive number"),
        ("discount", 1.5, "impala.discount=1.5; use a number from 0 to 1"),
        ("warm_up", -1, "impala.warm_up=-1; use 0 or more"),
        ("entropy_cost", -1.0, "impala.entropy_cost=-1.0; use 0 or more"),
        ("clip", float("nan"), "impala.clip=nan; use a positive number"),
    ],
)
def test_bad_settings_are_one_line(field, value, message):
    with pytest.raises(InvalidInput) as caught:
        Learner(make_agent(CORES["lstm"], Noise()), replace(ImpalaConfig(), **{field: value}))
    assert str(caught.value) == message


def test_settings_survive_json():
    config = ImpalaConfig(lag=1, lr=1e-3)
    assert from_dict(to_dict(config)) == config
