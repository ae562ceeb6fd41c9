"""What an agent is worth: the paper's test of five times thirty episodes, and an agent that plays step by step."""

import statistics
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from rfwp.config import AtariConfig, EnvironmentConfig
from rfwp.errors import InvalidInput
from rfwp.models import Agent, AgentOutput
from rfwp.models.modes import evaluating
from rfwp.rl.choosing import Choosing
from rfwp.rl.eval_options import Protocol
from rfwp.rl.faults import EnvironmentFailed, not_finite
from rfwp.tasks.environments import Step, VectorEnvironment, make
from rfwp.train.random import derived

PARALLEL = 10
"""Environments a run, where nothing else is said."""
DROPPED_MOST = 20
"""An agent that loses this many times as many episodes as are wanted will not find them."""


@dataclass(frozen=True)
class Evaluation:
    """Returns of `runs` times `episodes` episodes."""

    environment: EnvironmentConfig
    greedy: bool
    returns: tuple[tuple[float, ...], ...]
    """Of each run's episodes, in the order in which they would have been played one after another."""
    dropped: int = 0
    """Episodes that did not count because their score fell below zero."""

    @property
    def means(self) -> list[float]:
        """One a run."""
        return [statistics.fmean(run) for run in self.returns]

    @property
    def mean(self) -> float:
        """Of the runs' means: the number that the paper prints."""
        return statistics.fmean(self.means)

    @property
    def std(self) -> float:
        """Population standard deviation of the runs' means, as the paper prints it behind ±."""
        return statistics.pstdev(self.means)


def evaluate(
    agent: Agent,
    environment: EnvironmentConfig,
    episodes: int = 30,
    runs: int = 5,
    greedy: bool = True,
    *,
    protocol: Protocol = "as trained",
    drop_negative: bool = False,
    environments: int = PARALLEL,
    seed: int = 0,
    threads: int = 0,
    record: bool = True,
) -> Evaluation:
    """Play `runs` times `episodes` episodes; where the protocol lets a lost life end an episode, an episode is a life.

    A run's games are numbered before they are played: game g of its environment e is number g · environments + e. Their
    episodes are lined up in that order, and the first ones count, however long each of them takes: the first ones to
    *finish* would be the short ones, and first lives only would not be what lives are like. An agent sees the last
    reward of the game before, so an environment's very first game is another kind of game, which some agents lose: all
    environments of a run but one play theirs without counting it. So the line is close to what one environment
    would play, one game after another, which `environments=1` does.

    `drop_negative` leaves out an episode whose score falls below zero at any moment and takes the next one, as
    the authors did for Battlezone and Up'n Down. `record`: on a GPU actions are chosen by a CUDA graph, see `Player`.
    """
    _check(episodes, runs, environments)
    config = with_protocol(environment, protocol, agent.config.actions)
    width = min(environments, episodes)
    lines = [Line(width, episodes, drop_negative) for _ in range(runs)]
    with evaluating(agent):
        player = Player(agent, make(config, runs * width, threads), derived(seed, "evaluate") % 2**31, greedy, record=record)
        try:
            while not all(line.full for line in lines):
                step, over = player.step()
                for run, line in enumerate(lines):
                    rows = slice(run * width, (run + 1) * width)
                    line.add(step.reward[rows], step.done[rows], over[rows])
        finally:
            player.environment.close()
    return Evaluation(config, greedy, tuple(line.returns for line in lines), sum(line.dropped for line in lines))


def with_protocol(config: EnvironmentConfig, protocol: Protocol, actions: int) -> EnvironmentConfig:
    """The same game under another protocol: what the agent sees and can do stays, how games begin and end changes."""
    if protocol == "as trained":
        return config
    if not isinstance(config, AtariConfig):
        raise InvalidInput(f"protocol '{protocol}' is for Atari games; leave it away for {type(config).__name__}")
    if config.protocol == protocol:
        return config
    kept = AtariConfig(config.game, protocol, frame_skip=config.frame_skip, stack=config.stack, pixels=config.pixels)
    return replace(kept, actions=actions)


class Seen(NamedTuple):
    """What an agent had before it when it acted, what it thought of it, and what it did; all with a row an environment."""

    step: Step
    output: AgentOutput
    action: np.ndarray


class Player:
    """An agent in environments, one step at a time; greedy, or with actions sampled.

    With `record`, on a GPU, choosing actions is one CUDA graph where the core allows it: what the agent does in Python besides,
    such as keeping a trace, is then not done at every step.
    """

    def __init__(self, agent: Agent, environment: VectorEnvironment, seed: int = 0, greedy: bool = True, *, record: bool = True):
        if environment.actions != agent.config.actions:
            environment.close()
            raise InvalidInput(
                f"the environment has {environment.actions} actions but the agent was trained with {agent.config.actions}; "
                "evaluate it in the environment that it was trained in"
            )
        self.agent, self.environment, self.greedy, self.seed, self.record = agent.eval(), environment, greedy, seed, record
        self.now = _checked(environment.reset(seed))
        self.seen: Seen | None = None
        self._choose: Choosing | None = None

    def step(self) -> tuple[Step, np.ndarray]:
        """Act once everywhere; what it brought, and in which environments it ended a whole game."""
        if self._choose is None:
            # not before: whoever plays closes the environments if this fails
            self._choose = Choosing(
                self.agent, self.environment, self.now, seed=self.seed, greedy=self.greedy, record=self.record
            )
        output, action = self._choose(self.now)
        self.seen = Seen(self.now, output, action)
        self.environment.send(action)
        self.now = _checked(self.environment.recv())
        over = np.zeros(self.environment.n, bool)
        over[[episode.row for episode in self.environment.finished() if episode.whole]] = True
        return self.now, over


@dataclass
class Line:
    """The episodes of one run, lined up by the numbers of their games."""

    width: int
    wanted: int
    drop_negative: bool = False
    returns: tuple[float, ...] = ()
    dropped: int = 0
    full: bool = False
    _games: list[list[list[float | None]]] = field(default_factory=list)
    """By environment, by game: the returns of its episodes, None where one does not count."""

    def __post_init__(self) -> None:
        self._games = [[[]] for _ in range(self.width)]
        self._score = np.zeros(self.width)
        self._lowest = np.zeros(self.width)
        self._warming_up = np.arange(self.width) > 0

    def add(self, reward: np.ndarray, done: np.ndarray, over: np.ndarray) -> None:
        """One step of all environments: rewards, ends of episodes, ends of games."""
        if self.full:
            return
        self._score += reward
        self._lowest = np.minimum(self._lowest, self._score)
        for row in np.flatnonzero(done | over):
            counts = not (self.drop_negative and self._lowest[row] < 0)
            self._games[row][-1].append(float(self._score[row]) if counts else None)
            self._score[row] = self._lowest[row] = 0
            if over[row] and self._warming_up[row]:
                self._games[row], self._warming_up[row] = [[]], False
            elif over[row]:
                self._games[row].append([])
        if done.any() or over.any():
            self._line_up()

    def _line_up(self) -> None:
        """Walk through the games by their numbers up to the first that is not over: behind it nothing is certain yet."""
        episodes: list[float | None] = []
        for number in range(self.width * max(len(games) for games in self._games)):
            game, row = divmod(number, self.width)
            if self._warming_up[row]:
                break
            episodes += self._games[row][game]
            if game == len(self._games[row]) - 1:
                break
        counted = [score for score in episodes if score is not None]
        self.dropped = len(episodes) - len(counted)
        if self.dropped > DROPPED_MOST * self.wanted:
            raise InvalidInput(f"{self.dropped} episodes fell below zero and {len(counted)} did not; count them all")
        self.returns, self.full = tuple(counted[: self.wanted]), len(counted) >= self.wanted


def _checked(step: Step) -> Step:
    """A score that is no number would look like one, and an agent acts on whatever it sees."""
    if found := not_finite(step):
        raise EnvironmentFailed(f"the environment gave {found}; the agent cannot be tested in it")
    return step


def _check(episodes: int, runs: int, environments: int) -> None:
    for name, value in (("episodes", episodes), ("runs", runs), ("environments", environments)):
        if value < 1:
            raise InvalidInput(f"{name}={value}; use at least 1")
