"""What every environment looks like to an agent: N copies, stepped together, that start anew by themselves."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol, get_args, get_type_hints

import numpy as np

from rfwp.config import AtariConfig, EnvironmentConfig, GymConfig, MemoryGameConfig
from rfwp.errors import InvalidInput


class Step(NamedTuple):
    """What N environments answer."""

    observation: np.ndarray
    """(N, *shape); after an episode's end already the first one of the next episode."""
    reward: np.ndarray
    """(N,) float32, unclipped: the one that came with this observation."""
    done: np.ndarray
    """(N,) bool: an episode ended just before this observation; all True after `reset`."""


class Episode(NamedTuple):
    """A game that is over or, where `whole` is False, a life that is lost."""

    score: float
    steps: int
    whole: bool
    row: int = 0
    """Which of the N environments it was in."""


class VectorEnvironment(Protocol):
    """N environments with discrete actions. `send` and `recv` alternate, so that something else can be done between them."""

    n: int
    shape: tuple[int, ...]
    """Of one observation: channels first for an image, flat for everything else."""
    dtype: np.dtype
    """Of the observations: uint8 (an image) or float32."""
    actions: int

    def reset(self, seed: int) -> Step:
        """New episodes in all environments; the same seed and the same actions give the same episodes."""
        ...

    def send(self, actions: np.ndarray) -> None:
        """One action (N,) for each environment; returns at once where the environments have threads of their own."""
        ...

    def recv(self) -> Step: ...

    def finished(self) -> list[Episode]:
        """The episodes that ended since the last call."""
        ...

    def close(self) -> None: ...


MEMORY_GAMES: tuple[str, ...] = get_args(get_type_hints(MemoryGameConfig)["game"])
"""Those that need no emulator."""


class Scores:
    """Sums rewards and steps of N running episodes."""

    def __init__(self, n: int, whole: bool = True) -> None:
        self._score = np.zeros(n)
        self._steps = np.zeros(n, np.int64)
        self._whole = whole

    def add(self, reward: np.ndarray, ended: np.ndarray, rows: np.ndarray | slice = slice(None)) -> list[Episode]:
        """Count one step of all, or of these rows; returns the episodes that it ended."""
        self._score[rows] += reward
        self._steps[rows] += 1
        if not ended.any():
            return []
        over = np.arange(len(self._score))[rows][ended]
        episodes = [Episode(float(self._score[row]), int(self._steps[row]), self._whole, int(row)) for row in over]
        self._score[over] = 0
        self._steps[over] = 0
        return episodes


def answered(environment: VectorEnvironment) -> np.ndarray:
    """Which of the N environments the last answer was of: those that answer in parts have `rows`, others answer all together."""
    rows: np.ndarray | None = getattr(environment, "rows", None)
    return np.arange(environment.n) if rows is None else rows


def make(config: EnvironmentConfig, n: int, threads: int = 0, first: int = 0, parts: int = 1) -> VectorEnvironment:
    """N environments of a config; `threads` is for those that have threads of their own, 0: one a core.

    `first`: they are numbers first, first + 1, ... of a larger set, which gives the same episodes for a seed however it is split.
    `parts`: they answer N / parts at a time, whoever is first; see `Atari`. The others answer all together.
    """
    if n < 1:
        raise InvalidInput(f"{n} environments; use at least 1")
    if threads < 0:
        raise InvalidInput(f"threads={threads}; use at least 1, or 0 for one a core")
    if first < 0:
        raise InvalidInput(f"first={first}; environments are counted from 0")
    # only the one in use: each needs packages that the others do not
    if isinstance(config, MemoryGameConfig):
        from rfwp.tasks.memory_games import make_memory_game

        return make_memory_game(config, n, first)
    if isinstance(config, AtariConfig):
        from rfwp.tasks.atari import Atari

        return Atari(config, n, threads, first, parts=parts)
    if isinstance(config, GymConfig):
        from rfwp.tasks.gym import Gym

        return Gym(config, n, first)
    raise InvalidInput(f"{type(config).__name__} is no environment; use AtariConfig, MemoryGameConfig or GymConfig")


def check_seed(seed: int) -> None:
    if seed < 0:
        raise InvalidInput(f"seed={seed}; use at least 0")


def spread_seed(seed: int, n: int, first: int = 0) -> np.ndarray:
    """A seed for each environment (N,), with nothing in common with those of the next seed; below 2^31, as emulators want it.

    Environment `first` + i of a larger set has the same seed however the set is split.
    """
    check_seed(seed)
    return (np.random.SeedSequence(seed).generate_state(first + n)[first:] >> 1).astype(np.int64)


def check_actions(name: str, actions: np.ndarray, n: int, count: int) -> None:
    """Emulators wait for ever on an action that they do not have."""
    if actions.shape != (n,) or not np.issubdtype(actions.dtype, np.integer):
        raise InvalidInput(f"{name}: actions are {actions.dtype} {actions.shape}, expected whole numbers ({n},)")
    if actions.min() < 0 or actions.max() >= count:
        raise InvalidInput(f"{name}: actions from {actions.min()} to {actions.max()}; it has 0 to {count - 1}")


@contextmanager
def errors_name(name: str) -> Iterator[None]:
    """An error from inside an environment goes through, and says which one it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the environment {name}")
        raise
