"""Evaluation: which episodes count, and what is made of them."""

import numpy as np
import pytest
import torch

from rfwp.config import AgentConfig, AtariConfig, GymConfig, LSTMConfig, MemoryGameConfig, NoCoreConfig
from rfwp.errors import InvalidInput
from rfwp.models import Agent
from rfwp.rl.evaluate import Evaluation, Line, Player, evaluate, with_protocol
from rfwp.rl.faults import EnvironmentFailed
from tests.rl.fake import CORES, Noise, make_agent

CATCH = MemoryGameConfig("catch")


def small_agent(actions=3, vector=50, seed=0, **others):
    torch.manual_seed(seed)
    return Agent(AgentConfig(actions=actions, core=LSTMConfig(hidden=8), vector=vector, features=8, **others))


def played(line, games, steps=10_000):
    """The line's returns after playing: each game of each row is a list of lives (steps, score), the score at its end."""
    games = [[[list(life) for life in game] for game in row] for row in games]
    for _ in range(steps):
        reward, done, over = np.zeros(len(games)), np.zeros(len(games), bool), np.zeros(len(games), bool)
        for row, mine in enumerate(games):
            life = mine[0][0]
            life[0] -= 1
            if life[0] == 0:
                reward[row], done[row] = life[1], True
                mine[0].pop(0)
                if not mine[0]:
                    mine.pop(0)
                    over[row] = True
        line.add(reward, done, over)
        if line.full:
            return line.returns
    raise AssertionError("never full")


def test_mean_and_population_std_are_of_the_runs_means():
    found = Evaluation(CATCH, True, ((1.0, 3.0), (4.0, 4.0), (6.0, 6.0)))
    assert found.means == [2.0, 4.0, 6.0]
    assert found.mean == 4.0
    assert found.std == pytest.approx((8 / 3) ** 0.5)


def test_games_count_by_the_order_in_which_they_start_and_not_in_which_they_end():
    slow, quick = [[(50, 100.0 + n)] for n in range(5)], [[(1, float(n))] for n in range(200)]
    assert played(Line(2, 4), [slow, [[(1, -1.0)], *quick]]) == (100.0, 0.0, 101.0, 1.0)


def test_lives_of_a_game_stay_together():
    first, second = ([[(3, 10.0 * n + life) for life in range(3)] for n in range(start, 9, 2)] for start in (0, 1))
    assert played(Line(2, 7), [first, [[(1, -1.0)], *second]]) == (0.0, 1.0, 2.0, 10.0, 11.0, 12.0, 20.0)


def test_of_the_first_games_of_all_environments_one_counts():
    """An agent sees the last reward, and only in the first game of an environment there is none."""
    for width in (1, 4, 12):
        rows = [[[(2, 99.0), (2, 99.0)], *([[(row + 1, 1.0)]] * 50)] for row in range(width)]
        assert played(Line(width, 12), rows) == (99.0, 99.0, *[1.0] * 10)


def test_lives_of_a_game_that_is_not_over_count_where_nothing_comes_before_them():
    long = [[(5, 1.0), (5, 2.0), (5, 3.0), (100, 4.0)]]
    line = Line(1, 3)
    assert played(line, [long], steps=15) == (1.0, 2.0, 3.0)


def test_short_episodes_are_not_over_represented():
    """Half of the games last 1 step and earn nothing, half last 40 and earn 1: the first to finish earn nothing."""
    random, means = np.random.default_rng(0), []
    for _ in range(30):
        rows = [[[(40, 1.0)] if random.random() < 0.5 else [(1, 0.0)] for _ in range(200)] for _ in range(10)]
        means.append(np.mean(played(Line(10, 30), rows)))
    # 900 fair coins: a standard deviation of 0.017
    assert np.mean(means) == pytest.approx(0.5, abs=0.08)


def test_an_episode_that_falls_below_zero_at_any_moment_is_left_out_if_asked():
    def line(drop_negative):
        line = Line(1, 2, drop_negative)
        ends = np.array([True])
        for rewards in ((-1.0, 5.0), (2.0, -1.0), (3.0, 0.0)):
            line.add(np.array([rewards[0]]), ~ends, ~ends)
            line.add(np.array([rewards[1]]), ends, ends)
        return line

    assert line(False).returns == (4.0, 1.0)
    kept = line(True)
    assert (kept.returns, kept.dropped) == ((1.0, 3.0), 1)


def test_an_agent_that_only_loses_does_not_play_for_ever():
    with pytest.raises(InvalidInput, match="21 episodes fell below zero and 0 did not; count them all"):
        played(Line(1, 1, drop_negative=True), [[[(1, -1.0)]] * 100])


def test_the_same_seed_gives_the_same_evaluation_and_sampling_is_another():
    agent = small_agent()
    one, same, other, sampled = (
        evaluate(agent, CATCH, episodes=12, runs=3, seed=seed, greedy=greedy).returns
        for seed, greedy in ((1, True), (1, True), (2, True), (1, False))
    )
    assert one == same
    assert [len(run) for run in one] == [12, 12, 12]
    assert len({one, other, sampled}) == 3
    assert {score for run in one for score in run} <= {-1.0, 1.0}


def test_an_agent_is_in_the_mode_it_was_in():
    agent = small_agent()
    agent.policy.eval()
    evaluate(agent, CATCH, episodes=2, runs=1)
    assert agent.training
    assert not agent.policy.training


def test_greedy_takes_the_most_probable_action():
    agent = small_agent(actions=4, vector=5)
    with torch.no_grad():
        agent.policy.weight.zero_()
        agent.policy.bias.copy_(torch.tensor([0.0, 0.0, 0.1, 0.0]))
    recall = MemoryGameConfig("recall", length=1, symbols=4)
    found = evaluate(agent, recall, episodes=100, runs=2)
    # one of four symbols is the one that it always acts
    assert found.mean == pytest.approx(0.25, abs=0.12)
    assert set(found.returns[0]) == {0.0, 1.0}


def test_state_does_not_pass_from_one_episode_to_the_next():
    """The same symbol at its start, so the same episode: an agent with memory must not see the one before."""
    agent = small_agent(actions=2, vector=3)
    states = []
    step = agent.step

    def watched(observation, reward, state=None, done=None):
        output, after = step(observation, reward, state, done)
        if done is not None and bool(done[0]):
            states.append((observation[0].clone(), reward[0].clone(), output.logits[0].clone()))
        return output, after

    agent.step = watched
    evaluate(agent, MemoryGameConfig("recall", length=3, symbols=2), episodes=8, runs=1, environments=1)
    first = {}
    for observation, reward, logits in states:
        key = (tuple(observation.tolist()), reward.item())
        torch.testing.assert_close(logits, first.setdefault(key, logits))
    assert len(first) < len(states)


def test_an_episode_is_a_life_or_a_game_as_the_protocol_says(monkeypatch):
    torch.manual_seed(0)
    agent = Agent(AgentConfig(actions=6, core=NoCoreConfig(), channels=(2,), features=4, pixels=42))
    game = AtariConfig("space_invaders", "paper_code", pixels=42)
    steps = {}
    for protocol, episodes in (("paper_code", 3), ("standard", 1)):
        line, ends = Line(1, episodes), []
        monkeypatch.setattr("rfwp.rl.evaluate.Line", lambda *_, line=line: line)
        monkeypatch.setattr(
            line, "add", lambda r, d, o, line=line, ends=ends: (ends.append((d[0], o[0])), Line.add(line, r, d, o))
        )
        found = evaluate(agent, game, episodes, runs=1, environments=1, greedy=False, protocol=protocol, threads=1)
        assert found.environment.protocol == protocol
        assert len(found.returns[0]) == episodes
        steps[protocol] = (sum(done for done, _ in ends), sum(over for _, over in ends))
    # three lives are one game
    assert steps == {"paper_code": (3, 1), "standard": (1, 1)}


def test_another_protocol_keeps_what_the_agent_sees_and_does():
    trained = AtariConfig("jamesbond", sticky=0.1, pixels=42, stack=2)
    found = with_protocol(trained, "standard", actions=6)
    assert found == AtariConfig("jamesbond", "standard", actions=6, pixels=42, stack=2)
    assert with_protocol(trained, "as trained", 6) is trained
    assert with_protocol(trained, "paper_code", 6) is trained
    with pytest.raises(InvalidInput, match="protocol 'standard' is for Atari games; leave it away for GymConfig"):
        with_protocol(GymConfig(), "standard", 2)


def test_an_agent_of_another_action_set_is_one_line():
    with pytest.raises(InvalidInput, match="has 3 actions but the agent was trained with 5"):
        evaluate(small_agent(actions=5), CATCH, episodes=1, runs=1)


@pytest.mark.parametrize("name", ["episodes", "runs", "environments"])
def test_nothing_to_play_is_an_error(name):
    with pytest.raises(InvalidInput, match=f"{name}=0; use at least 1"):
        evaluate(small_agent(), CATCH, **{name: 0})


@pytest.mark.parametrize("part", ["reward", "observation"])
def test_numbers_that_are_none_are_no_score(part):
    environment = Noise(2)
    player = Player(make_agent(CORES["lstm"], environment), environment)
    player.step()
    recv = environment.recv

    def broken():
        step = recv()
        getattr(step, part)[1] = np.nan
        return step

    environment.recv = broken
    with pytest.raises(EnvironmentFailed, match=rf"the environment gave an? {part} that is no finite number"):
        player.step()
