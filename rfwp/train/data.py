"""A training set on the device, and which of its rows each step takes: decided by seed and epoch alone."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rfwp.errors import InvalidInput
from rfwp.tasks import Split
from rfwp.tasks.types import NO_TARGET
from rfwp.train.distributed import World
from rfwp.train.random import derived
from rfwp.train.step import bucket


@dataclass(frozen=True)
class Batch:
    """What one step gets, and what the host knows of it without asking the device."""

    rows: Tensor
    """Of this process, on the device; the row after the last one is empty."""
    T: int
    total: Tensor
    """Targets that count in the whole batch, on the device."""
    targets: int
    """The same number."""
    tokens: int
    """Tokens of the whole batch, padding not counted."""


class Data:
    """All sequences on the device, with one empty row behind them that fills up what is missing.

    The last batch of an epoch and a batch that does not divide by the processes get empty rows: no target counts there, so
    the mean over targets is the same, and all batches have the same number of rows.
    """

    def __init__(self, split: Split, device: torch.device):
        width = split.tokens.shape[1]
        room = (0, bucket(width) - width, 0, 1)
        self.tokens = F.pad(split.tokens, room).to(device)
        self.targets = F.pad(split.targets, room, value=NO_TARGET).to(device)
        self.device = device
        # on the host: the shape of a batch must be known without asking the device
        self.lengths = F.pad(split.lengths.long(), (0, 1))
        self.counts = F.pad((split.targets != NO_TARGET).sum(1), (0, 1))

    def __len__(self) -> int:
        return len(self.lengths) - 1

    def steps(self, batch: int) -> int:
        return -(-len(self) // batch)

    def epoch(self, seed: int, epoch: int, batch: int, world: World, parts: int = 1) -> list[Batch]:
        """The batches of an epoch, in order."""
        table = order(len(self), seed, epoch, batch)
        return list(self._batches(_fill(table, world.size * parts, len(self)), world))

    def by_length(self, batch: int, world: World) -> list[Batch]:
        """Every sequence once, those of about the same length together; whole batches go to the processes in turns.

        Every process has as many batches, as a model in parts needs it: the last ones may hold an empty row only.
        """
        chunks = [*self.lengths[:-1].argsort(stable=True).split(batch)]
        chunks += [torch.tensor([len(self)])] * (-len(chunks) % world.size)
        return [next(self._batches(chunk.unsqueeze(0), World())) for chunk in chunks[world.rank :: world.size]]

    def get(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """tokens and targets (rows, T), and the targets that count in the whole batch."""
        return self.tokens[batch.rows, : batch.T].long(), self.targets[batch.rows, : batch.T].long(), batch.total

    def _batches(self, table: Tensor, world: World) -> Iterator[Batch]:
        lengths, counts = self.lengths[table], self.counts[table].sum(1)
        totals = counts.clamp(min=1).float().to(self.device)
        share = table.shape[1] // world.size
        mine = table[:, world.rank * share : (world.rank + 1) * share].to(self.device)
        longest, tokens = lengths.max(1).values.tolist(), lengths.sum(1).tolist()
        for n, targets in enumerate(counts.tolist()):
            yield Batch(mine[n], bucket(max(1, longest[n])), totals[n], targets, tokens[n])


def order(rows: int, seed: int, epoch: int, batch: int) -> Tensor:
    """(steps, batch): a permutation of the rows; the last batch is filled up with the row behind the last one."""
    generator = torch.Generator().manual_seed(derived(seed, "order", epoch))
    rest = -rows % batch
    return F.pad(torch.randperm(rows, generator=generator), (0, rest), value=rows).view(-1, batch)


def checked(split: Split, name: str) -> Split:
    if len(split.lengths) == 0:
        raise InvalidInput(f"the split '{name}' is empty; training needs at least one sequence in train, valid and test")
    return split


def _fill(table: Tensor, divisor: int, row: int) -> Tensor:
    """Columns up to a multiple of `divisor`."""
    return F.pad(table, (0, -table.shape[1] % divisor), value=row)
