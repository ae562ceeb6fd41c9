"""A run is decided by its config: however often it is stopped, it ends with the same bits; nothing is lost."""

import dataclasses
import errno
import json
import os
import shutil
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch

import rfwp
from rfwp.config import FilesConfig, RunConfig
from rfwp.errors import InvalidFile, InvalidInput
from rfwp.train import Log, Result, Trainer, checkpoint
from rfwp.train.data import Data
from rfwp.train.evaluate import evaluate
from rfwp.train.store import Store
from tests.train.tiny import Tiny, before_call, tiny_config, trainer, weights


def raise_signal_at(monkeypatch, n, number=signal.SIGINT):
    monkeypatch.setattr(Data, "get", before_call(n, Data.get, lambda: signal.raise_signal(number)))


def without_times(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: line[key] for key in ("epoch", "loss", "valid")} for line in lines]


def assert_same_run(folder, other):
    for name in ("last", "best"):
        assert weights(folder, name) == weights(other, name)
    read = [safetensors.torch.load_file(f / "last" / "optimiser.safetensors") for f in (folder, other)]
    assert read[0].keys() == read[1].keys()
    assert all(torch.equal(read[0][key], read[1][key]) for key in read[0])
    assert without_times(folder) == without_times(other)
    results = [json.loads((f / "result.json").read_text()) for f in (folder, other)]
    for key in ("metrics", "valid", "best_epoch", "epochs", "curve"):
        assert results[0][key] == results[1][key]


def epoch_of(folder, name):
    return json.loads((folder / name / "state.json").read_text())["progress"]["epoch"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, trainer(folder).run()


def test_training_learns_and_keeps_the_best_epoch(tmp_path):
    result = trainer(tmp_path, tiny_config(epochs=25, lr=3e-2, dropout=0.0), Tiny(train=64)).run()
    assert result.curve[-1][1] < 0.7 * result.curve[0][1]
    scores = [score for _, _, score in result.curve]
    assert result.best_epoch == 1 + scores.index(max(scores))
    assert result.valid["token accuracy"] == max(scores)
    assert result.epochs == 25
    assert result.stopped is None


def test_of_equal_scores_the_other_metrics_decide(tmp_path, monkeypatch):
    run = trainer(tmp_path, tiny_config(epochs=4))
    found = iter([{"token accuracy": 0.0, "sequence accuracy": right} for right in (0.1, 0.3, 0.2, 0.3)])
    monkeypatch.setattr(run, "_validated", lambda: next(found))
    assert run.run().best_epoch == 2


def test_the_best_checkpoint_is_what_was_tested_and_loads_alone(whole):
    folder, result = whole
    model = rfwp.load(folder / "best")
    test = Data(Tiny().split("test"), torch.device("cpu"))
    assert evaluate(model, Tiny(), test, 8) == result.metrics
    assert result.parameters == sum(p.numel() for p in model.parameters())


def test_the_folder_of_a_run_says_where_its_model_is(whole):
    folder, _ = whole
    with pytest.raises(InvalidFile, match=f"{folder} holds a run; its model is in {folder / 'best'}"):
        rfwp.load(folder)


def test_the_result_is_kept_and_a_finished_run_is_not_trained_again(whole):
    folder, result = whole
    assert Result.from_json(json.loads((folder / "result.json").read_text())) == result
    assert trainer(folder).run() == result
    line = result.to_json()
    wanted = (
        "preset seed config metrics valid best_epoch epochs seconds tokens_per_s parameters device commit torch rfwp time curve"
    )
    assert set(wanted.split()) <= set(line)
    assert line["preset"] == "tiny"


@pytest.mark.parametrize("core", ["lstm", "delta_rnn"])
def test_two_runs_of_one_config_are_bit_identical(tmp_path, core):
    for name in "ab":
        trainer(tmp_path / name, tiny_config(core, epochs=2)).run()
    assert_same_run(tmp_path / "a", tmp_path / "b")


# three steps and one validation an epoch: 3 is the first epoch's last step, 4 its validation, 12 the last validation of all
@pytest.mark.parametrize("batch", [1, 3, 4, 6, 12])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_resumes_bit_identically(tmp_path, monkeypatch, whole, batch, number):
    with monkeypatch.context() as patch:
        raise_signal_at(patch, batch, number)
        stopped = trainer(tmp_path).run()
    assert stopped.stopped == number.name
    assert stopped.metrics == {}
    result = trainer(tmp_path).run()
    assert_same_run(tmp_path, whole[0])
    assert result.metrics == whole[1].metrics
    assert [point[:2] for point in result.curve] == [point[:2] for point in whole[1].curve]


def test_a_signal_while_the_last_checkpoint_is_written_is_not_lost(tmp_path, monkeypatch, whole):
    """With several seeds the next one would begin."""
    with monkeypatch.context() as patch:
        # no checkpoint before the last one, so shortly after the start
        save = before_call(1, Store.save_last, lambda: signal.raise_signal(signal.SIGINT))
        patch.setattr(Store, "save_last", save)
        stopped = trainer(tmp_path).run()
    assert (stopped.stopped, stopped.epochs, stopped.metrics) == ("SIGINT", 3, {})
    assert trainer(tmp_path).run().metrics == whole[1].metrics
    assert_same_run(tmp_path, whole[0])


def test_a_run_that_stops_between_epochs_resumes_bit_identically(tmp_path, monkeypatch, whole):
    log = Log()
    monkeypatch.setattr(log, "epoch", before_call(2, log.epoch, lose))
    with pytest.raises(Lost):
        trainer(tmp_path, log=log).run()
    trainer(tmp_path).run()
    assert_same_run(tmp_path, whole[0])


class Lost(Exception):
    """The process is gone."""


def lose(*_):
    raise Lost


@pytest.fixture(scope="module")
def rising(tmp_path_factory):
    """Five epochs, of which the first, second and fourth are the best so far; the fifth only equals the fourth."""
    folder = tmp_path_factory.mktemp("rising")
    result = trainer(folder, RISING).run()
    scores = [score for _, _, score in result.curve]
    assert scores[2] < scores[1] > scores[0]
    assert scores[3] == scores[4] > scores[1]
    assert result.best_epoch == 4
    return folder


RISING = tiny_config(epochs=5, lr=2e-2, seed=2)


@pytest.mark.parametrize("saved", [0, 1])
@pytest.mark.parametrize(("lost", "best"), [(2, 2), (3, 2), (4, 4), (5, 4)])
def test_a_best_that_is_ahead_of_last_comes_out_the_same(tmp_path, monkeypatch, rising, saved, lost, best):
    """`last` is of epoch 1 or not there yet when the process is lost, which has saved `best` since."""
    if saved:
        with monkeypatch.context() as patch:
            raise_signal_at(patch, 4)
            trainer(tmp_path, RISING).run()
        assert epoch_of(tmp_path, "last") == 1
    log = Log()
    monkeypatch.setattr(log, "epoch", before_call(lost - saved, log.epoch, lose))
    with pytest.raises(Lost):
        trainer(tmp_path, RISING, log=log).run()
    assert epoch_of(tmp_path, "best") == best
    assert epoch_of(tmp_path, "last") == 1 if saved else not (tmp_path / "last").exists()
    trainer(tmp_path, RISING).run()
    assert_same_run(tmp_path, rising)


@pytest.mark.parametrize("rename", range(1, 8))
def test_a_best_that_is_lost_while_it_is_saved_comes_out_the_same(tmp_path, monkeypatch, rising, rename):
    """One rename for the first `best`, two for the second, three for the third, one for `last`."""
    with monkeypatch.context() as patch:
        patch.setattr("os.rename", before_call(rename, os.rename, lose))
        with pytest.raises(Lost):
            trainer(tmp_path, RISING).run()
    trainer(tmp_path, RISING).run()
    assert_same_run(tmp_path, rising)


def test_short_epochs_are_not_saved_one_by_one_but_the_last_one_is(tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr("rfwp.train.checkpoint.save", lambda new, run, name, earlier: saved.append((name, new)))
    with pytest.raises(InvalidFile, match="no best checkpoint any more"):
        trainer(tmp_path).run()
    assert [new.state["progress"]["epoch"] for name, new in saved if name == "last"] == [3]
    monkeypatch.setattr("rfwp.train.epochs.SAVE_SECONDS", 0.0)
    saved.clear()
    with pytest.raises(InvalidFile):
        trainer(tmp_path).run()
    assert [new.state["progress"]["epoch"] for name, new in saved if name == "last"] == [1, 2, 3]
    assert all(bool(new.optimiser) == (name == "last") for name, new in saved)


def test_tokens_a_second_are_those_of_the_steps_alone(tmp_path, monkeypatch):
    """By a clock of its own: a step or an evaluated batch takes one second, a checkpoint a hundred."""
    now = 0.0

    def taking(seconds, call):
        def slow(*arguments):
            nonlocal now
            now += seconds
            return call(*arguments)

        return slow

    for module in ("epochs", "meter"):
        monkeypatch.setattr(f"rfwp.train.{module}.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(Data, "get", taking(1.0, Data.get))
    monkeypatch.setattr(checkpoint, "save", taking(100.0, checkpoint.save))
    result = trainer(tmp_path, save_minutes=0).run()
    assert result.tokens_per_s == round(int(Tiny().split("train").lengths.sum()) / 3, 1)
    assert result.seconds > 3 * (3 + 1) + 800


def test_a_run_that_ends_by_patience_saves_its_last_epoch(tmp_path):
    trainer(tmp_path, tiny_config(lr=1e-12, epochs=20, patience=2)).run()
    assert epoch_of(tmp_path, "last") == 3


def test_the_best_checkpoint_holds_what_a_test_needs_and_no_more(whole):
    names = {path.name for path in (whole[0] / "best").iterdir()}
    assert names == {"model.safetensors", "config.json", "state.json"}


def test_a_result_is_of_the_checkpoint_that_was_tested(tmp_path, monkeypatch, rising):
    """Should `best` be damaged at the very end, the one before is tested, and the result says so."""
    damaged = before_call(1, Trainer._finish, lambda: (tmp_path / "best/model.safetensors").write_bytes(b""))
    monkeypatch.setattr(Trainer, "_finish", lambda self, stopped: damaged(self, stopped))
    result = trainer(tmp_path, RISING).run()
    earlier = json.loads((tmp_path / ".best-before/state.json").read_text())["best"]
    assert (result.best_epoch, result.valid) == (earlier["epoch"], earlier["valid"])
    assert result.best_epoch < 4


def test_checkpoints_inside_epochs_change_nothing(tmp_path, whole):
    trainer(tmp_path, save_minutes=0).run()
    assert_same_run(tmp_path, whole[0])


def test_a_second_ctrl_c_leaves_at_once_as_the_first_one_says(tmp_path, monkeypatch, capfd):
    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Data, "get", before_call(2, Data.get, twice))
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path).run()
    assert signal.getsignal(signal.SIGINT) is handler
    assert capfd.readouterr().err.count("Ctrl-C again leaves at once") == 1


def test_records_of_epochs_that_are_trained_again_are_dropped(tmp_path, monkeypatch, whole):
    with monkeypatch.context() as patch:
        raise_signal_at(patch, 6)
        trainer(tmp_path).run()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"epoch": 2, "loss": 0.0, "valid": {"token accuracy": 1.0}, "tokens_per_s": 1.0}) + "\n")
        file.write('{"epoch": 3, "lo')
    trainer(tmp_path).run()
    assert_same_run(tmp_path, whole[0])


@pytest.mark.parametrize("accumulate", [2, 3, 8])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_accumulation_equals_the_whole_batch(tmp_path, accumulate, clip):
    for parts in (1, accumulate):
        trainer(tmp_path / str(parts), tiny_config(dropout=0.0, accumulate=parts, clip=clip)).run()
    ours, whole = (safetensors.torch.load((tmp_path / str(n) / "last/model.safetensors").read_bytes()) for n in (accumulate, 1))
    for name in whole:
        torch.testing.assert_close(ours[name], whole[name], atol=1e-6, rtol=0)


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_training_is_plain_adam_on_the_shuffled_data_with_a_smaller_last_batch(tmp_path, decay):
    """Nothing of the loop: rows of the permutation, cut by hand, without any padding; the rate may fall in the last half."""
    from rfwp.train.data import order
    from rfwp.train.model import build

    config = tiny_config(dropout=0.0, epochs=2, decay=decay)
    trainer(tmp_path, config).run()
    rates = iter([1e-2] * 4 + [1e-2 * 2 / 3, 1e-2 / 3] if decay else [1e-2] * 6)
    model, split = build(config), Tiny().split("train")
    adam = torch.optim.Adam(model.parameters(), lr=1e-2, betas=(0.9, 0.995), eps=1e-9)
    for epoch in range(2):
        for rows in order(22, 1, epoch, 8):
            rows = rows[rows < 22]
            T = int(split.lengths[rows].max())
            loss, _ = model.loss(split.tokens[rows, :T].long(), split.targets[rows, :T].long())
            adam.zero_grad()
            loss.backward()
            adam.param_groups[0]["lr"] = next(rates)
            adam.step()
    trained = safetensors.torch.load(weights(tmp_path))
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(trained[name], expected, atol=1e-6, rtol=0)


def test_patience_ends_a_run_that_gets_no_better(tmp_path):
    result = trainer(tmp_path, tiny_config(lr=1e-12, epochs=20, patience=2)).run()
    assert result.stopped == "patience"
    assert result.epochs == result.best_epoch + 2 == 3
    assert result.metrics


# --- Numbers that are not finite ---


# --- Bad input: one line, nothing written ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "train.epochs=0; use at least 1"),
        ({"accumulate": 9}, "train.accumulate=9 parts of a batch of 8"),
        ({"lr": -1.0}, "train.lr=-1.0; use a positive number"),
        ({"clip": 0.0}, "train.clip=0.0; use a positive number"),
        ({"decay": 1.5}, "train.decay=1.5; use a share of the training"),
        ({"beta2": 1.0}, "train.beta2=1.0"),
        ({"patience": 0}, "train.patience=0"),
        ({"lr": "1e-3"}, "config.train.lr: expected float, saw '1e-3'"),
        ({"epochs": 2.5}, "config.train.epochs: expected int, saw 2.5"),
        ({"seed": None}, "config.train.seed: expected int, saw None"),
    ],
)
def test_settings_that_cannot_work_are_named(tmp_path, changes, message):
    with pytest.raises(InvalidInput, match=message):
        trainer(tmp_path / "run", tiny_config(**changes))
    assert not (tmp_path / "run").exists()


def test_a_name_in_place_of_a_config_is_named(tmp_path):
    with pytest.raises(InvalidInput, match="needs a RunConfig or LanguageRunConfig, saw 'listops-10/rdn'"):
        trainer(tmp_path / "run", "listops-10/rdn")


def test_a_folder_of_sequences_is_a_text_in_a_config_that_can_be_read_again(tmp_path):
    config = RunConfig(tiny_config().model, FilesConfig(tmp_path))
    with pytest.raises(InvalidInput, match=r"config\.task\.folder: expected str, saw \w*Path"):
        Trainer(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_numbers_of_numpy_are_numbers(tmp_path):
    assert trainer(tmp_path / "run", tiny_config(lr=np.float64(1e-2))).run().epochs == 3


def test_an_empty_split_is_named(tmp_path):
    with pytest.raises(InvalidInput, match="the split 'valid' is empty"):
        trainer(tmp_path / "run", task=Tiny(valid=0))
    assert not (tmp_path / "run").exists()


def test_a_vocabulary_that_is_too_small_is_named(tmp_path):
    config = tiny_config()
    small = dataclasses.replace(config, model=dataclasses.replace(config.model, outputs=4))
    with pytest.raises(InvalidInput, match=r"model.outputs=4, but the task has 5 symbols; use model.outputs=5"):
        trainer(tmp_path / "run", small)


def test_a_folder_with_another_run_names_the_fields_that_differ(whole):
    with pytest.raises(InvalidInput, match=r"another config: train.batch 8 -> 4; train.lr 0.01 -> 0.5; use another folder"):
        trainer(whole[0], tiny_config(lr=0.5, batch=4))


def test_other_data_under_the_same_config_are_noticed(whole):
    with pytest.raises(InvalidInput, match="other data"):
        trainer(whole[0], task=Tiny(train=21))


def test_weights_of_another_model_are_one_line(tmp_path, whole):
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / "result.json").unlink()
    run = trainer(tmp_path)
    run.model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(InvalidFile, match=r"the weights in .* do not fit its model"):
        run.run()


def test_a_time_between_checkpoints_that_is_none_is_named(tmp_path):
    for wrong in (-1.0, float("nan")):
        with pytest.raises(InvalidInput, match="save_minutes"):
            trainer(tmp_path / "run", save_minutes=wrong)


def test_the_commit_is_the_one_that_was_given_or_that_of_the_start(tmp_path, monkeypatch):
    run = trainer(tmp_path / "a", tiny_config(epochs=1))
    monkeypatch.setattr("rfwp.environment._git", lambda: {"commit": "later", "dirty": True})
    result = run.run()
    assert (len(result.commit), result.dirty in (True, False)) == (40, True)
    result = trainer(tmp_path / "b", tiny_config(epochs=1)).run()
    assert (result.commit, result.dirty) == ("later", True)
    result = trainer(tmp_path / "c", tiny_config(epochs=1), commit="feedbee").run()
    assert (result.commit, result.dirty) == ("feedbee", None)
    assert result.to_json()["commit"] == "feedbee"


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(InvalidFile, match="is a file"):
        trainer(tmp_path / "run")


def test_a_disk_without_locks_is_said_and_trained_on(tmp_path, monkeypatch, caplog):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("rfwp.train.folder.fcntl.flock", no_locks)
    assert trainer(tmp_path, tiny_config(epochs=1)).run().metrics
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        f"{tmp_path}: this disk knows no locks (No locks available); do not train in it twice at once"
    ]


def test_two_processes_cannot_train_in_one_folder(tmp_path, monkeypatch):
    messages = []

    def second():
        with pytest.raises(InvalidInput, match="another process") as caught:
            trainer(tmp_path).run()
        messages.append(caught.value)

    monkeypatch.setattr(Data, "get", before_call(2, Data.get, second))
    trainer(tmp_path).run()
    assert messages
