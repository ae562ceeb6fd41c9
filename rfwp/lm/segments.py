"""A training text as steps that all have one shape, and what must be known of it before they are recorded."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from rfwp.tasks.streams import Batches
from rfwp.tasks.types import NO_TARGET, SPLITS
from rfwp.tasks.wikitext import Text

MANY = 0.25
"""A larger share of unknown words is hardly meant."""
_PIECE = 2**24


@dataclass(frozen=True)
class Count:
    """Of a whole batch, over all processes: every word but the filling is a target."""

    targets: int
    tokens: int


class Segments:
    """Pass after pass over this process's streams of a text; step n is segment n modulo the length of a pass.

    The last segment of a pass is filled up: its targets do not count there, so that the mean loss is that of its words, and
    no step has another shape than the others.
    """

    def __init__(self, batches: Batches, world: int = 1):
        self.batches, self.world = batches, world

    def __len__(self) -> int:
        """Steps of a pass."""
        return len(self.batches)

    def starts_pass(self, step: int) -> bool:
        return step % len(self) == 0

    def get(self, step: int) -> tuple[Tensor, Tensor, Count]:
        """Tokens and targets (rows, segment) of this process."""
        tokens, targets = self.batches[step % len(self)]
        counted = tokens.numel() * self.world
        missing = (0, self.batches.segment - tokens.shape[1])
        return F.pad(tokens, missing), F.pad(targets, missing, value=NO_TARGET), Count(counted, counted)

    def capacity(self, ends: Sequence[int], parts: int = 1) -> tuple[int, ...]:
        """The most targets that any part of any step has in each cluster of an adaptive softmax; see `TiedAdaptive.loss`."""
        targets, segment = self.batches.rows[:, 1:], self.batches.segment
        starts = np.arange(0, targets.shape[1], segment)
        share = len(targets) // parts
        most = []
        for low, high in pairwise(ends):
            counts = np.zeros((parts, len(starts)), dtype=np.int64)
            # stream by stream: a mask of the whole text would be large
            for n, row in enumerate(targets):
                counts[n // share] += np.add.reduceat((row >= low) & (row < high), starts, dtype=np.int64)
            most.append(int(counts.max()))
        return tuple(most)


def unlearned_words(text: Text) -> list[str]:
    """Lines about what no model can learn here: words of the training text that are `<unk>`, or an `<unk>` that is not in it."""
    unk = text.words.symbols[text.words.unk]
    share = {name: _count(text.tokens(name), text.words.unk) / len(text.tokens(name)) for name in SPLITS}
    lines = []
    if share["train"] > MANY:
        lines.append(
            f"{share['train']:.0%} of the training text is {unk}: the vocabulary lacks these words; has it one word a line?"
        )
    held_out = [f"{share[name]:.2%} of the {name} text" for name in ("valid", "test") if share[name]]
    if held_out and not share["train"]:
        lines.append(
            f"{' and '.join(held_out)} is {unk}, which the training text never has, so the model cannot expect it;"
            " --vocabulary FILE without the rarest words would let it learn that"
        )
    return lines


def _count(tokens: np.ndarray, word: int) -> int:
    """Piece by piece: a mask of the whole text would be large."""
    return sum(int(np.count_nonzero(tokens[start : start + _PIECE] == word)) for start in range(0, len(tokens), _PIECE))


def fingerprint(text: Text) -> str:
    """Tells one text, read with one vocabulary, from another."""
    digest = hashlib.sha256(text.words.digest.encode())
    for name in ("train", "valid"):
        tokens = text.tokens(name)
        digest.update(f"{name} {len(tokens)}".encode())
        digest.update(np.ascontiguousarray(tokens).data)
    return digest.hexdigest()[:16]
