"""A long text as a batch: cut into streams side by side, which are read from left to right, a segment at a step."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rfwp.errors import InvalidInput


def streams(tokens: np.ndarray, n: int) -> np.ndarray:
    """(N,) -> (n, N // n): stream i is the i-th of n equal pieces of the text; what is left at its end is dropped. No copy."""
    length = len(tokens) // n
    return tokens[: n * length].reshape(n, length)


def segments(rows: np.ndarray, segment: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets, (n, segment) int64 each, in order from step `start`: a target is the word after its input.

    The last segment is shorter if need be, so that every word but a stream's first is a target once.
    """
    steps = steps_of(rows, segment)
    return (_segment(rows, segment, step) for step in range(start, steps))


def steps_of(rows: np.ndarray, segment: int) -> int:
    """How many segments the streams have."""
    return -(-(rows.shape[1] - 1) // segment)


def _segment(rows: np.ndarray, segment: int, step: int) -> tuple[Tensor, Tensor]:
    first = step * segment
    last = min(first + segment, rows.shape[1] - 1)
    # copies: what comes from a file cannot be written to, and embeddings want int64
    inputs, targets = rows[:, first:last].astype(np.int64), rows[:, first + 1 : last + 1].astype(np.int64)
    return torch.from_numpy(inputs), torch.from_numpy(targets)


class Batches:
    """One pass over a text. Of `world` processes, each has as many neighbouring streams: the first those of the text's start.

    `len` is the number of steps, the same in all processes; `batches[step]` is the batch of one of them.
    """

    def __init__(self, tokens: np.ndarray, n: int, segment: int, rank: int = 0, world: int = 1) -> None:
        _check_whole("streams", n)
        _check_whole("segment", segment)
        _check_whole("world", world)
        if type(rank) is not int or not 0 <= rank < world:
            raise InvalidInput(f"rank={rank!r} does not fit {world} processes; use 0 to {world - 1}")
        if n % world:
            raise InvalidInput(f"{n} streams cannot be shared equally by {world} processes; use a multiple of {world}")
        if len(tokens) < max(n * segment, 2 * n):
            raise InvalidInput(
                f"the text has {len(tokens):,} tokens, too few for {n:,} streams of {segment:,} steps"
                f" ({n * max(segment, 2):,}); use fewer streams, shorter segments or more text"
            )
        each = n // world
        self.segment = segment
        self.rows = streams(tokens, n)[rank * each : (rank + 1) * each]

    def __len__(self) -> int:
        return steps_of(self.rows, self.segment)

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} of {len(self)}")
        return _segment(self.rows, self.segment, step)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.after(0)

    def after(self, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches that are left when `step` of them are done: how an interrupted pass goes on."""
        if type(step) is not int or not 0 <= step <= len(self):
            raise InvalidInput(
                f"step {step!r} is not in this text, which has {len(self):,} steps; is it the same text and batch?"
            )
        return segments(self.rows, self.segment, step)


def _check_whole(name: str, value: int) -> None:
    if type(value) is not int or value < 1:
        raise InvalidInput(f"{name}={value!r} does not fit; use a whole number, at least 1")
