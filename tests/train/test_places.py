"""Own sequences that have moved since a run began."""

import json
import shutil
import signal

import pytest

from rfwp.config import replace
from rfwp.errors import InvalidInput
from rfwp.train import Trainer
from rfwp.train.data import Data
from rfwp.train.folder import RunFolder
from tests.test_cli import run
from tests.train.tiny import before_call, weights

MODEL = "code-execution-3/lstm"
SET = ["--set", "model.core.hidden=8", "model.embedding=8", "train.epochs=2", "train.batch=2"]
DEVICE = ["--device", "cpu"]
SOURCE = "a b c\nc a b\nb b\na c c c\n"
TARGET = "_ X _\nX _ _\n_ Y\n_ _ Y X\n"


def write(folder, source=SOURCE, target=TARGET):
    folder.mkdir()
    for name in ("train", "valid", "test"):
        (folder / f"{name}.src").write_text(source)
        (folder / f"{name}.tgt").write_text(target)
    return folder


def train(capsys, *arguments):
    return run(capsys, "train", *map(str, arguments), *DEVICE)


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def place(folder):
    return json.loads((folder / "config.json").read_text())["run"]["task"]["folder"]


@pytest.fixture
def stopped(capsys, tmp_path, monkeypatch):
    """A run that was stopped in its first epoch, and its data, which moved to `new`."""
    data, folder = write(tmp_path / "old"), tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Data, "get", before_call(2, Data.get, lambda: signal.raise_signal(signal.SIGTERM)))
        assert train(capsys, "--data", data, "--model", MODEL, "--out", folder, *SET)[0] == 143
    data.rename(tmp_path / "new")
    return folder


def test_a_run_whose_data_moved_ends_with_the_bits_of_one_whose_data_did_not(capsys, tmp_path, stopped):
    before = json.loads((stopped / "config.json").read_text())
    code, out, err = train(capsys, "--resume", stopped, "--data", tmp_path / "new")
    assert (code, err) == (0, "")
    assert "resumed after epoch 0, step 2" in out.splitlines()
    assert place(stopped) == str(tmp_path / "new")
    # nothing else of it has changed
    after = json.loads((stopped / "config.json").read_text())
    after["run"]["task"]["folder"] = before["run"]["task"]["folder"]
    assert after == before
    assert train(capsys, "--data", tmp_path / "new", "--model", MODEL, "--out", tmp_path / "whole", *SET)[0] == 0
    for name in ("last", "best"):
        assert weights(stopped, name) == weights(tmp_path / "whole", name)
    results = [json.loads((folder / "result.json").read_text()) for folder in (stopped, tmp_path / "whole")]
    assert results[0]["metrics"] == results[1]["metrics"]
    assert results[0]["config"] == results[1]["config"]
    code, out, err = run(capsys, "eval", str(stopped), *DEVICE)
    assert (code, err) == (0, "")


def test_the_next_resume_needs_no_option(capsys, tmp_path, monkeypatch, stopped):
    # named from elsewhere, and kept as a place that holds everywhere
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Data, "get", before_call(1, Data.get, lambda: signal.raise_signal(signal.SIGTERM)))
        assert train(capsys, "--resume", stopped, "--data", "new")[0] == 143
    assert place(stopped) == str(tmp_path / "new")
    assert train(capsys, "--resume", stopped)[0] == 0


def test_the_preset_may_be_named_too(capsys, tmp_path, stopped):
    same = ("--resume", stopped, "--data", tmp_path / "new", "--model", MODEL)
    code, _, err = train(capsys, *same, *SET[:-1], "train.batch=3")
    assert code == 2
    assert "another config: train.batch 2 -> 3; use another folder" in err
    assert train(capsys, *same, *SET)[0] == 0


def test_data_that_are_not_there_are_one_line_that_names_the_option(capsys, stopped):
    before = content(stopped)
    for command in (("train", "--resume", str(stopped)), ("eval", str(stopped)), ("eval", str(stopped), "--input", "a b")):
        if command[0] == "eval":
            # as after a first epoch
            shutil.copytree(stopped / "last", stopped / "best", dirs_exist_ok=True)
        code, _, err = run(capsys, *command, *DEVICE)
        assert code == 2
        assert "old is not a folder" in err
        assert "(the data of the run; if they have moved, name their place: --data FOLDER)" in err
        assert len(err.splitlines()) == 1
        shutil.rmtree(stopped / "best", ignore_errors=True)
    assert content(stopped) == before


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (SOURCE.replace("c a b", "c b a"), TARGET),
        # more symbols than the model has
        (SOURCE + "z\n", TARGET + "Z\n"),
        (SOURCE.replace("c", "b"), TARGET),
    ],
    ids=["order", "more", "fewer"],
)
def test_other_data_are_refused_and_nothing_is_written(capsys, tmp_path, stopped, source, target):
    other, before = write(tmp_path / "other", source, target), content(stopped)
    code, _, err = train(capsys, "--resume", stopped, "--data", other)
    assert code == 2
    assert err == f"rfwp: {stopped} was trained on other data than the task has now; use another folder\n"
    shutil.copytree(stopped / "last", stopped / "best")
    code, _, err = run(capsys, "eval", str(stopped), "--data", str(other), *DEVICE)
    assert code == 2
    assert "was trained on other data" in err
    shutil.rmtree(stopped / "best")
    assert content(stopped) == before


def test_eval_takes_data_at_their_new_place_and_leaves_the_run_as_it_is(capsys, tmp_path):
    data, folder = write(tmp_path / "old"), tmp_path / "run"
    assert train(capsys, "--data", data, "--model", MODEL, "--out", folder, *SET)[0] == 0
    here = [run(capsys, "eval", str(folder), *more, *DEVICE) for more in ((), ("--input", "a b"))]
    data.rename(tmp_path / "new")
    before = content(folder)
    there = ["--data", str(tmp_path / "new")]
    moved = [run(capsys, "eval", str(folder), *more, *there, *DEVICE) for more in ((), ("--input", "a b"))]
    assert moved == here
    assert [code for code, _, _ in moved] == [0, 0]
    assert content(folder) == before


def test_the_command_that_began_a_run_says_how_to_go_on_with_moved_data(capsys, tmp_path, stopped):
    code, _, err = train(capsys, "--data", tmp_path / "new", "--model", MODEL, "--out", stopped, *SET)
    assert code == 2
    assert f"task.folder {tmp_path / 'old'} -> {tmp_path / 'new'}; use another folder, or, if these are its data, --resume" in err


def test_data_that_nothing_vouches_for_are_refused(capsys, tmp_path, stopped):
    path = stopped / "config.json"
    saved = json.loads(path.read_text())
    del saved["data"]
    path.write_text(json.dumps(saved))
    code, _, err = train(capsys, "--resume", stopped, "--data", tmp_path / "new")
    assert code == 2
    assert f"another config: task.folder {tmp_path / 'old'} -> {tmp_path / 'new'}" in err
    assert place(stopped) == str(tmp_path / "old")


def test_a_trainer_goes_on_with_moved_data_and_with_no_others(tmp_path, stopped):
    config = replace(RunFolder(stopped).config(), {"task.folder": str(tmp_path / "new")})
    assert Trainer(config, stopped, device="cpu").run().stopped is None
    assert place(stopped) == str(tmp_path / "new")
    other = write(tmp_path / "other", SOURCE.replace("c a b", "c b a"))
    with pytest.raises(InvalidInput, match="was trained on other data"):
        Trainer(replace(config, {"task.folder": str(other)}), stopped, device="cpu")


def test_generated_data_have_no_place(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("RFWP_CACHE", str(tmp_path / "cache"))
    small = ["task.train=8", "task.valid=4", "task.test=4", "task.statements=3"]
    folder, data = tmp_path / "run", write(tmp_path / "mine")
    assert train(capsys, MODEL, "--out", folder, *SET, *small)[0] == 0
    for command in (
        ["train", "--resume", folder, "--data", data],
        ["train", MODEL, "--resume", folder, "--data", data],
        ["eval", folder, "--data", data],
        ["eval", "code-execution-5", "--data", data],
    ):
        code, _, err = run(capsys, *map(str, command), *DEVICE)
        assert (code, err) == (
            2,
            "rfwp: --data is where your own sequences lie, but those of this run are generated; leave it away\n",
        )
    for command, message in (
        (["train", "--resume", folder, "--text", data], "are for language models"),
        (["train", "--resume", folder, "--model", MODEL], "--data FOLDER and --model PRESET go together"),
        (["eval", folder, "--held-out", data], "--stride, --text and --held-out are for language models; leave them away"),
    ):
        code, _, err = run(capsys, *map(str, command), *DEVICE)
        assert code == 2
        assert message in err
        assert len(err.splitlines()) == 1
