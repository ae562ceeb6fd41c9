import copy

import numpy as np
import pytest
import torch

from rfwp.config import AgentConfig, AttentionConfig, BlocksConfig, LSTMConfig
from rfwp.errors import InvalidInput
from rfwp.models import Agent
from rfwp.rl import Actor
from tests.rl.fake import CORES, SMALL, Noise, make_agent
from tests.tolerances import FLOAT32

ALL = {**CORES, "attention": BlocksConfig(layer=AttentionConfig(window=4), **SMALL)}


@pytest.mark.parametrize("name", ALL)
def test_without_lag_the_learner_sees_the_actors_logits_across_episode_ends(name):
    environment = Noise()
    agent = make_agent(ALL[name], environment)
    actor = Actor(agent, environment, steps=50, seed=1)
    for _ in range(3):
        unroll = actor.collect()
        assert unroll.done[:, 1:].any()
        output, _ = agent(unroll.observation, unroll.reward, unroll.state, unroll.done)
        torch.testing.assert_close(output.logits[:, :-1], unroll.logits, **FLOAT32)


def test_unrolls_hold_what_the_environment_gave_and_join():
    environment, twin = Noise(), Noise()
    actor = Actor(make_agent(LSTMConfig(hidden=4), environment), environment, steps=4, seed=7)
    expected, last = [twin.reset(7)], None
    for _ in range(3):
        unroll = actor.collect()
        for t in range(4):
            twin.send(unroll.action[:, t].numpy())
            expected.append(twin.recv())
        for t, step in enumerate(expected[-5:]):
            assert np.array_equal(unroll.observation[:, t], step.observation)
            assert np.array_equal(unroll.reward[:, t], step.reward)
            assert np.array_equal(unroll.done[:, t], step.done)
        assert last is None or torch.equal(last, unroll.observation[:, 0])
        last = unroll.observation[:, -1].clone()
        assert unroll.episodes == twin.finished()
        assert unroll.steps == 4 * environment.n


def test_an_unroll_stays_until_the_collect_after_the_next():
    environment = Noise()
    actor = Actor(make_agent(CORES["rdn"], environment), environment, steps=5)
    actor.collect()
    unroll = actor.collect()
    kept = copy.deepcopy(unroll)
    actor.collect()
    assert torch.equal(unroll.observation, kept.observation)
    assert torch.equal(unroll.logits, kept.logits)
    assert torch.equal(unroll.state[1]["W"], kept.state[1]["W"])
    assert unroll.episodes == kept.episodes
    place = unroll.state[1]["W"].data_ptr()
    again = actor.collect()
    assert again is unroll
    assert not torch.equal(again.observation, kept.observation)
    assert again.state[1]["W"].data_ptr() == place


def test_actions_come_from_the_actors_own_generator():
    def actions(seed, elsewhere):
        environment = Noise()
        actor = Actor(make_agent(CORES["lstm"], environment), environment, steps=20, seed=seed)
        torch.manual_seed(elsewhere)
        return actor.collect().action

    assert torch.equal(actions(1, 2), actions(1, 3))
    assert not torch.equal(actions(1, 2), actions(4, 2))


def test_actions_are_sampled_from_the_policy_or_the_best_of_it():
    environment = Noise(n=50)
    agent = make_agent(CORES["feedforward"], environment)
    with torch.no_grad():
        agent.policy.weight.zero_()
        agent.policy.bias.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4]).log())
    often = Actor(agent, environment, steps=200).collect().action.flatten().bincount() / 10_000
    # five standard deviations
    torch.testing.assert_close(often, torch.tensor([0.1, 0.2, 0.3, 0.4]), atol=0.025, rtol=0)
    assert (Actor(agent, environment, steps=20, greedy=True).collect().action == 3).all()


def test_frames_go_into_unrolls_as_bytes():
    class Frames(Noise):
        dtype = np.dtype(np.uint8)

        def look(self):
            return self.random.integers(256, size=(self.n, *self.shape), dtype=np.uint8)

    environment = Frames()
    environment.shape = (2, 9, 9)
    agent = Agent(AgentConfig(actions=4, core=CORES["rdn"], channels=(3,), features=8, frames=2, pixels=9))
    unroll = Actor(agent, environment, steps=6).collect()
    assert unroll.observation.shape == (3, 7, 2, 9, 9)
    assert unroll.observation.dtype == torch.uint8
    output, _ = agent(unroll.observation, unroll.reward, unroll.state, unroll.done)
    torch.testing.assert_close(output.logits[:, :-1], unroll.logits, **FLOAT32)


@pytest.mark.parametrize(
    ("change", "steps", "message"),
    [
        ({}, 0, "steps=0; an unroll has at least 1"),
        ({"actions": 5}, 3, "the environment has 5 actions but the agent 4"),
        ({"shape": (6,)}, 3, "vector has shape (3, 1, 6), expected (B, T, 5)"),
    ],
)
def test_what_does_not_fit_is_one_line(change, steps, message):
    environment = Noise()
    agent = make_agent(CORES["lstm"], environment)
    for name, value in change.items():
        setattr(environment, name, value)
    with pytest.raises(InvalidInput) as caught:
        Actor(agent, environment, steps)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "cut", "message"),
    [
        ("observation", np.s_[:, :1], "the environment's observation has shape (3, 1), expected (3, 5)"),
        ("reward", np.s_[:1], "the environment's reward has shape (1,), expected (3,)"),
        ("done", np.s_[0], "the environment's done has shape (), expected (3,)"),
    ],
)
def test_answers_of_other_shapes_are_refused_and_not_repeated(part, cut, message):
    environment = Noise()
    actor = Actor(make_agent(CORES["lstm"], environment), environment, steps=3)
    recv = environment.recv

    def broken():
        step = recv()
        return step._replace(**{part: getattr(step, part)[cut]})

    environment.recv = broken
    with pytest.raises(InvalidInput) as caught:
        actor.collect()
    assert message in str(caught.value)
