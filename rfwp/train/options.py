"""What `rfwp train` and `rfwp eval` can be told. The text under a field is its help."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rfwp.train.speed import Speed


@dataclass(frozen=True)
class TrainOptions:
    """How and where to train."""

    out: Path | None = None
    """The run's folder; with several seeds each has its own in it. If left away runs/PRESET/seed-N."""
    seeds: tuple[int, ...] = ()
    """Train once with each of these seeds, one after another."""
    epochs: int | None = None
    """Short for --set train.epochs=N."""
    set: tuple[str, ...] = ()
    """Changes to the preset: --set train.lr=1e-3 model.core.layers=2 task.variables=5."""
    resume: Path | None = None
    """Go on with the run in this folder. The command that began it goes on with it too."""
    data: Path | None = None
    """Your own sequences: a folder with train.src, train.tgt, valid.*, test.*. Needs --model."""
    model: str = ""
    """The preset whose model learns them; its vocabularies are those of the files."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU if there is one."""
    save_minutes: float = 5.0
    """Minutes between checkpoints inside an epoch. At the end of an epoch there is one if the last is older than 20 seconds."""
    compile: Literal["auto", "no", "blocks", "lengths"] = "auto"
    """What torch.compile gets; auto: the blocks on a GPU, nothing on the CPU."""
    cuda_graph: Literal["auto", "yes", "no"] = "auto"
    """Replay whole steps; auto: yes on a GPU."""

    @property
    def speed(self) -> Speed:
        return Speed(self.compile, "auto" if self.cuda_graph == "auto" else self.cuda_graph == "yes")


@dataclass(frozen=True)
class EvalOptions:
    """What to evaluate."""

    split: Literal["train", "valid", "test"] = "test"
    """Which data."""
    input: str | None = None
    """A sequence of your own, for example "x = 3 ; x ++ ; print x ;": what the model says at every token."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU if there is one."""
