"""What there is to learn: tasks of sequences, texts, and environments for agents."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class CodeExecutionConfig:
    """Programs of assignments, increments, conditions and prints; the target is what each print shows."""

    variables: int = 3
    """How many of the variables x, y, z, a, b a program uses."""
    statements: int = 100
    semantics: Literal["authors", "true"] = "authors"
    """authors: a true condition does not execute an assignment to a variable that already has a value; true: it does."""
    train: int = 9_999
    """Sequences in the training set."""
    valid: int = 999
    test: int = 999
    data_seed: int = 42


@dataclass(frozen=True)
class ListOpsConfig:
    """Nested lists of MIN, MAX and FIRST; the target is the value of the whole list, at its last token."""

    depth: int = 10
    """Nested operators."""
    train: int = 10_000
    """Sequences in the training set."""
    valid: int = 1_000
    test: int = 1_000
    data_seed: int = 42


@dataclass(frozen=True)
class FilesConfig:
    """A user's own sequences: FOLDER/train.src and train.tgt, valid.*, test.*; one sequence a line, tokens between spaces."""

    folder: str
    silent: str = "_"
    """The target token that means nothing to say; accuracy is reported with and without it."""


@dataclass(frozen=True)
class TextConfig:
    """Words of running text, in streams of segments."""

    source: str = "wikitext-103"
    """wikitext-103 or wikitext-2 (downloaded on first use), or a folder with wiki.train, wiki.valid, wiki.test[.tokens][.xz]."""
    vocabulary: str = ""
    """A file with one word a line, by frequency; further columns are ignored. Empty: the words of the training text."""
    segment: int = 256
    """Steps a segment."""
    held_out: str = ""
    """The same for validation and test, where they are not with the training text; empty: they are."""


TaskConfig = CodeExecutionConfig | ListOpsConfig | FilesConfig


@dataclass(frozen=True)
class MemoryGameConfig:
    """A small game without an emulator."""

    game: Literal["recall", "t-maze", "catch"] = "recall"
    """recall and t-maze need memory, catch does not."""
    length: int = 10
    """Steps between seeing what matters and acting on it (recall, t-maze)."""
    symbols: int = 4
    """How many different things there are to recall."""


@dataclass(frozen=True)
class AtariConfig:
    """An Atari game and how it is played. None: as the protocol says."""

    game: str = "pong"
    protocol: Literal["paper_code", "standard"] = "paper_code"
    """paper_code: no sticky actions, a lost life ends an episode; standard: sticky actions, whole games."""
    actions: int | None = None
    """Only this many of the game's actions, the first ones; 0: all that it has a use for."""
    frame_skip: int | None = None
    """Frames that an action is held for; the agent sees the maximum of the last two."""
    sticky: float | None = None
    """Probability that a frame repeats the last action, whatever the agent chose."""
    noop_max: int | None = None
    """A game starts with a random number of frames without action, at most this many."""
    fire_reset: bool | None = None
    """Press FIRE at the start of a game and, where a lost life ends an episode, in the first step of each further life."""
    life_loss_ends: bool | None = None
    """A lost life ends the agent's episode; the game goes on."""
    max_frames: int | None = None
    """A game is cut off after this many frames."""
    stack: int | None = None
    """Frames in an observation."""
    pixels: int | None = None
    """Height and width of a frame."""


@dataclass(frozen=True)
class GymConfig:
    """Any gymnasium environment with box or image observations and discrete actions."""

    id: str = "CartPole-v1"


EnvironmentConfig = AtariConfig | MemoryGameConfig | GymConfig
