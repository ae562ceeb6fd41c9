"""Several sequences in one row: which of them share a row, and where each begins.

Padding to the longest sequence of a batch is more than half of it where lengths differ much. A layer that starts anew at a
reset computes the same for a sequence wherever it begins, so whole sequences fill the rows one behind the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ROWS = 8
"""The number of rows is a multiple of it, so that few shapes are compiled and recorded."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """The sequences of a batch in `rows` rows of T steps: all arrays have one entry a sequence, empty ones included."""

    rows: int
    sequences: Numbers
    """Which of the data they are."""
    lengths: Numbers
    row: Numbers
    start: Numbers
    """The step of its row at which a sequence begins."""

    def index(self, T: int, width: int, padding: int) -> Numbers:
        """(rows, T): where each step lies in a flat table with a sequence every `width` places; `padding` where none is."""
        total = int(self.lengths.sum())
        # 0 1 2 ... of each sequence, one behind the other
        step = np.arange(total) - np.repeat(self.lengths.cumsum() - self.lengths, self.lengths)
        place = np.repeat(self.row * T + self.start, self.lengths) + step
        index = np.full(self.rows * T, padding)
        index[place] = np.repeat(self.sequences * width, self.lengths) + step
        return index.reshape(self.rows, T)


def lay_out(sequences: Numbers, lengths: Numbers, T: Numbers) -> Iterator[Layout]:
    """The layouts of many batches: sequences and their lengths (batches, sequences), T (batches,), none of them is longer."""
    row, start = first_fit(lengths, T)
    for n, rows in enumerate(count_rows(row)):
        yield Layout(int(rows), sequences[n], lengths[n], row[n], start[n])


def saved_share(lengths: Numbers, T: Numbers) -> float:
    """The part of all steps, padding included, that packing these batches saves."""
    rows = count_rows(first_fit(lengths, T)[0])
    return 1 - float((rows * T).sum() / (lengths.shape[1] * T).sum())


def first_fit(lengths: Numbers, T: Numbers) -> tuple[Numbers, Numbers]:
    """Row and start of each sequence: the longest first, each in the first row that has room for it.

    All batches are filled side by side, so this takes one pass over the sequences of a batch, however many batches there are.
    """
    batches = np.arange(len(lengths))
    taken, row, start = np.zeros_like(lengths), np.zeros_like(lengths), np.zeros_like(lengths)
    for sequence in np.argsort(-lengths, axis=1, kind="stable").T:
        length = lengths[batches, sequence]
        # of equal values argmax finds the first
        found = (taken <= (T - length)[:, None]).argmax(1)
        row[batches, sequence], start[batches, sequence] = found, taken[batches, found]
        taken[batches, found] += length
    return row, start


def count_rows(row: Numbers) -> Numbers:
    """Of each batch (batches, sequences): a multiple of ROWS, but never more than it has sequences."""
    used = row.max(1) + 1
    return np.minimum(-(-used // ROWS) * ROWS, row.shape[1])
