"""What `rfwp train` can be told about an agent's run, beside what all runs have. The text under a field is its help."""

from dataclasses import dataclass
from typing import Literal

from rfwp.config import Recipe


@dataclass(frozen=True)
class RLOptions:
    """Agents: rfwp train atari/rdn --game pong, rfwp train rl --env CartPole-v1."""

    game: str = ""
    """An Atari game for the agent to learn, for example pong or "Ms. Pacman"."""
    env: str = ""
    """Another environment: recall, t-maze, catch, or any of gymnasium with box observations and discrete actions."""
    core: str = ""
    """With `rl` in place of a preset: the core of the agent, a row of the table atari. If left away rdn."""
    recipe: Recipe = "paper"
    """How it is trained. paper: as there, for 200 million steps; short: for a few million, with other initial weights, larger
    learning rates and small updates."""
    seconds: float | None = None
    """Stop after so many seconds, saved; the same command goes on. The learning rate follows the steps, not the time."""
    threads: int = 0
    """Cores for Atari games; 0: all cores but one in four."""
    channels_last: Literal["auto", "yes", "no"] = "auto"
    """The order of images in the vision stem; auto: channels last on a GPU."""
    compile_stem: bool = False
    """torch.compile for the vision stem: a slower start, then perhaps faster."""
    side_by_side: Literal["auto", "yes", "no"] = "auto"
    """A thread for each group of games (impala.groups); auto: on a GPU. Not for environments of gymnasium."""
