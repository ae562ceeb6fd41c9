"""What `rfwp reproduce` can be told. The text under a field is its help."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rfwp.config import Recipe


@dataclass(frozen=True)
class ReproduceOptions:
    """Train every model of a table that has no finished run yet; the same command continues what it left unfinished."""

    table: str
    """A table of presets like listops-10; table-2, 5, 6 or 7: the models that the paper prints there; all. Or wiki-28m: Table 1's
    models on a text of --text. Or atari: agents in --games."""
    budget_seconds: float | None = None
    """Leave before this time is over: what runs is saved, and the next command goes on with it. None: take what it takes."""
    seeds: tuple[int, ...] = (1, 2, 3)
    """One run of each model with each of them."""
    models: tuple[str, ...] = ()
    """Only these, for example: delta-net rdn, or delta-net,rdn."""
    games: tuple[str, ...] = ()
    """Of atari: pong seaquest, or pong,seaquest. If left away the paper's 20."""
    recipe: Recipe = "paper"
    """Of atari: how agents are trained. short: for a few million steps, as in rfwp train."""
    jobs: int = 1
    """Training runs at a time, each a process of its own; on one GPU they share it."""
    out: Path = Path("results/runs")
    """Folder of the lines of finished runs."""
    runs_folder: Path = Path("runs")
    """Folder of the checkpoints."""
    steps: int | None = None
    """Agent steps of each agent; or steps of each language model, whose warm-up is then at most a tenth of them. Every number of
    steps has a table of its own."""
    text: str = ""
    """Folder of the training text of wiki-28m, with wiki.train[.tokens][.xz] or train.txt."""
    held_out: str = ""
    """Folder of its validation and test texts, where they are not with the training text."""
    vocabulary: Path | None = None
    """A file with one word a line, by frequency, for wiki-28m."""
    epochs: int | None = None
    """Another number of epochs. Such runs are kept, but do not enter the paper's tables."""
    set: tuple[str, ...] = ()
    """Other changes to the config, for example train.lr=1e-3 model.core.layers=2. They do not enter the tables either."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU if there is one."""
    commit: str = ""
    """Which code this is, where git cannot say it."""
    dry_run: bool = False
    """Only list what is missing, with the time that it may take."""


def several(texts: Sequence[str]) -> list[str]:
    """`pong,seaquest` and `pong seaquest` are the same."""
    return list(dict.fromkeys(word.strip() for text in texts for word in text.split(",") if word.strip()))
