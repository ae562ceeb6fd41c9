"""Small games in plain NumPy: two that need memory (recall, t-maze) and one that does not (catch)."""

from abc import ABC, abstractmethod

import numpy as np

from rfwp.config import MemoryGameConfig
from rfwp.errors import InvalidInput, unknown
from rfwp.tasks.environments import Episode, Scores, Step, check_actions, spread_seed


class Dice:
    """Dice for N rows; what a row rolls depends on its own seed and on how often it has rolled (SplitMix64)."""

    def __init__(self, seeds: np.ndarray) -> None:
        self._state = seeds.astype(np.uint64)

    def roll(self, sides: int, where: np.ndarray) -> np.ndarray:
        """A number from 0 to sides - 1 for each row (N,); only the rows `where` have rolled."""
        self._state = np.where(where, self._state + np.uint64(0x9E3779B97F4A7C15), self._state)
        mixed = (self._state ^ (self._state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((mixed ^ (mixed >> np.uint64(31))) % np.uint64(sides)).astype(np.int64)


class MemoryGame(ABC):
    """N copies of a game, all in the same arrays. A game knows how to start, to move and to show itself."""

    name: str
    dtype = np.dtype(np.float32)
    first = 0
    """The number of the first copy in a larger set."""

    def __init__(self, n: int, observed: int, actions: int) -> None:
        self.n = n
        self.shape: tuple[int, ...] = (observed,)
        self.actions = actions
        self._finished: list[Episode] = []
        self._sent: np.ndarray | None = None

    def reset(self, seed: int) -> Step:
        self._dice = Dice(spread_seed(seed, self.n, self.first))
        self._scores = Scores(self.n)
        self._finished = []
        self._sent = None
        everywhere = np.ones(self.n, bool)
        self._age = np.zeros(self.n, np.int64)
        self._start(everywhere)
        return Step(self._show(), np.zeros(self.n, np.float32), everywhere)

    def send(self, actions: np.ndarray) -> None:
        check_actions(self.name, actions, self.n, self.actions)
        self._sent = actions

    def recv(self) -> Step:
        assert self._sent is not None, "recv without send"
        reward, done = self._move(self._sent)
        self._sent = None
        self._finished += self._scores.add(reward, done)
        self._age = np.where(done, 0, self._age + 1)
        if done.any():
            self._start(done)
        return Step(self._show(), reward, done)

    def finished(self) -> list[Episode]:
        episodes, self._finished = self._finished, []
        return episodes

    def close(self) -> None:  # noqa: B027
        """There is nothing to give back."""

    @abstractmethod
    def _start(self, where: np.ndarray) -> None:
        """New episodes where the mask says so."""

    @abstractmethod
    def _move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Reward (N,) float32 and end (N,) of each action; `_age` is the number of steps before it."""

    @abstractmethod
    def _show(self) -> np.ndarray:
        """A new array (N, observed), float32."""


class Recall(MemoryGame):
    """A symbol at the first step, then `length` blank ones, then a cue: 1 for acting the symbol, else 0. Chance: 1/symbols."""

    name = "recall"

    def __init__(self, n: int, length: int, symbols: int) -> None:
        super().__init__(n, observed=symbols + 1, actions=symbols)
        self._symbol = np.zeros(n, np.int64)
        self._last = length + 1

    def _start(self, where: np.ndarray) -> None:
        self._symbol = np.where(where, self._dice.roll(self.actions, where), self._symbol)

    def _move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        done = self._age == self._last
        return (done & (actions == self._symbol)).astype(np.float32), done

    def _show(self) -> np.ndarray:
        observation = np.zeros((self.n, *self.shape), np.float32)
        first = np.flatnonzero(self._age == 0)
        observation[first, self._symbol[first]] = 1
        observation[:, -1] = self._age == self._last
        return observation


class TMaze(MemoryGame):
    """A hint at the start of a corridor of `length` steps says which turn at its end is right: 1 for that one, 0 for the other.

    Running into a wall costs 0.1; after four times as many steps as needed the game is over. Chance: 1/2.
    """

    name = "t-maze"
    UP, FORWARD, DOWN, BACK = range(4)
    HINT_UP, HINT_DOWN, CORRIDOR, JUNCTION = range(4)

    def __init__(self, n: int, length: int) -> None:
        super().__init__(n, observed=4, actions=4)
        self._length = length
        self._place = np.zeros(n, np.int64)
        self._right_turn = np.zeros(n, np.int64)

    def _start(self, where: np.ndarray) -> None:
        self._place = np.where(where, 0, self._place)
        turns = np.where(self._dice.roll(2, where) == 0, self.UP, self.DOWN)
        self._right_turn = np.where(where, turns, self._right_turn)

    def _move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        turned = (self._place == self._length) & ((actions == self.UP) | (actions == self.DOWN))
        wanted = self._place + (actions == self.FORWARD) - (actions == self.BACK)
        place = np.clip(wanted, 0, self._length)
        bumped = ~turned & (place == self._place)
        reward = (turned & (actions == self._right_turn)) - np.float32(0.1) * bumped
        self._place = place
        return reward.astype(np.float32), turned | (self._age + 1 >= 4 * (self._length + 1))

    def _show(self) -> np.ndarray:
        observation = np.zeros((self.n, *self.shape), np.float32)
        hint = np.where(self._right_turn == self.UP, self.HINT_UP, self.HINT_DOWN)
        seen = np.where(self._place == 0, hint, np.where(self._place == self._length, self.JUNCTION, self.CORRIDOR))
        observation[np.arange(self.n), seen] = 1
        return observation


class Catch(MemoryGame):
    """A ball falls down a board of 10 rows and 5 columns, a paddle moves below: 1 for catching it, else -1. Needs no memory."""

    name = "catch"
    ROWS, COLUMNS = 10, 5
    LEFT, STAY, RIGHT = range(3)

    def __init__(self, n: int) -> None:
        super().__init__(n, observed=self.ROWS * self.COLUMNS, actions=3)
        self._ball = np.zeros(n, np.int64)
        self._paddle = np.zeros(n, np.int64)

    def _start(self, where: np.ndarray) -> None:
        self._ball = np.where(where, self._dice.roll(self.COLUMNS, where), self._ball)
        self._paddle = np.where(where, self.COLUMNS // 2, self._paddle)

    def _move(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self._paddle = np.clip(self._paddle + actions - self.STAY, 0, self.COLUMNS - 1)
        done = self._age + 1 == self.ROWS - 1
        return (done * np.where(self._paddle == self._ball, 1, -1)).astype(np.float32), done

    def _show(self) -> np.ndarray:
        board = np.zeros((self.n, self.ROWS, self.COLUMNS), np.float32)
        rows = np.arange(self.n)
        board[rows, self._age, self._ball] = 1
        board[rows, -1, self._paddle] = 1
        return board.reshape(self.n, -1)


def make_memory_game(config: MemoryGameConfig, n: int, first: int = 0) -> MemoryGame:
    game = _make(config, n)
    game.first = first
    return game


def _make(config: MemoryGameConfig, n: int) -> MemoryGame:
    if config.length < 1:
        raise InvalidInput(f"length={config.length}; use at least 1")
    if config.symbols < 2:
        raise InvalidInput(f"symbols={config.symbols}; use at least 2")
    if config.game == "recall":
        return Recall(n, config.length, config.symbols)
    if config.game == "t-maze":
        return TMaze(n, config.length)
    if config.game == "catch":
        return Catch(n)
    raise unknown("memory game", config.game, (Recall.name, TMaze.name, Catch.name))
