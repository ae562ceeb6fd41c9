"""Atari through ale-py: protocols, action sets, lives and games."""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from rfwp.config import AtariConfig
from rfwp.errors import InvalidInput, UnknownName
from rfwp.tasks.atari import PAPER_CODE, PAPER_GAMES, Atari, resolve
from rfwp.tasks.environments import Episode, answered, make

GAMES = [*PAPER_GAMES, "breakout"]


def play(config, steps, n=1, choose=None):
    """The steps and the finished episodes; without `choose` the agent never presses a button."""
    atari = Atari(config, n, threads=1)
    all_steps = [atari.reset(seed=5)]
    for _ in range(steps):
        atari.send(choose(atari.actions) if choose else np.zeros(n, int))
        all_steps.append(atari.recv())
    episodes = atari.finished()
    atari.close()
    return all_steps, episodes


def test_pong_is_a_stack_of_grey_frames_that_starts_empty():
    atari = make(AtariConfig("pong"), 2, threads=1)
    assert (atari.n, atari.shape, atari.dtype, atari.actions) == (2, (4, 84, 84), np.uint8, 6)
    observation = atari.reset(seed=1).observation
    assert not observation[:, :3].any()
    assert observation[:, 3].any()
    atari.close()


def test_the_number_of_threads_changes_nothing():
    played = []
    for threads in (1, 2):
        atari = make(AtariConfig("pong", protocol="standard"), 2, threads=threads)
        atari.reset(seed=1)
        for action in range(40):
            atari.send(np.array([action % 6, action % 5]))
            step = atari.recv()
        played.append(step.observation)
        atari.close()
    np.testing.assert_array_equal(*played)
    assert not np.array_equal(*played[0])


def played_by(parts, steps=150, n=4):
    """By environment: what it saw, its rewards and ends, with actions that follow from its number and its clock alone."""
    atari = make(AtariConfig("breakout"), n, 2, 0, parts)
    seen, step = [[] for _ in range(n)], atari.reset(seed=3)
    while min(map(len, seen)) < steps:
        for i, row in enumerate(answered(atari)):
            seen[row].append((step.observation[i].copy(), float(step.reward[i]), bool(step.done[i])))
        atari.send(np.array([(len(seen[row]) * (row + 2)) % atari.actions for row in answered(atari)]))
        step = atari.recv()
    episodes = atari.finished()
    # with actions under way
    assert atari.reset(seed=4).done.all()
    atari.close()
    return [row[:steps] for row in seen], episodes


def test_games_that_answer_in_parts_are_the_same_games():
    together, lives = played_by(parts=1)
    in_parts, _ = played_by(parts=2)
    for row, same in zip(together, in_parts, strict=True):
        for (observation, *rest), (found, *others) in zip(row, same, strict=True):
            np.testing.assert_array_equal(found, observation)
            assert others == rest
    assert len({sum(reward for _, reward, _ in row) for row in together}) > 1
    assert lives
    with pytest.raises(InvalidInput, match="4 environments cannot answer in 3 equal parts"):
        make(AtariConfig("pong"), 4, 2, 0, 3)


def test_size_of_the_observation_is_a_choice():
    atari = make(AtariConfig("pong", stack=2, pixels=42), 1, threads=1)
    assert atari.shape == atari.reset(seed=1).observation.shape[1:] == (2, 42, 42)
    atari.close()


def test_frame_limit_counts_frames_and_ends_a_game():
    steps, episodes = play(AtariConfig("pong", max_frames=80, noop_max=0), steps=45)
    assert episodes == [Episode(episodes[0].score, 20, whole) for whole in (False, True)] * 2
    assert np.flatnonzero([step.done[0] for step in steps]).tolist() == [0, 20, 40]


def test_lives_add_up_to_games():
    random = np.random.default_rng(0)
    _, episodes = play(AtariConfig("breakout"), steps=400, choose=lambda actions: random.integers(actions, size=1))
    games = [number for number, episode in enumerate(episodes) if episode.whole]
    assert games
    start = 0
    for end in games:
        lives = episodes[start:end]
        assert len(lives) == 5
        assert not any(life.whole for life in lives)
        assert sum(life.score for life in lives) == episodes[end].score
        assert sum(life.steps for life in lives) == episodes[end].steps
        start = end + 1
    assert sum(episode.score for episode in episodes) > 0


def test_without_life_loss_only_whole_games_end():
    steps, episodes = play(AtariConfig("breakout", life_loss_ends=False, max_frames=400, noop_max=0), steps=110)
    assert np.flatnonzero([step.done[0] for step in steps]).tolist() == [0, 100]
    assert [(episode.steps, episode.whole) for episode in episodes] == [(100, True)]


def test_every_life_begins_by_itself_only_with_fire_reset():
    """Breakout waits for FIRE before each ball; here nobody presses it."""
    _, episodes = play(AtariConfig("breakout"), steps=150)
    assert [episode.whole for episode in episodes][:6] == [False] * 5 + [True]
    assert play(AtariConfig("breakout", fire_reset=False), steps=150)[1] == []


def test_rewards_are_not_clipped():
    random = np.random.default_rng(0)
    steps, _ = play(AtariConfig("space_invaders"), steps=150, choose=lambda actions: random.integers(actions, size=1))
    assert max(step.reward[0] for step in steps) >= 5


def test_no_life_left_before_the_game_is_over_is_one_end_and_not_two():
    atari = Atari(AtariConfig("pong"), 1, threads=1)
    atari.reset(seed=1)
    first_frame = int(atari._first_frame[0])

    def answers():
        for lives, terminated, started in ((1, True, 0), (0, True, 0), (0, False, 0), (3, True, 99)):
            frames = np.array([first_frame + started + 5]), np.array([5])
            info = {"lives": np.array([lives]), "frame_number": frames[0], "episode_frame_number": frames[1]}
            info["env_id"] = np.array([0])
            yield np.zeros((1, 4, 84, 84), np.uint8), np.array([1]), np.array([terminated]), np.array([False]), info

    answer = answers()
    atari._emulators = SimpleNamespace(send=lambda actions: None, recv=lambda: next(answer))
    done = []
    for _ in range(4):
        atari.send(np.array([0]))
        done.append(bool(atari.recv().done[0]))
    assert done == [True, False, False, True]
    assert atari.finished() == [Episode(1.0, 1, False), Episode(3.0, 3, False), Episode(4.0, 4, True)]


@pytest.mark.parametrize("game", PAPER_GAMES)
def test_action_sets_of_the_paper(game):
    """Two games were played with fewer actions than they have."""
    everything = {**PAPER_GAMES, "amidar": 10, "jamesbond": 18}
    environment = Atari(AtariConfig(game, protocol="standard"), 1, threads=1)
    assert environment.actions == everything[game]
    environment.close()
    assert resolve(AtariConfig(game), GAMES).actions == PAPER_GAMES[game]


@pytest.mark.parametrize(
    ("name", "game"),
    [
        ("Kung-Fu Master", "kung_fu_master"),
        ("Up'N Down", "up_n_down"),
        ("James Bond", "jamesbond"),
        ("MsPacman", "ms_pacman"),
        ("Q*bert", "qbert"),
    ],
)
def test_names_are_found_however_they_are_spelled(name, game):
    assert resolve(AtariConfig(name), GAMES).game == game


def test_protocols_differ_in_stickiness_and_in_what_an_episode_is():
    paper, standard = (resolve(AtariConfig("pong", protocol), GAMES) for protocol in ("paper_code", "standard"))
    assert (paper.frame_skip, paper.sticky, paper.life_loss_ends, paper.max_frames) == (4, 0, True, 400_000)
    assert (standard.frame_skip, standard.sticky, standard.life_loss_ends, standard.max_frames) == (4, 0.25, False, 108_000)
    assert resolve(AtariConfig("space_invaders"), GAMES).max_frames == 300_000


def test_a_choice_that_was_made_stands_above_the_protocol():
    chosen = AtariConfig("pong", sticky=0.1, noop_max=0, life_loss_ends=False, actions=0)
    full = resolve(chosen, GAMES)
    assert (full.sticky, full.noop_max, full.life_loss_ends, full.actions) == (0.1, 0, False, 0)
    assert full.max_frames == PAPER_CODE.max_frames


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (AtariConfig(sticky=1.5), "sticky=1.5 is not a probability"),
        (AtariConfig(frame_skip=0), "frame_skip=0; use at least 1"),
        (AtariConfig(noop_max=-1), "noop_max=-1; use at least 0"),
        (AtariConfig(actions=7), "actions=7: pong has 6; use 0 for all of them"),
    ],
)
def test_bad_choices_are_refused(config, message):
    with pytest.raises(InvalidInput, match=message):
        make(config, 1, threads=1)


def test_unknown_names_come_with_a_proposal():
    with pytest.raises(UnknownName, match="unknown Atari game 'breakot'; did you mean 'breakout'"):
        make(AtariConfig("breakot"), 1)
    with pytest.raises(UnknownName, match="unknown protocol 'standart'; did you mean 'standard'"):
        make(AtariConfig(protocol="standart"), 1)


@pytest.mark.parametrize("package", ["ale_py", "gymnasium"])
def test_a_missing_package_is_named_with_its_extra(package):
    """In a fresh interpreter, because the emulator's library cannot be loaded twice."""
    code = f"""
import sys
sys.modules["{package}"] = None
from rfwp.config import AtariConfig
from rfwp.errors import MissingExtra
from rfwp.tasks.environments import make
try:
    make(AtariConfig(), 1)
except MissingExtra as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == 'Atari needs: pip install "rfwp[atari]"', done.stderr
