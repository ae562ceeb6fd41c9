"""Any gymnasium environment with box or image observations and discrete actions."""

import logging
import math
import os
import sys
from typing import Any

import numpy as np

from rfwp.config import GymConfig
from rfwp.errors import InvalidInput, missing_extra, unknown
from rfwp.tasks.environments import MEMORY_GAMES, Episode, Scores, Step, check_actions, errors_name, spread_seed

log = logging.getLogger("rfwp")

DRAWN = "rgb_array"
"""gymnasium's name for pictures that a program gets."""
_MOST_CHANNELS = 4


class Gym:
    """N copies of a gymnasium environment, one after another in this thread. A time limit ends an episode like any other end.

    `drawn`: for people to look at; `screen` draws the first of them, if it can be drawn.
    """

    def __init__(self, config: GymConfig, n: int, first: int = 0, drawn: bool = False) -> None:
        self.config = config
        self.n, self.first = n, first
        self._environments = _make(config.id, n)
        self._drawn = drawn and DRAWN in (self._environments.metadata.get("render_modes") or ())
        if self._drawn:
            self._environments.close()
            self._environments = _make(config.id, n, render_mode=DRAWN)
        self._space = self._environments.single_observation_space
        try:
            self.actions, self._first_action = _discrete(config.id, self._environments.single_action_space)
            self.shape, self.dtype = _observed(config.id, self._space)
        except InvalidInput:
            self.close()
            raise
        self._finished: list[Episode] = []
        self._sent: np.ndarray | None = None

    def reset(self, seed: int) -> Step:
        with errors_name(self.config.id):
            observation, _ = self._environments.reset(seed=spread_seed(seed, self.n, self.first).tolist())
        self._scores = Scores(self.n)
        self._finished = []
        self._sent = None
        return Step(self._convert(observation), np.zeros(self.n, np.float32), np.ones(self.n, bool))

    def send(self, actions: np.ndarray) -> None:
        check_actions(self.config.id, actions, self.n, self.actions)
        self._sent = actions + self._first_action

    def recv(self) -> Step:
        assert self._sent is not None, "recv without send"
        with errors_name(self.config.id):
            observation, reward, terminated, truncated, _ = self._environments.step(self._sent)
        self._sent = None
        reward, done = reward.astype(np.float32), terminated | truncated
        self._finished += self._scores.add(reward, done)
        return Step(self._convert(observation), reward, done)

    def finished(self) -> list[Episode]:
        episodes, self._finished = self._finished, []
        return episodes

    def screen(self) -> np.ndarray | None:
        """A picture (height, width, 3) of bytes as it is now; None: it has none, or lacks a package, which is said."""
        if not self._drawn:
            return None
        from gymnasium.error import DependencyNotInstalled

        try:
            with errors_name(self.config.id):
                picture = self._environments.render()[0]
        except DependencyNotInstalled as error:
            log.warning("%s is shown without its screen: %s", self.config.id, error)
            picture = None
        self._drawn = isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.shape[2:] == (3,)
        return picture if self._drawn else None

    @property
    def steps_per_s(self) -> float | None:
        """For people; None: it does not say."""
        return self._environments.metadata.get("render_fps")

    def close(self) -> None:
        self._environments.close()

    def _convert(self, observation: np.ndarray) -> np.ndarray:
        if _channels(self._space) == -1:
            observation = np.moveaxis(observation, -1, 1)
        return np.ascontiguousarray(observation.reshape(self.n, *self.shape), dtype=self.dtype)


def atari_vector(game: str, n: int, threads: int = 0) -> Any:
    """gymnasium's own vector environment of an Atari game, to compare with: (4, 84, 84) grey frames, actions held for 4."""
    try:
        import gymnasium

        name = "".join(word.capitalize() for word in game.split("_"))
        options: dict[str, Any] = {"repeat_action_probability": 0.0, "num_threads": threads}
        return gymnasium.make_vec(f"ale_py:ALE/{name}-v5", num_envs=n, vectorization_mode="vector_entry_point", **options)
    except ImportError:
        raise missing_extra("Atari", "atari") from None


def _make(name: str, n: int, **more: Any) -> Any:
    try:
        import gymnasium
        from gymnasium.vector import AutoresetMode
    except ImportError:
        raise missing_extra("gymnasium", "atari") from None
    if name.startswith("ALE/"):
        raise InvalidInput(f"'{name}' is an Atari game; use AtariConfig, which has faster emulators and the usual preprocessing")
    # an environment's own vector version may not know this way of starting anew
    options: dict[str, Any] = {"vectorization_mode": "sync", "vector_kwargs": {"autoreset_mode": AutoresetMode.SAME_STEP}}
    if ":" in name and "" not in sys.path and os.getcwd() not in sys.path:
        # module:Name-v0 is somebody's own, most likely in this folder, which `python -m` would look into and `rfwp` does not
        sys.path.insert(0, os.getcwd())
    try:
        return gymnasium.make_vec(name, num_envs=n, **options, **more)
    except gymnasium.error.UnregisteredEnv:
        raise unknown("environment", name, [*gymnasium.registry, *MEMORY_GAMES]) from None
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise InvalidInput(f"environment '{name}' cannot be made: {error}") from error


def _discrete(name: str, space: Any) -> tuple[int, int]:
    """Number of actions, and the number of the first one."""
    from gymnasium.spaces import Discrete

    if not isinstance(space, Discrete):
        raise InvalidInput(f"environment '{name}' has actions {space}; only discrete actions can be learned")
    return int(space.n), int(space.start)


def _observed(name: str, space: Any) -> tuple[tuple[int, ...], np.dtype]:
    """An image with its channels first, as bytes; everything else as a flat float32 vector."""
    from gymnasium.spaces import Box

    if not isinstance(space, Box):
        raise InvalidInput(f"environment '{name}' has observations {space}; only a box (numbers or an image) can be seen")
    if 0 in space.shape:
        raise InvalidInput(f"environment '{name}' has observations {space}, which are empty; an agent has to see something")
    if space.dtype == np.uint8 and len(space.shape) == 2:
        return (1, *space.shape), np.dtype(np.uint8)
    if (channels := _channels(space)) is not None:
        first = space.shape if channels == 0 else (space.shape[-1], *space.shape[:-1])
        return first, np.dtype(np.uint8)
    return (math.prod(space.shape),), np.dtype(np.float32)


def _channels(space: Any) -> int | None:
    """The dimension of an image's channels or stacked frames: the last one or the first, where that is small; None: no image."""
    if space.dtype != np.uint8 or len(space.shape) != 3:
        return None
    return next((dimension for dimension in (-1, 0) if space.shape[dimension] <= _MOST_CHANNELS), None)
