"""Batches of a long text: every word of every stream is a target once, in order, in whichever process."""

import numpy as np
import pytest
import torch

from rfwp.errors import InvalidInput
from rfwp.tasks.streams import Batches, segments, steps_of, streams


def equal(a, b):
    return len(a) == len(b) and all(
        torch.equal(x, y) for one, two in zip(a, b, strict=True) for x, y in zip(one, two, strict=True)
    )


def test_streams_are_equal_pieces_and_the_rest_is_dropped():
    tokens = np.arange(11, dtype=np.int32)
    assert streams(tokens, 3).tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert np.shares_memory(streams(tokens, 3), tokens)


def test_targets_are_the_next_words_and_the_last_segment_is_short():
    found = [(inputs.tolist(), targets.tolist()) for inputs, targets in segments(streams(np.arange(12, dtype=np.int32), 2), 2)]
    assert found == [
        ([[0, 1], [6, 7]], [[1, 2], [7, 8]]),
        ([[2, 3], [8, 9]], [[3, 4], [9, 10]]),
        ([[4], [10]], [[5], [11]]),
    ]


@pytest.mark.parametrize("length", [8, 9, 63, 64, 65, 100])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_every_word_but_the_first_of_a_stream_is_a_target_once(n, length):
    tokens = np.random.default_rng(0).integers(0, 2**31 - 1, length, dtype=np.int32)
    batches = Batches(tokens, n, 2)
    rows = torch.from_numpy(streams(tokens, n).astype(np.int64))
    assert torch.equal(torch.cat([targets for _, targets in batches], 1), rows[:, 1:])
    assert torch.equal(torch.cat([inputs for inputs, _ in batches], 1), rows[:, :-1])
    assert len(list(batches)) == len(batches)


def test_steps_of_an_epoch_on_wikitext_103():
    """As many as with the authors' 96 streams of 256 words; the array takes no memory."""
    rows = np.broadcast_to(np.int32(7), (96, 103_227_021 // 96))
    assert steps_of(rows, 256) == 4_201
    ((inputs, _),) = segments(rows, 256, start=4_200)
    assert inputs.shape == (96, 80)


def test_a_pass_can_be_entered_at_any_step():
    batches = Batches(np.arange(103, dtype=np.int32), 4, 6)
    whole = list(batches)
    for step in range(len(batches) + 1):
        assert equal(list(batches.after(step)), whole[step:])
    assert equal([batches[step] for step in range(len(batches))], whole)


@pytest.mark.parametrize("step", [-1, 5, 1.0])
def test_a_step_of_another_text_is_refused(step):
    with pytest.raises(InvalidInput, match=f"step {step} is not in this text, which has 4 steps; is it the same text and batch"):
        Batches(np.arange(103, dtype=np.int32), 4, 6).after(step)


def test_steps_beyond_the_end_are_no_batches():
    batches = Batches(np.arange(103, dtype=np.int32), 4, 6)
    for step in (-1, 4):
        with pytest.raises(IndexError):
            batches[step]


@pytest.mark.parametrize("world", [2, 3, 6])
def test_processes_share_the_streams_of_one_batch(world):
    tokens = np.arange(200, dtype=np.int32)
    whole = Batches(tokens, 6, 5)
    shares = [Batches(tokens, 6, 5, rank, world) for rank in range(world)]
    assert {len(share) for share in shares} == {len(whole)}
    together = [tuple(torch.cat(parts) for parts in zip(*step, strict=True)) for step in zip(*shares, strict=True)]
    assert equal(together, list(whole))


def test_batches_are_int64_copies_that_may_be_written_to(tmp_path):
    np.save(tmp_path / "tokens.npy", np.arange(20, dtype=np.int32))
    batches = Batches(np.load(tmp_path / "tokens.npy", mmap_mode="r"), 2, 4)
    inputs, targets = batches[0]
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    inputs.zero_()
    assert targets.tolist() == [[1, 2, 3, 4], [11, 12, 13, 14]]
    assert batches[0][0].tolist() == [[0, 1, 2, 3], [10, 11, 12, 13]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 30, "segment": 4}, r"the text has 100 tokens, too few for 30 streams of 4 steps \(120\); use fewer streams"),
        ({"n": 60, "segment": 1}, r"too few for 60 streams of 1 steps \(120\)"),
        ({"n": 0, "segment": 4}, "streams=0 does not fit; use a whole number, at least 1"),
        ({"n": 2, "segment": 0}, "segment=0 does not fit"),
        ({"n": 2, "segment": 4, "world": 0}, "world=0 does not fit"),
        ({"n": 4, "segment": 4, "rank": 2, "world": 2}, "rank=2 does not fit 2 processes; use 0 to 1"),
        ({"n": 5, "segment": 4, "world": 2}, "5 streams cannot be shared equally by 2 processes; use a multiple of 2"),
    ],
)
def test_what_does_not_fit_is_named(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        Batches(np.arange(100, dtype=np.int32), **arguments)
