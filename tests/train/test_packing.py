"""Sequences that share rows train as those that have a row each: same losses, same gradients, less padding."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import safetensors.torch
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from rfwp.config import AttentionConfig, BlocksConfig, FWPConfig, LSTMConfig, SequenceConfig, replace
from rfwp.errors import InvalidInput
from rfwp.lm.loop import LanguageTrainer
from rfwp.models import SequenceModel
from rfwp.presets import language_run, run_config
from rfwp.tasks import Split
from rfwp.train import Diverged, Speed, Trainer, TrainStep
from rfwp.train.data import Data
from rfwp.train.distributed import World
from rfwp.train.model import share_of_loss
from rfwp.train.packing import ROWS, first_fit
from tests.test_cli import run
from tests.train.test_loop import assert_same_run, raise_signal_at, without_times
from tests.train.test_not_finite import spoil
from tests.train.tiny import SYMBOLS, Tiny, before_call, packed_trainer, tiny_config, weights
from tests.train.tiny import trainer as tiny_trainer

CPU = torch.device("cpu")
LAYERS = {
    "linear_transformer": FWPConfig(rule="sum", phi="elu"),
    "delta_net": FWPConfig(),
    "delta_rnn": FWPConfig(fast="rnn"),
    "delta_lstm": FWPConfig(fast="lstm"),
    "rdn": FWPConfig(slow="recurrent", phi="softmax"),
    "attention": AttentionConfig(),
}
GPU = World(device=torch.device("cuda"))


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("RFWP_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


# --- Rows ---


def found_in_rows(batch, data):
    """The sequences of a packed batch as they are cut at resets: tokens and targets, padding cut off behind the last target."""
    tokens, targets, _, reset = data.get(batch)
    found = []
    for row in range(len(tokens)):
        starts = reset[row].nonzero().flatten().tolist()
        # a row that begins with no sequence has none
        assert starts[:1] == [0] or not (starts or tokens[row].any() or (targets[row] != -1).any())
        for start, end in zip(starts, [*starts[1:], batch.T][: len(starts)], strict=True):
            inside = targets[row, start:end] != -1
            length = int(inside.nonzero().max()) + 1
            found.append((tuple(tokens[row, start : start + length].tolist()), tuple(targets[row, start:end][:length].tolist())))
            # padding is behind sequences only, and empty
            assert not tokens[row, start + length : end].any()
    return sorted(found)


@pytest.mark.parametrize("world", [World(), World(0, 2), World(1, 2), World(2, 3)])
def test_rows_hold_every_sequence_of_the_batch_once_whole_and_reset_where_it_begins(world):
    split = Tiny(train=70).split("train")
    data = Data(split, CPU)
    plain, packed = (data.epoch(1, 0, 48, world, pack=pack) for pack in (False, True))
    for one, other in zip(plain, packed, strict=True):
        real = [row for row in one.rows.tolist() if row < 70]
        lengths = split.lengths[real].tolist()
        expected = [
            (tuple(split.tokens[row, :length].tolist()), tuple(split.targets[row, :length].tolist()))
            for row, length in zip(real, lengths, strict=True)
        ]
        assert found_in_rows(other, data) == sorted(expected)
        tokens, targets, total, reset = data.get(other)
        assert tokens.shape == targets.shape == reset.shape == other.shape
        assert (tokens.dtype, targets.dtype, reset.dtype) == (torch.long, torch.long, torch.bool)
        assert reset.sum() == len(real)
        assert (other.T, other.targets, other.tokens, float(total)) == (one.T, one.targets, one.tokens, float(one.total))
        assert torch.equal(other.rows, one.rows)


def test_packed_rows_are_fewer_and_their_numbers_few():
    data = Data(Tiny(train=500).split("train"), CPU)
    shapes = {batch.shape for epoch in range(3) for batch in data.epoch(1, epoch, 50, World(), pack=True)}
    assert {rows for rows, _ in shapes} <= {24, 32}
    # never more rows than sequences, whatever the multiple
    assert {batch.shape[0] for batch in data.epoch(1, 0, 5, World(), pack=True)} == {5}
    assert {batch.shape[0] for batch in data.epoch(1, 0, 5, World())} == {5}


def test_the_longest_come_first_and_each_takes_the_first_row_with_room():
    lengths = np.array([[3, 8, 5, 0, 2, 4], [1, 1, 1, 1, 1, 1], [8, 8, 8, 8, 8, 8]])
    row, start = first_fit(lengths, np.array([8, 8, 8]))
    assert row.tolist() == [[1, 0, 1, 0, 2, 2], [0] * 6, [*range(6)]]
    assert start.tolist() == [[5, 0, 0, 8, 4, 0], [*range(6)], [0] * 6]


def test_a_process_whose_sequences_are_all_empty_gets_rows_without_targets():
    data = Data(Tiny(train=3).split("train"), CPU)
    (batch,) = data.epoch(1, 0, 16, World(1, 2), pack=True)
    tokens, targets, total, reset = data.get(batch)
    assert batch.shape == (ROWS, batch.T) == tuple(tokens.shape)
    assert (targets == -1).all()
    assert not reset.any()
    assert total > 0


# --- Losses and gradients ---


def model_of(name):
    torch.manual_seed(0)
    layer, _, positions = name.partition(" ")
    core = LSTMConfig(hidden=8) if layer == "lstm" else BlocksConfig(LAYERS[layer], width=8, layers=2, heads=2, ff=16)
    config = SequenceConfig(SYMBOLS, SYMBOLS, core, embedding=8, positions=positions or "none", window=12)
    return SequenceModel(config).double()


@pytest.mark.parametrize("name", [*LAYERS, "lstm", "delta_net ascending", "attention ascending", "rdn descending"])
def test_packing_changes_no_loss_and_no_gradient(name):
    data = Data(Tiny(train=48).split("train"), CPU)
    found = []
    for pack in (False, True):
        model = model_of(name)
        (batch,) = data.epoch(1, 0, 48, World(), pack=pack)
        loss = share_of_loss(model, *data.get(batch))
        loss.backward()
        found.append((batch.shape[0], loss, [p.grad for p in model.parameters()]))
    (rows, loss, gradients), (packed_rows, packed_loss, packed_gradients) = found
    assert packed_rows < rows
    torch.testing.assert_close(packed_loss, loss, atol=1e-10, rtol=0)
    assert gradients
    for ours, expected in zip(packed_gradients, gradients, strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("layer", ["linear_transformer", "delta_net", "delta_rnn", "rdn"])
def test_all_numbers_of_rows_and_all_lengths_share_one_graph(layer, fresh_compiler):
    graphs = CompileCounterWithBackend("aot_eager")
    split = Tiny(train=64).split("train")
    data = Data(split, CPU)
    # other lengths, other numbers of rows
    short = Split(split.tokens[:, :5], split.targets[:, :5], split.lengths.clamp(max=5))
    packed = [
        *Data(short, CPU).epoch(1, 0, 40, World(), pack=True),
        *data.epoch(1, 0, 30, World(), pack=True),
        *data.epoch(1, 0, 64, World(), pack=True),
    ]
    whole = [*Data(short, CPU).epoch(1, 0, 40, World()), *data.epoch(1, 0, 30, World()), *data.epoch(1, 0, 64, World())]
    assert len({batch.shape[0] for batch in packed}) > 2
    assert len({batch.T for batch in packed}) == 2

    def losses(batches, **options):
        model = model_of(layer)
        step = TrainStep(model, torch.optim.Adam(model.parameters(), lr=1e-2), share_of_loss, **options)
        sources = [Data(short, CPU) if batch.T == 8 else data for batch in batches]
        return torch.stack([step(*source.get(batch)) for source, batch in zip(sources, batches, strict=True)])

    ours = losses(packed, compile="lengths", compiler=graphs)
    torch.testing.assert_close(ours, losses(whole), atol=1e-9, rtol=0)
    assert graphs.frame_count == 1


# --- Runs ---


def test_a_packed_run_has_the_losses_of_the_plain_one(tmp_path):
    config = tiny_config("delta_rnn", dropout=0.0, batch=48)
    for pack in (True, False):
        assert packed_trainer(tmp_path / str(pack), config, pack).run().metrics
    for ours, expected in zip(without_times(tmp_path / "True"), without_times(tmp_path / "False"), strict=True):
        assert ours["loss"] == pytest.approx(expected["loss"], abs=1e-5)


@pytest.mark.parametrize("step", [1, 4])
def test_a_packed_run_that_is_stopped_resumes_bit_identically(tmp_path, monkeypatch, step):
    """In mid-epoch: of two steps and a validation an epoch the first ones are calls 1 and 4; with dropout."""
    packed_trainer(tmp_path / "whole").run()
    with monkeypatch.context() as patch:
        raise_signal_at(patch, step, signal.SIGTERM)
        assert packed_trainer(tmp_path / "stopped").run().stopped == "SIGTERM"
    packed_trainer(tmp_path / "stopped").run()
    assert_same_run(tmp_path / "stopped", tmp_path / "whole")


def test_two_processes_with_packed_rows_train_as_one_without(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    packed_trainer(one, tiny_config("delta_rnn", dropout=0.0, batch=48, epochs=4), pack=False).run()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "-m", "tests.train.tiny", str(two), "batch=48", "epochs=4"]
    environment = os.environ | {"PACKED": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for ours, expected in zip(without_times(two), without_times(one), strict=True):
        assert ours["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    trained, expected = safetensors.torch.load(weights(two)), safetensors.torch.load(weights(one))
    for name in expected:
        torch.testing.assert_close(trained[name], expected[name], atol=1e-4, rtol=0)


def test_the_batch_of_a_packed_run_that_diverges_is_kept_as_its_sequences(tmp_path, monkeypatch):
    run = packed_trainer(tmp_path)
    monkeypatch.setattr(Data, "get", before_call(2, Data.get, lambda: spoil(run.model, float("nan"))))
    with pytest.raises(Diverged, match="in epoch 1, step 2"):
        run.run()
    batch = safetensors.torch.load_file(tmp_path / "nan-batch.safetensors")
    split = Tiny(train=70).split("train")
    real = batch["rows"] < 70
    rows = batch["rows"][real]
    assert len(rows) == 70 - 48
    assert torch.equal(split.tokens[rows].long(), batch["tokens"][real][:, :12])
    assert torch.equal(split.targets[rows].long(), batch["targets"][real][:, :12])


# --- When ---


@pytest.mark.parametrize(
    ("preset", "packed"),
    [
        ("listops-10/delta-net", True),
        ("listops-10/rdn", True),
        ("listops-10/lstm", False),
        ("listops-10/transformer", False),
        ("code-execution-3/delta-net", False),
    ],
)
def test_auto_packs_fast_weights_where_it_saves_much(tmp_path, preset, packed):
    small = replace(run_config(preset), {"task.train": 256, "task.valid": 8, "task.test": 8})
    assert Trainer(small, tmp_path, device="cpu").packed is packed


def test_auto_does_not_pack_parts_of_a_batch_and_all_processes_decide_alike():
    config = run_config("listops-10/delta-net")
    assert Speed().packs(config, World(), 0.25)
    assert not Speed().packs(config, World(), 0.24)
    assert not Speed().packs(replace(config, {"train.accumulate": 2}), World(), 0.5)
    assert not Speed(pack=False).packs(config, World(), 0.9)
    assert Speed(pack=True).packs(config, World(), 0.0)
    data = Data(Tiny(train=70).split("train"), CPU)
    assert len({data.saved_by_packing(1, 48, World(rank, 4)) for rank in range(4)}) == 1


def test_packing_where_it_cannot_be_done_is_one_line(tmp_path):
    with pytest.raises(InvalidInput, match=r"pack=True does not go with train.accumulate=2 parts of a batch; leave pack on auto"):
        packed_trainer(tmp_path / "run", tiny_config("delta_rnn", accumulate=2))
    with pytest.raises(InvalidInput, match="CUDA graphs cannot record"):
        Speed(pack=True).packs(tiny_config("lstm"), GPU, 0.5)
    assert Speed(pack=True, cuda_graph=False).packs(tiny_config("lstm"), GPU, 0.5)
    with pytest.raises(InvalidInput, match="running text has no padding to save"):
        LanguageTrainer(language_run("lm/rdn"), tmp_path / "run", speed=Speed(pack=True), device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("choice", "said"), [("yes", True), ("no", False), ("auto", True)])
def test_the_command_packs_as_told_and_says_so(capsys, tmp_path, choice, said):
    sizes = ["task.train=100", "task.valid=8", "task.test=8", "task.depth=3"]
    small = [*sizes, "train.epochs=1", "train.batch=48", "model.core.layers=1"]
    command = ["train", "listops-10/delta-net", "--out", str(tmp_path), "--device", "cpu", "--pack", choice, "--set", *small]
    code, out, _ = run(capsys, *command)
    assert code == 0
    assert ("packed)" in "".join(out.split())) == said


def test_small_batches_are_left_as_they_are(tmp_path):
    """Eight rows are as few as there are: nothing to save."""
    assert not tiny_trainer(tmp_path, tiny_config("delta_rnn")).packed


@pytest.mark.parametrize("word", ["no", "yes", 1, None])
def test_words_of_the_command_line_are_no_choices_in_python(tmp_path, word):
    """ "no" would be true."""
    with pytest.raises(InvalidInput, match=f"pack={word!r}; use True, False or 'auto'"):
        packed_trainer(tmp_path, pack=word)
    with pytest.raises(InvalidInput, match=f"cuda_graph={word!r}; use True, False or 'auto'"):
        Speed(cuda_graph=word).resolve(World())
