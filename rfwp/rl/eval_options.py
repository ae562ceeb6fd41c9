"""What `rfwp eval` can be told about an agent, and `rfwp watch`. The text under a field is its help."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Protocol = Literal["as trained", "paper_code", "standard"]
DropNegative = Literal["authors", "yes", "no"]


@dataclass(frozen=True)
class AgentEvalOptions:
    """How an agent is tested: rfwp eval RUN --episodes 30 --runs 5. The defaults are the paper's."""

    episodes: int = 30
    """Episodes a run of the test."""
    runs: int = 5
    """Runs of the test: the score is the mean of their means, ± the population standard deviation of these."""
    protocol: Protocol = "as trained"
    """Of an Atari game. paper_code scores lives, standard whole games with sticky actions; if left away as it was trained."""
    sample: bool = False
    """Sample actions from the policy; if left away it takes the most probable ones, as in the paper."""
    drop_negative: DropNegative = "authors"
    """Leave out episodes whose score falls below zero; authors: in Battlezone and Up'n Down under paper_code, as they did."""
    seed: int = 0
    """Of the games and the sampled actions."""
    environments: int = 10
    """Games played side by side in each run. They count in the order in which they start; 1: one after another."""


@dataclass(frozen=True)
class WatchOptions:
    """What to show of a game."""

    out: Path | None = None
    """A .gif; a .mp4, if ffmpeg is installed; or with --frame a .png. If left away RUN/episode.gif, or RUN/frame.png."""
    seconds: float = 60.0
    """Of the video, at the game's own speed; a shorter game ends it sooner."""
    frame: int | None = None
    """Only the picture of this step, counted from 0, as PNG."""
    protocol: Protocol = "as trained"
    """Of an Atari game; if left away as it was trained."""
    sample: bool = False
    """Sample actions from the policy; if left away it takes the most probable ones."""
    seed: int = 0
    """Of the game and the sampled actions."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU if there is one."""
