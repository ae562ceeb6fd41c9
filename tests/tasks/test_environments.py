"""What every environment promises, for each kind of environment; and what is wrong with the arguments of `make`."""

import numpy as np
import pytest

from rfwp.config import AtariConfig, GymConfig, ListOpsConfig, MemoryGameConfig, from_dict, to_dict
from rfwp.errors import InvalidInput
from rfwp.tasks.environments import Episode, Scores, errors_name, make, spread_seed

CONFIGS = {
    "recall": MemoryGameConfig("recall", length=3),
    "t-maze": MemoryGameConfig("t-maze", length=3),
    "catch": MemoryGameConfig("catch"),
    "gym": GymConfig("CartPole-v1"),
    "paper_code": AtariConfig("breakout", max_frames=200),
    "standard": AtariConfig("breakout", protocol="standard", max_frames=200),
}
N = 3


def play(environment, seed, steps=80):
    random = np.random.default_rng(0)
    all_steps = [environment.reset(seed)]
    for _ in range(steps):
        environment.send(random.integers(environment.actions, size=environment.n))
        all_steps.append(environment.recv())
    return all_steps


@pytest.fixture(params=CONFIGS, ids=CONFIGS, scope="module")
def environment(request):
    made = make(CONFIGS[request.param], N, threads=1)
    yield made
    made.close()


def test_steps_have_the_shapes_and_types_that_were_promised(environment):
    for step in play(environment, seed=1, steps=20):
        assert step.observation.shape == (N, *environment.shape)
        assert step.observation.dtype == environment.dtype
        assert step.reward.shape == step.done.shape == (N,)
        assert step.reward.dtype == np.float32
        assert step.done.dtype == np.bool_


def test_the_same_seed_gives_the_same_episodes_and_another_seed_others(environment):
    first, again, other = (play(environment, seed) for seed in (1, 1, 2))
    for step, same in zip(first, again, strict=True):
        for value, expected in zip(step, same, strict=True):
            np.testing.assert_array_equal(value, expected)
    assert any(not np.array_equal(step.observation, another.observation) for step, another in zip(first, other, strict=True))


def test_all_are_done_after_reset_and_every_later_done_is_a_finished_episode(environment):
    first, *steps = play(environment, seed=1)
    assert first.done.all()
    assert not first.reward.any()
    episodes = environment.finished()
    assert environment.finished() == []
    # where lives end an episode, it is they that count
    episodes = [episode for episode in episodes if not episode.whole] or episodes
    reward = np.array([step.reward for step in steps])
    done = np.array([step.done for step in steps])
    assert done.any(0).all()
    assert len(episodes) == done.sum()
    # the steps after the last end of an environment belong to an episode that still runs
    last = [np.flatnonzero(column)[-1] + 1 for column in done.T]
    assert sum(episode.steps for episode in episodes) == sum(last)
    finished = sum(reward[:end, row].sum() for row, end in enumerate(last))
    assert sum(episode.score for episode in episodes) == pytest.approx(finished, abs=1e-4)


def test_reset_in_the_middle_of_a_step_starts_anew(environment):
    first = environment.reset(1)
    environment.send(np.zeros(N, int))
    again = environment.reset(1)
    np.testing.assert_array_equal(first.observation, again.observation)
    environment.send(np.zeros(N, int))
    assert not environment.recv().done.any()
    assert environment.finished() == []


def test_an_observation_is_not_overwritten_by_the_next_step(environment):
    first, second = play(environment, seed=1, steps=1)
    kept = first.observation.copy()
    play(environment, seed=2, steps=2)
    np.testing.assert_array_equal(first.observation, kept)
    assert not np.shares_memory(first.observation, second.observation)


@pytest.mark.parametrize("actions", [np.array([0, 0, 99]), np.array([0, -1, 0]), np.zeros(N + 1, int), np.zeros(N)])
def test_actions_that_do_not_exist_are_refused_before_they_are_played(environment, actions):
    environment.reset(1)
    with pytest.raises(InvalidInput, match="actions"):
        environment.send(actions)
    environment.send(np.zeros(N, int))
    environment.recv()


def test_every_whole_number_from_0_is_a_seed(environment):
    for seed in (0, 2**31, 2**40, np.int64(3)):
        environment.reset(seed)
    with pytest.raises(InvalidInput, match="seed=-1"):
        environment.reset(-1)


@pytest.mark.parametrize("name", ["recall", "t-maze", "catch", "gym"])
def test_a_set_of_environments_plays_the_same_however_it_is_split(name):
    actions = np.random.default_rng(0).integers(2, size=(40, 5))

    def observations(first, n):
        part = make(CONFIGS[name], n, first=first)
        seen = [part.reset(7).observation]
        for row in actions[:, first : first + n]:
            part.send(row)
            seen.append(part.recv().observation)
        part.close()
        return np.stack(seen)

    np.testing.assert_array_equal(observations(0, 5), np.concatenate([observations(0, 2), observations(2, 3)], axis=1))


def test_neighbouring_seeds_share_no_environment():
    seeds = np.concatenate([spread_seed(seed, 64) for seed in range(10)])
    assert len(np.unique(seeds)) == 640


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_configs_survive_json(config):
    assert from_dict(to_dict(config)) == config


def test_make_refuses_what_is_no_environment():
    with pytest.raises(InvalidInput, match="ListOpsConfig is no environment"):
        make(ListOpsConfig(), 1)
    with pytest.raises(InvalidInput, match="0 environments"):
        make(MemoryGameConfig(), 0)
    with pytest.raises(InvalidInput, match="first=-1"):
        make(MemoryGameConfig(), 1, first=-1)
    with pytest.raises(InvalidInput, match="threads=-1"):
        make(MemoryGameConfig(), 1, threads=-1)


def test_scores_are_kept_apart_by_environment():
    scores = Scores(2, whole=False)
    assert scores.add(np.array([1.0, 5.0]), np.array([False, True])) == [Episode(5.0, 1, False, row=1)]
    both = [Episode(3.0, 2, False, row=0), Episode(7.0, 1, False, row=1)]
    assert scores.add(np.array([2.0, 7.0]), np.array([True, True])) == both


def test_an_error_from_inside_names_the_environment():
    with pytest.raises(RuntimeError) as caught, errors_name("pong"):
        raise RuntimeError("emulator lost")
    assert caught.value.__notes__ == ["in the environment pong"]
