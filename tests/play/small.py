"""Small models for the page, saved as a user would have them."""

import base64
from pathlib import Path

import numpy as np
import torch

import rfwp

SMALL = {"core.width": 16, "embedding": 16, "core.layers": 2, "core.heads": 2, "core.ff": 8}
PAPER = "x = 3 ; y = 7 ; x ++ ; if y < 6 : print x ; print x ;"
LIST = "[MAX 6 1 [FIRST 2 3 ] 0 [MIN 4 7 1 ] ]"


def save(folder: Path, preset: str, **changes) -> str:
    torch.manual_seed(0)
    rfwp.build(preset, **SMALL | changes).save_pretrained(folder)
    return str(folder)


def save_three(folder: Path) -> list[str]:
    """Two models that execute programs and one that reads lists."""
    return [
        save(folder / "delta-rnn", "code-execution-5/delta-rnn"),
        save(folder / "linear-transformer", "code-execution-5/linear-transformer"),
        save(folder / "lists", "listops-10/rdn"),
    ]


def floats(text: str, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), "<f4").reshape(shape).copy())
