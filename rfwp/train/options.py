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
    steps: int | None = None
    """Agent steps of an agent, short for --set impala.steps=N; or steps of a language model: its warm-up is then at most a tenth
    of them, and it is validated at least five times."""
    set: tuple[str, ...] = ()
    """Changes to the preset: --set train.lr=1e-3 model.core.layers=2 task.variables=5."""
    resume: Path | None = None
    """Go on with the run in this folder. The command that began it goes on with it too."""
    data: Path | None = None
    """Your own sequences: a folder with train.src, train.tgt, valid.*, test.*. Needs --model; with --resume, where those of
    the run lie now."""
    model: str = ""
    """The preset whose model learns them; its vocabularies are those of the files."""
    text: str = ""
    """What a language model reads: a folder with wiki.train, wiki.valid, wiki.test[.tokens][.xz] or train.txt, valid.txt,
    test.txt; or wikitext-103 or wikitext-2, downloaded on first use. If left away wikitext-103. With --resume, where the run's
    text lies now, and so are --held-out and --vocabulary."""
    held_out: str = ""
    """A folder with the validation and test text, where they are not with the training text."""
    vocabulary: Path | None = None
    """A file with one word a line, by frequency. If left away the words of the training text."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU if there is one."""
    save_minutes: float = 5.0
    """Minutes between checkpoints inside an epoch. At the end of an epoch there is one if the last is older than 20 seconds."""
    compile: Literal["auto", "no", "blocks", "lengths"] = "auto"
    """What torch.compile gets; auto: on a GPU the blocks, for each length or, of many, for all at once; nothing on the CPU."""
    cuda_graph: Literal["auto", "yes", "no"] = "auto"
    """Replay whole steps; auto: yes on a GPU, in one process and without --checkpoint-blocks."""
    checkpoint_blocks: bool = False
    """Compute blocks twice, to keep only their inputs in between: memory for time, for large models."""
    shard: bool = False
    """Under torchrun: part the weights over the processes (FSDP), for models that are too large for one GPU."""
    pack: Literal["auto", "yes", "no"] = "auto"
    """Several sequences of a batch in one row, in place of padding; auto: where that saves a quarter of the steps of fast weight
    programmers."""

    @property
    def speed(self) -> Speed:
        graph: Literal["auto"] | bool = "auto" if self.cuda_graph == "auto" else self.cuda_graph == "yes"
        pack: Literal["auto"] | bool = "auto" if self.pack == "auto" else self.pack == "yes"
        return Speed(self.compile, graph, self.checkpoint_blocks, self.shard, pack)


@dataclass(frozen=True)
class EvalOptions:
    """What to evaluate."""

    split: Literal["train", "valid", "test"] = "test"
    """Which data."""
    input: str | None = None
    """A sequence of your own, for example "x = 3 ; x ++ ; print x ;": what the model says at every token."""
    stride: int | None = None
    """Words that the sliding windows of a language model are apart: 1 is the paper's way, more is that much faster. If left away
    as at the end of its training."""
    data: Path | None = None
    """Where your own sequences lie now, if they have moved since the training."""
    text: str = ""
    """Where the text of a language model lies now, if it has moved since the training."""
    held_out: str = ""
    """The same for the validation and test text, where they are not with the training text."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU if there is one."""
