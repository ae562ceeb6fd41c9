"""Which rows a step takes: every row once an epoch, in an order that seed and epoch decide and nothing else."""

import pytest
import torch

from rfwp.train.data import Data, order
from rfwp.train.distributed import World
from rfwp.train.step import bucket
from tests.train.tiny import Tiny

CPU = torch.device("cpu")


def rows(batches, n=22):
    return [[r for r in b.rows.tolist() if r < n] for b in batches]


def test_every_epoch_is_another_permutation_and_every_seed_too():
    tables = [order(22, seed, epoch, 8) for seed in (1, 2) for epoch in (0, 1)]
    for table in tables:
        assert table.shape == (3, 8)
        assert sorted(table.flatten().tolist()) == [*range(22), 22, 22]
    assert len({tuple(t.flatten().tolist()) for t in tables}) == 4
    assert torch.equal(tables[0], order(22, 1, 0, 8))


def test_the_order_does_not_touch_the_global_generator():
    before = torch.get_rng_state()
    order(22, 1, 0, 8)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("parts", [1, 2])
def test_processes_share_the_batches_of_one(size, parts):
    data = Data(Tiny().split("train"), CPU)
    alone = data.epoch(1, 0, 8, World())
    shares = [data.epoch(1, 0, 8, World(rank, size), parts) for rank in range(size)]
    for n, batch in enumerate(alone):
        together = [share[n] for share in shares]
        assert [r for share in rows(together) for r in share] == rows([batch])[0]
        assert {(b.T, b.targets, b.tokens, len(b.rows)) for b in together} == {
            (batch.T, batch.targets, batch.tokens, len(together[0].rows))
        }
        assert len(together[0].rows) % parts == 0


def test_a_batch_is_cut_to_the_bucket_of_its_longest_sequence_and_loses_no_target():
    split = Tiny().split("train")
    data = Data(split, CPU)
    for batch in data.epoch(1, 0, 4, World()):
        tokens, targets, total = data.get(batch)
        real = batch.rows[batch.rows < 22]
        assert tokens.shape == targets.shape == (4, bucket(int(split.lengths[real].max())))
        assert (targets != -1).sum() == total == batch.targets == (split.targets[real] != -1).sum()
        assert batch.tokens == split.lengths[real].sum()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_evaluation_sees_every_sequence_once(size):
    data = Data(Tiny().split("valid"), CPU)
    batches = [data.by_length(4, World(rank, size)) for rank in range(size)]
    # every process has as many; the empty row behind the last one fills up
    assert len({len(mine) for mine in batches}) == 1
    seen = [row for mine in batches for batch in mine for row in batch.rows.tolist() if row < len(data)]
    assert sorted(seen) == list(range(9))
    assert sum(batch.targets for mine in batches for batch in mine) == data.counts.sum()
