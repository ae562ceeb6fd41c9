"""A training set on the device, and which of its rows each step takes: decided by seed and epoch alone."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rfwp.errors import InvalidInput
from rfwp.tasks import Split
from rfwp.tasks.types import NO_TARGET
from rfwp.train.distributed import World
from rfwp.train.packing import Layout, lay_out, saved_share
from rfwp.train.random import derived
from rfwp.train.step import bucket


@dataclass(frozen=True)
class Batch:
    """What one step gets, and what the host knows of it without asking the device."""

    rows: Tensor
    """Of the data: the sequences of this process, on the device; the row after the last one is empty."""
    T: int
    total: Tensor
    """Targets that count in the whole batch, on the device."""
    targets: int
    """The same number."""
    tokens: int
    """Tokens of the whole batch, padding not counted."""
    layout: Layout | None = None
    """Where the sequences lie, if they are packed; else each has a row of its own."""

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, T) of what the model gets."""
        return len(self.rows) if self.layout is None else self.layout.rows, self.T


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

    def epoch(self, seed: int, epoch: int, batch: int, world: World, parts: int = 1, pack: bool = False) -> list[Batch]:
        """The batches of an epoch, in order; packed: each process lays its own sequences into rows."""
        table = order(len(self), seed, epoch, batch)
        return list(self._batches(_fill(table, world.size * parts, len(self)), world, pack))

    def saved_by_packing(self, seed: int, batch: int, world: World) -> float:
        """The part of the steps of the first epoch, padding included, over all processes, which so come to the same number."""
        lengths = self.lengths[_fill(order(len(self), seed, 0, batch), world.size, len(self))]
        T = np.array([bucket(max(1, longest)) for longest in lengths.max(1).values.tolist()])
        return saved_share(lengths.view(len(T) * world.size, -1).numpy(), T.repeat(world.size))

    def by_length(self, batch: int, world: World) -> list[Batch]:
        """Every sequence once, those of about the same length together; whole batches go to the processes in turns.

        Every process has as many batches, as a model in parts needs it: the last ones may hold an empty row only.
        """
        chunks = [*self.lengths[:-1].argsort(stable=True).split(batch)]
        chunks += [torch.tensor([len(self)])] * (-len(chunks) % world.size)
        return [next(self._batches(chunk.unsqueeze(0), World())) for chunk in chunks[world.rank :: world.size]]

    def get(self, batch: Batch) -> tuple[Tensor, ...]:
        """tokens and targets (rows, T), and the targets that count in the whole batch; packed also reset (rows, T)."""
        if batch.layout is not None:
            return self._packed(batch, batch.layout)
        return self.tokens[batch.rows, : batch.T].long(), self.targets[batch.rows, : batch.T].long(), batch.total

    def _packed(self, batch: Batch, layout: Layout) -> tuple[Tensor, ...]:
        """reset is True at the first step of every sequence."""
        # padding is the last place of the empty row, which begins nothing
        width, padding = self.tokens.shape[1], self.tokens.numel() - 1
        index = torch.from_numpy(layout.index(batch.T, width, padding))
        if self.device.type == "cuda":
            # the host goes on while the index waits for the device
            index = index.pin_memory()
        index = index.to(self.device, non_blocking=True)
        tokens, targets = (table.view(-1)[index].long() for table in (self.tokens, self.targets))
        return tokens, targets, batch.total, index % width == 0

    def _batches(self, table: Tensor, world: World, pack: bool = False) -> Iterator[Batch]:
        lengths, counts = self.lengths[table], self.counts[table].sum(1)
        totals = counts.clamp(min=1).float().to(self.device)
        share = table.shape[1] // world.size
        mine = slice(world.rank * share, (world.rank + 1) * share)
        T, tokens = [bucket(max(1, longest)) for longest in lengths.max(1).values.tolist()], lengths.sum(1).tolist()
        layouts: Iterable[Layout | None] = repeat(None, len(T))
        if pack:
            layouts = lay_out(table[:, mine].numpy(), lengths[:, mine].numpy(), np.array(T))
        rows = table[:, mine].to(self.device)
        for n, (targets, layout) in enumerate(zip(counts.tolist(), layouts, strict=True)):
            yield Batch(rows[n], T[n], totals[n], targets, tokens[n], layout)


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
