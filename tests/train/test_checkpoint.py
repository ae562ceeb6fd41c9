"""At every instant one whole checkpoint is there: after kills in the middle of saving, on a full disk, with damaged files."""

import contextlib
import errno
import os
import shutil
import subprocess
import sys

import pytest
import torch

from rfwp.errors import InvalidFile
from rfwp.train import Log, Trainer, checkpoint
from rfwp.train.checkpoint import Checkpoint, Damaged
from tests.train.tiny import before_call, tiny_config, trainer, weights


class Said(Log):
    def __init__(self):
        self.lines = []

    def warn(self, line):
        self.lines.append(line)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Saved after every step, so that it has a `previous`."""
    folder = tmp_path_factory.mktemp("whole")
    trainer(folder, tiny_config(epochs=2), save_minutes=0).run()
    return folder


def unfinished(whole, folder):
    """The same run before its test."""
    shutil.copytree(whole, folder)
    (folder / "result.json").unlink()
    return folder


def small(number):
    return Checkpoint({"w": torch.full((2,), float(number))}, {"adam.step.w": torch.tensor(1.0)}, {}, {"number": number})


# a save after every step: while the second state.json is written; after `last` moved away and before the new one comes; in a step
@pytest.mark.parametrize("moment", ["fsync:13", "rename:6", "step:5"])
def test_a_run_that_was_killed_resumes_bit_identically(tmp_path, whole, moment):
    arguments = [sys.executable, "-m", "tests.train.tiny", str(tmp_path / "run"), "epochs=2"]
    killed = subprocess.run(arguments, env=os.environ | {"KILL_AT": moment}, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    assert checkpoint.load(tmp_path / "run", (checkpoint.LAST, checkpoint.PREVIOUS), print) is not None
    trainer(tmp_path / "run", tiny_config(epochs=2)).run()
    for name in ("last", "best"):
        assert weights(tmp_path / "run", name) == weights(whole, name)
    assert not list((tmp_path / "run").glob(".*-new"))


@pytest.mark.parametrize("call", range(1, 16))
def test_whatever_call_fails_a_whole_checkpoint_is_there(tmp_path, monkeypatch, call):
    """Fails every file operation of a save in turn, as a full disk would."""
    checkpoint.save(small(1), tmp_path, "last", "previous")
    checkpoint.save(small(2), tmp_path, "last", "previous")

    def fail():
        raise OSError(errno.ENOSPC, "No space left on device")

    calls = before_call(call, lambda: None, fail)

    def watched(function):
        def counted(*arguments, **keywords):
            calls()
            return function(*arguments, **keywords)

        return counted

    with monkeypatch.context() as patch:
        for place, name in ((os, "fsync"), (os, "rename"), (checkpoint, "write_file"), (checkpoint, "sync")):
            patch.setattr(place, name, watched(getattr(place, name)))
        with contextlib.suppress(InvalidFile):
            checkpoint.save(small(3), tmp_path, "last", "previous")
    found = checkpoint.load(tmp_path, ("last", "previous"), print)
    assert found.state["number"] in (2, 3)
    assert not list(tmp_path.glob(".*-new"))
    # and the next save works
    checkpoint.save(small(4), tmp_path, "last", "previous")
    assert checkpoint.read(tmp_path / "last").state == {"number": 4}


def test_a_full_disk_is_one_line_and_the_earlier_checkpoint_goes_on(tmp_path, monkeypatch, whole):
    def fail():
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_file", before_call(14, checkpoint.write_file, fail))
        with pytest.raises(InvalidFile, match=r"cannot write .*: No space left on device; earlier checkpoints in .* are whole"):
            trainer(tmp_path, tiny_config(epochs=2), save_minutes=0).run()
    trainer(tmp_path, tiny_config(epochs=2)).run()
    assert weights(tmp_path) == weights(whole)


def test_a_folder_that_vanishes_is_one_line(tmp_path, monkeypatch):
    run = trainer(tmp_path / "run", tiny_config(epochs=2))
    monkeypatch.setattr(run.log, "epoch", before_call(1, run.log.epoch, lambda: shutil.rmtree(tmp_path / "run")))
    with pytest.raises(InvalidFile, match=r"the folder .*run is gone"):
        run.run()


@pytest.mark.parametrize("file", ["model.safetensors", "optimiser.safetensors", "config.json", "state.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_last_is_said_and_previous_is_used(tmp_path, whole, file, damage):
    folder, log = unfinished(whole, tmp_path / "run"), Said()
    path = folder / "last" / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    trainer(folder, tiny_config(epochs=2), log=log).run()
    assert len(log.lines) == 1
    assert "last is damaged (" in log.lines[0]
    assert log.lines[0].endswith(f"; using {folder / 'previous'}")
    assert weights(folder) == weights(whole)


def test_when_all_are_damaged_the_error_names_them(tmp_path, whole):
    folder = unfinished(whole, tmp_path / "run")
    for name in ("last", "previous"):
        (folder / name / "state.json").write_text("{}")
    with pytest.raises(InvalidFile, match=r"last is damaged .*previous is damaged .*no other checkpoint"):
        trainer(folder, tiny_config(epochs=2)).run()


def stopped(folder, epochs, monkeypatch, scores):
    """A run of three epochs that is stopped after some of them, and what its validations say."""
    found = iter(scores)
    monkeypatch.setattr(Trainer, "_evaluated", lambda self, data: {"token accuracy": next(found)})
    run = trainer(folder, save_minutes=0)
    monkeypatch.setattr(run, "_ended", lambda: run.progress.epoch >= epochs)
    monkeypatch.setattr(run, "_finish", lambda stopped: None)
    run.run()


@pytest.mark.parametrize("how", ["damaged", "gone"])
def test_a_run_goes_on_without_its_best(tmp_path, monkeypatch, how):
    stopped(tmp_path, 1, monkeypatch, [0.9, 0.2, 0.1, 0.0])
    if how == "gone":
        shutil.rmtree(tmp_path / "best")
    else:
        (tmp_path / "best/model.safetensors").write_bytes(b"")
    log = Said()
    assert trainer(tmp_path, log=log).run().best_epoch == 2
    (line,) = log.lines
    if how == "damaged":
        assert "best is damaged (" in line
        assert line.endswith("; going on without it")
    else:
        assert line == f"the best checkpoint of {tmp_path}, that of epoch 1, is not there any more; none is left"


def test_an_earlier_best_in_place_of_one_that_is_gone_is_said(tmp_path, monkeypatch):
    stopped(tmp_path, 2, monkeypatch, [0.1, 0.9, 0.0, 0.0])
    shutil.rmtree(tmp_path / "best")
    log = Said()
    assert trainer(tmp_path, log=log).run().best_epoch == 1
    assert log.lines == [f"the best checkpoint of {tmp_path}, that of epoch 2, is not there any more; that of epoch 1 is left"]


def test_a_damaged_best_falls_back_to_the_one_before(tmp_path):
    log = Said()
    checkpoint.save(small(1), tmp_path, "best", ".best-before")
    checkpoint.save(small(2), tmp_path, "best", ".best-before")
    (tmp_path / "best/model.safetensors").write_bytes(b"")
    assert checkpoint.load(tmp_path, ("best", ".best-before"), log.warn).state == {"number": 1}
    assert len(log.lines) == 1


@pytest.mark.parametrize("trained_on", [True, False])
def test_a_checkpoint_comes_back_as_it_was(tmp_path, trained_on):
    model = {"w": torch.randn(3, 2), "b": torch.tensor(2.0)}
    before = Checkpoint(model, {"rng.cpu.0": torch.get_rng_state()} if trained_on else {}, {"a": 1}, {"x": 0.1, "n": None})
    checkpoint.save(before, tmp_path, "last", "previous")
    after = checkpoint.read(tmp_path / "last")
    assert (tmp_path / "last/optimiser.safetensors").exists() == trained_on
    assert (after.config, after.state) == (before.config, before.state)
    for name in ("model", "optimiser"):
        ours, expected = getattr(after, name), getattr(before, name)
        assert ours.keys() == expected.keys()
        assert all(torch.equal(ours[key], expected[key]) for key in expected)


def test_a_state_that_was_changed_by_hand_is_damaged(tmp_path):
    checkpoint.save(small(1), tmp_path, "last", "previous")
    path = tmp_path / "last/state.json"
    path.write_text(path.read_text().replace('"number": 1', '"number": 2'))
    with pytest.raises(Damaged, match="checksum"):
        checkpoint.read(tmp_path / "last")
