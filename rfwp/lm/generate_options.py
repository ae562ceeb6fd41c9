"""What `rfwp generate` can be told. The text under a field is its help."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class GenerateOptions:
    """How the text goes on."""

    prompt: str = ""
    """What the text begins with, words between spaces; - reads it from standard input. If left away: the start of a line."""
    tokens: int = 100
    """Words to add."""
    temperature: float = 1.0
    """Below 1: likelier words; 0: always the most likely one."""
    top_k: int | None = None
    """Only the k most likely words."""
    top_p: float | None = None
    """Only the most likely words that together have this probability."""
    seed: int | None = None
    """The same seed gives the same text on the same device."""
    one_line: bool = False
    """Stop at the end of the line."""
    detokenise: bool = False
    """Undo WikiText's spaces: "well @-@ known , too" becomes "well-known, too"."""
    streams: int = 1
    """Texts at once, one a line; their line breaks stay <eos>."""
    out: Path | None = None
    """Write the texts into this file, one a line."""
    device: str = "auto"
    """cpu, cuda, cuda:1, ...; auto: a GPU if there is one."""
