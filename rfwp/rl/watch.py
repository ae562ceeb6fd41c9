"""An agent that plays, for people to watch: the screen, what the agent thinks of it, and what it does."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from rfwp.config import AtariConfig, EnvironmentConfig, GymConfig
from rfwp.models import Agent
from rfwp.rl.evaluate import Player
from rfwp.tasks.environments import Step, VectorEnvironment, make
from rfwp.tasks.gym import Gym

ATARI_FRAMES = 60
"""A second."""
SLOW = 4.0
"""Steps a second of a game that has no speed of its own."""
CELL = 12
"""Pixels of a number in the picture of a vector."""
ROW = 16
"""Numbers that find room in one row."""


@dataclass(frozen=True)
class Moment:
    """One step of a game."""

    screen: np.ndarray
    """(height, width, 3) uint8"""
    probabilities: list[float]
    """Of the actions."""
    action: int
    value: float
    """What the agent expects from here on, of clipped and discounted rewards."""
    score: float
    """Of the game so far."""


class Watched:
    """One game of an agent. Iterating plays it.

    >>> for moment in Watched(agent, AtariConfig("pong")):
    ...     moment.screen, moment.probabilities, moment.value
    """

    def __init__(self, agent: Agent, config: EnvironmentConfig, *, seed: int = 0, greedy: bool = True):
        # not recorded: the agent may be one that keeps a trace of every step, and one game need not be fast
        self.player = Player(agent, _drawn(config), seed, greedy, record=False)
        self._twin: VectorEnvironment | None = None
        environment = self.player.environment
        self.actions = tuple(getattr(environment, "action_names", map(str, range(environment.actions))))
        self.steps_per_s, self.score, self.over = SLOW, 0.0, False
        if isinstance(config, AtariConfig):
            from rfwp.tasks.atari import Atari

            # the agent's emulator has small grey frames; another one with its seed and its actions plays the same game in colour
            self._twin = Atari(config, 1, threads=1, colour=True)
            self._colour = self._twin.reset(seed)
            assert isinstance(environment, Atari) and environment.config.frame_skip
            self.steps_per_s = ATARI_FRAMES / environment.config.frame_skip
        elif isinstance(environment, Gym):
            self.steps_per_s = environment.steps_per_s or SLOW

    def moments(self, seconds: float) -> Iterator[Moment]:
        """At most so many seconds of the game, at its own speed."""
        return islice(self, max(1, round(seconds * self.steps_per_s)))

    def __iter__(self) -> Iterator[Moment]:
        try:
            while not self.over:
                screen = self._screen(self.player.now)
                step, ended = self.player.step()
                seen = self.player.seen
                assert seen is not None
                probabilities = seen.output.logits[0].float().softmax(-1).tolist()
                yield Moment(screen, probabilities, int(seen.action[0]), float(seen.output.value[0]), self.score)
                self._follow(seen.action, step)
                self.score, self.over = self.score + float(step.reward[0]), bool(ended[0])
        finally:
            self.close()

    def close(self) -> None:
        for environment in (self.player.environment, self._twin):
            if environment is not None:
                environment.close()

    def _follow(self, action: np.ndarray, step: Step) -> None:
        if self._twin is not None:
            self._twin.send(action)
            self._colour = self._twin.recv()
            assert self._colour.reward[0] == step.reward[0], "the game in colour is another one"

    def _screen(self, step: Step) -> np.ndarray:
        if self._twin is not None:
            return self._colour.observation[0, 0]
        environment = self.player.environment
        if isinstance(environment, Gym) and (picture := environment.screen()) is not None:
            return picture
        observation = step.observation[0]
        return image(observation) if observation.ndim == 3 else blocks(observation)


def _drawn(config: EnvironmentConfig) -> VectorEnvironment:
    """One environment, with a screen where gymnasium has one for it."""
    return Gym(config, 1, drawn=True) if isinstance(config, GymConfig) else make(config, 1, threads=1)


def image(observation: np.ndarray) -> np.ndarray:
    """The last channels of (channels, height, width) as a picture."""
    channels = observation[-3:] if len(observation) == 3 else np.repeat(observation[-1:], 3, axis=0)
    return np.ascontiguousarray(np.moveaxis(channels, 0, -1))


def blocks(observation: np.ndarray) -> np.ndarray:
    """A vector as a row of squares, the larger a number the brighter, negative ones red; a long one as a board."""
    size = len(observation)
    columns = size if size <= ROW else max(d for d in range(1, math.isqrt(size) + 1) if size % d == 0)
    bright = 30 + 225 * np.minimum(np.abs(observation), 1)
    others = np.where(observation < 0, 30, bright)
    squares = np.stack([bright, others, others], axis=-1).astype(np.uint8).reshape(-1, columns, 3)
    picture = squares.repeat(CELL, axis=0).repeat(CELL, axis=1)
    # lines between the squares
    picture[::CELL] = picture[:, ::CELL] = 0
    return picture
