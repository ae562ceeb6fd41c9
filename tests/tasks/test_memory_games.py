"""An agent that remembers wins recall and t-maze, one that does not is at chance; catch needs no memory."""

import numpy as np
import pytest

from rfwp.config import MemoryGameConfig
from rfwp.errors import InvalidInput, UnknownName
from rfwp.tasks.environments import make
from rfwp.tasks.memory_games import Catch, TMaze


def mean_score(config, policy, n=500, steps=60):
    game = make(config, n)
    step = game.reset(seed=3)
    memory = np.zeros(n, int)
    for _ in range(steps):
        actions, memory = policy(step.observation, memory)
        game.send(actions)
        step = game.recv()
    return np.mean([episode.score for episode in game.finished()])


def recall_oracle(observation, memory):
    symbols = observation[:, :-1]
    memory = np.where(symbols.any(1), symbols.argmax(1), memory)
    return memory, memory


def maze_oracle(observation, memory):
    hint = np.where(observation[:, TMaze.HINT_UP] == 1, TMaze.UP, TMaze.DOWN)
    memory = np.where(observation[:, : TMaze.CORRIDOR].any(1), hint, memory)
    return np.where(observation[:, TMaze.JUNCTION] == 1, memory, TMaze.FORWARD), memory


@pytest.mark.parametrize("length", [1, 2, 10])
def test_an_oracle_with_memory_scores_1(length):
    assert mean_score(MemoryGameConfig("recall", length, symbols=5), recall_oracle) == 1
    assert mean_score(MemoryGameConfig("t-maze", length), maze_oracle) == 1


def test_what_is_seen_when_it_counts_tells_nothing():
    """So every policy without memory acts the same for all symbols and both hints: at best at chance."""
    n = 200
    for config, decisive in ((MemoryGameConfig("recall", length=4), -1), (MemoryGameConfig("t-maze", length=4), TMaze.JUNCTION)):
        game = make(config, n)
        first = game.reset(seed=1).observation
        assert len(np.unique(first, axis=0)) == (config.symbols if config.game == "recall" else 2)
        for _ in range(5 if config.game == "recall" else 4):
            game.send(np.full(n, TMaze.FORWARD))
            observation = game.recv().observation
            assert len(np.unique(observation, axis=0)) == 1
        assert (observation[:, decisive] == 1).all()


@pytest.mark.parametrize("symbol", range(4))
def test_best_policy_without_memory_is_at_chance_in_recall(symbol):
    policy = lambda observation, memory: (np.full(len(memory), symbol), memory)  # noqa: E731
    assert mean_score(MemoryGameConfig("recall", length=4, symbols=4), policy) == pytest.approx(1 / 4, abs=0.03)


@pytest.mark.parametrize("turn", [TMaze.UP, TMaze.DOWN])
def test_best_policy_without_memory_is_at_chance_in_the_maze(turn):
    policy = lambda observation, memory: (np.where(observation[:, TMaze.JUNCTION] == 1, turn, TMaze.FORWARD), memory)  # noqa: E731
    assert mean_score(MemoryGameConfig("t-maze", length=4), policy) == pytest.approx(1 / 2, abs=0.03)


def test_standing_in_the_maze_costs_and_ends():
    game = make(MemoryGameConfig("t-maze", length=4), 1)
    game.reset(seed=1)
    for _ in range(20):
        game.send(np.array([TMaze.BACK]))
        step = game.recv()
        assert step.reward == np.float32(-0.1)
    assert step.done.all()
    (episode,) = game.finished()
    assert episode.steps == 20
    assert episode.score == pytest.approx(-2)


def test_catch_is_won_by_looking_at_the_board():
    def follow(observation, memory):
        board = observation.reshape(-1, Catch.ROWS, Catch.COLUMNS)
        ball, paddle = board[:, :-1].any(1).argmax(1), board[:, -1].argmax(1)
        return np.sign(ball - paddle) + Catch.STAY, memory

    stay = lambda observation, memory: (np.full(len(memory), Catch.STAY), memory)  # noqa: E731
    assert mean_score(MemoryGameConfig("catch"), follow) == 1
    # one column in five
    assert mean_score(MemoryGameConfig("catch"), stay) == pytest.approx(-3 / 5, abs=0.06)


def test_a_game_of_catch_lasts_until_the_ball_is_down():
    game = make(MemoryGameConfig("catch"), 2)
    step = game.reset(seed=1)
    for row in range(Catch.ROWS - 1):
        board = step.observation.reshape(2, Catch.ROWS, Catch.COLUMNS)
        assert (board[:, row].sum(1) == 1).all()
        assert (board.sum((1, 2)) == 2).all()
        game.send(np.full(2, Catch.STAY))
        step = game.recv()
    assert step.done.all()
    assert [episode.steps for episode in game.finished()] == [Catch.ROWS - 1] * 2


def test_bad_games_are_named():
    with pytest.raises(UnknownName, match="unknown memory game 'recal'; did you mean 'recall'"):
        make(MemoryGameConfig("recal"), 1)
    with pytest.raises(InvalidInput, match="length=0"):
        make(MemoryGameConfig(length=0), 1)
    with pytest.raises(InvalidInput, match="symbols=1"):
        make(MemoryGameConfig(symbols=1), 1)
