"""`rfwp train` and `rfwp eval` as a user sees them."""

import json
import shlex
import signal

import pytest

from rfwp.config import replace, to_dict
from rfwp.presets import run_config
from rfwp.train import Diverged, Trainer, trained
from rfwp.train.data import Data
from tests.test_cli import run
from tests.train.tiny import before_call, weights

PRESET = "code-execution-3/lstm"
SMALL = {
    "model.core.hidden": 8,
    "model.embedding": 8,
    "train.batch": 8,
    "train.epochs": 2,
    "task.train": 20,
    "task.valid": 6,
    "task.test": 6,
    "task.statements": 4,
}
SET = ["--set", *(f"{name}={value}" for name, value in SMALL.items())]
DEVICE = ["--device", "cpu"]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("RFWP_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def heard_hang_up():
    """SIGHUP as a terminal sends it: whatever started the tests may ignore it, as nohup does, and runs would, too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def train(capsys, *arguments):
    return run(capsys, "train", *map(str, arguments), *DEVICE)


def test_options_of_agents_do_not_hide_a_wrong_path(capsys, tmp_path):
    code, _, err = run(capsys, "eval", str(tmp_path / "nowhere"), "--episodes", "2", *DEVICE)
    assert code == 2
    assert "nowhere" in err


def test_train_then_eval(capsys, tmp_path):
    folder = tmp_path / "run"
    code, out, err = train(capsys, PRESET, "--out", folder, *SET)
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if line.startswith("epoch 2/2: loss ")]
    assert "sequence accuracy" in out
    assert json.loads((folder / "config.json").read_text())["run"] == to_dict(replace(run_config(PRESET), SMALL))
    result = json.loads((folder / "result.json").read_text())
    assert (result["preset"], result["seed"], result["epochs"]) == (PRESET, 1, 2)

    code, out, _ = run(capsys, "eval", str(folder), *DEVICE)
    assert code == 0
    for name, value in result["metrics"].items():
        assert any(line.split("  ")[0] == name and f"{100 * value:.2f} %" in line for line in out.splitlines())

    code, out, _ = run(capsys, "eval", str(folder), "--input", "x = 3 ; x ++ ; print x ;", *DEVICE)
    assert code == 0
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["token", "prediction", "truth"]
    assert [line[0] for line in lines[1:]] == ["x", "=", "3", ";", "x", "++", ";", "print", "x", ";"]
    assert lines[-1][2] == "4"
    assert all((line[1] == line[2]) == (line[-1] != "wrong") for line in lines[1:])


def test_several_seeds_give_a_mean_and_take_finished_ones_as_they_are(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert train(capsys, PRESET, "--seeds", 1, *SET)[0] == 0
    home = tmp_path / "runs/code-execution-3-lstm"
    before = weights(home / "seed-1"), (home / "seed-1/result.json").stat().st_mtime_ns
    code, out, _ = train(capsys, PRESET, "--seeds", 1, 2, *SET)
    assert code == 0
    assert "2 seeds: mean ± standard deviation" in out
    assert before == (weights(home / "seed-1"), (home / "seed-1/result.json").stat().st_mtime_ns)
    assert weights(home / "seed-2") != before[0]


def test_a_further_seed_goes_beside_those_that_are_there(capsys, tmp_path):
    for seeds in (["1", "2"], ["3"]):
        assert train(capsys, PRESET, "--seeds", *seeds, "--out", tmp_path, *SET)[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seed-1", "seed-2", "seed-3"]


def test_several_seeds_are_not_put_into_the_folder_of_a_run(capsys, tmp_path):
    assert train(capsys, PRESET, "--out", tmp_path, *SET)[0] == 0
    code, out, err = train(capsys, PRESET, "--seeds", "1", "2", "--out", tmp_path, *SET)
    assert (code, out) == (2, "")
    assert f"{tmp_path} holds a run itself" in err
    assert not list(tmp_path.glob("seed-*"))


def test_a_seed_that_diverges_does_not_keep_the_others_from_training(capsys, tmp_path, monkeypatch):
    def diverging(self):
        if self.config.train.seed == 2:
            raise Diverged("the loss is nan")
        return run_as_usual(self)

    run_as_usual = Trainer.run
    monkeypatch.setattr(Trainer, "run", diverging)
    home = tmp_path / "runs"
    code, out, err = train(capsys, PRESET, "--seeds", 1, 2, 3, "--out", home, *SET)
    assert code == 2
    assert f"{home / 'seed-2'}: the loss is nan" in out
    assert err.startswith("rfwp: 1 of 3 runs diverged, as said above")
    assert [(home / f"seed-{seed}/result.json").exists() for seed in (1, 2, 3)] == [True, False, True]


def test_a_folder_may_have_any_name(capsys, tmp_path):
    folder = tmp_path / "[red]x[" / "y]"
    code, out, err = train(capsys, PRESET, "--out", folder, *SET)
    assert code == 0, err
    assert out.rstrip().endswith(f"-> {folder}")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
@pytest.mark.usefixtures("heard_hang_up")
def test_a_stopped_run_says_how_to_go_on_and_does(capsys, tmp_path, monkeypatch, number, code):
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Data, "get", before_call(2, Data.get, lambda: signal.raise_signal(number)))
        stopped, out, _ = train(capsys, PRESET, "--out", folder, "--seeds", 7, *SET)
    assert stopped == code
    name = "SIGINT" if code == 130 else "SIGTERM"
    assert f"stopped by {name} in epoch 1, step 2/3, saved; go on with: rfwp train --resume {folder}" in out.splitlines()
    # another config is not this run
    other, _, err = train(capsys, "--resume", folder, "--epochs", 5)
    assert other == 2
    assert "another config: train.epochs 2 -> 5" in err
    other, _, err = train(capsys, "code-execution-3/delta-rnn", "--resume", folder)
    assert other == 2
    assert "model.core.kind lstm -> blocks" in err
    finished, out, err = train(capsys, "--resume", folder)
    assert (finished, err) == (0, "")
    assert "resumed after epoch 0, step 2" in out
    code, _, err = train(capsys, "--resume", folder)
    assert code == 2
    assert f"{folder} is finished" in err
    code, _, err = train(capsys, PRESET, "--out", folder, "--seeds", 7, *SET)
    assert code == 2
    assert "holds this run already, finished (sequence accuracy " in err


def test_the_command_that_goes_on_can_be_pasted_whatever_the_folder_is_called(capsys, tmp_path, monkeypatch):
    folder = tmp_path / "my first run"
    with monkeypatch.context() as patch:
        patch.setattr(Data, "get", before_call(2, Data.get, lambda: signal.raise_signal(signal.SIGINT)))
        out = train(capsys, PRESET, "--out", folder, *SET)[1]
    pasted = shlex.split(out.splitlines()[-1].partition("go on with: ")[2])
    assert pasted == ["rfwp", "train", "--resume", str(folder)]
    assert train(capsys, *pasted[2:])[0] == 0


def test_the_same_command_goes_on_with_the_unfinished_seeds_and_keeps_the_finished_ones(capsys, tmp_path, monkeypatch):
    command = (PRESET, "--out", tmp_path / "killed", "--seeds", 1, 2, 3, *SET)
    with monkeypatch.context() as patch:
        # two epochs of three steps and a validation, and the test: the second step of the second seed
        patch.setattr(Data, "get", before_call(11, Data.get, lambda: signal.raise_signal(signal.SIGINT)))
        assert train(capsys, *command)[0] == 130
    assert [(tmp_path / f"killed/seed-{seed}").exists() for seed in (1, 2, 3)] == [True, True, False]
    finished = (tmp_path / "killed/seed-1/result.json").stat().st_mtime_ns
    code, out, err = train(capsys, *command)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert f"{tmp_path / 'killed/seed-1'} is finished" in lines
    assert lines.count("resumed after epoch 0, step 2") == 1
    assert "3 seeds: mean ± standard deviation" in out
    assert (tmp_path / "killed/seed-1/result.json").stat().st_mtime_ns == finished
    assert train(capsys, PRESET, "--out", tmp_path / "whole", "--seeds", 2, *SET)[0] == 0
    assert weights(tmp_path / "killed/seed-2") == weights(tmp_path / "whole")
    # and once more: nothing to do
    code, again, _ = train(capsys, *command)
    assert code == 0
    assert again.count("is finished") == 3


def test_the_same_command_goes_on_with_one_run_too(capsys, tmp_path, monkeypatch):
    command = (PRESET, "--out", tmp_path / "run", *SET)
    with monkeypatch.context() as patch:
        patch.setattr(Data, "get", before_call(2, Data.get, lambda: signal.raise_signal(signal.SIGTERM)))
        assert train(capsys, *command)[0] == 143
    code, out, _ = train(capsys, *command)
    assert code == 0
    assert "resumed after epoch 0, step 2" in out.splitlines()
    code, _, err = train(capsys, *command, "train.lr=1")
    assert code == 2
    assert "another config: train.lr 0.003 -> 1" in err


def test_a_finished_run_that_torchrun_starts_again_gives_its_result(capsys, tmp_path, monkeypatch):
    """The first process may finish while another one is lost."""
    folder = tmp_path / "run"
    assert train(capsys, PRESET, "--out", folder, *SET)[0] == 0
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    code, out, _ = train(capsys, PRESET, "--out", folder, *SET)
    assert code == 0
    assert "sequence accuracy" in out


def test_ctrl_c_twice_is_no_traceback(capsys, tmp_path, monkeypatch):
    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Data, "get", before_call(2, Data.get, twice))
    code, _, err = train(capsys, PRESET, "--out", tmp_path / "run", *SET)
    assert (code, err) == (130, "rfwp: interrupted\n")


def test_own_sequences(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "mine"
    data.mkdir()
    for name in ("train", "valid", "test"):
        (data / f"{name}.src").write_text("a b c\nc a [b]\nb b\n")
        (data / f"{name}.tgt").write_text("_ X _\nX _ _\n_ Y\n")
    small = ["--set", "model.core.hidden=8", "model.embedding=8", "train.epochs=2"]
    code, _, err = train(capsys, "--data", data, "--model", PRESET, *small)
    assert (code, err) == (0, "")
    folder = tmp_path / "runs/mine-code-execution-3-lstm/seed-1"
    config = json.loads((folder / "config.json").read_text())["run"]
    assert (config["model"]["inputs"], config["model"]["outputs"]) == (4, 3)
    assert config["train"]["lr"] == 3e-3
    code, out, _ = run(capsys, "eval", str(folder), "--input", "a [b]", *DEVICE)
    assert code == 0
    assert [line.split()[::2] for line in out.splitlines()[1:]] == [["a", "?"], ["[b]", "?"]]
    # in another order of the symbols the model would take one for the other
    for name in ("train", "valid", "test"):
        (data / f"{name}.src").write_text("a b c\nc a z\nb b\n")
    code, _, err = run(capsys, "eval", str(folder), "--input", "a z", *DEVICE)
    assert code == 2
    assert "was trained on other data than the task has now" in err


def test_a_changed_task_brings_its_vocabulary(capsys, tmp_path):
    folder = tmp_path / "run"
    changes = ("task.variables=5", "train.clip=none", "task.semantics=true", "model.positions=none")
    code, _, err = train(capsys, PRESET, "--out", folder, *SET, *changes)
    assert (code, err) == (0, "")
    config = json.loads((folder / "config.json").read_text())["run"]
    assert config["model"]["inputs"] == 24
    # words stay words where a field has them among its choices
    assert (config["train"]["clip"], config["task"]["semantics"], config["model"]["positions"]) == (None, "true", "none")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["code-execution-3/lsmt"], "unknown preset 'code-execution-3/lsmt'; did you mean 'code-execution-3/lstm'?"),
        (["atari/rdn"], "an agent needs --game (Atari, such as pong) or --env"),
        ([], "train needs a preset, --data FOLDER with --model PRESET, or --resume RUN"),
        ([PRESET, "--set", "train.lrr=1"], "unknown field of TrainConfig 'lrr'; did you mean 'lr'?"),
        ([PRESET, "--set", "train.lr.x=1"], "unknown field 'x': 0.003 is a value, without fields; leave '.x' away"),
        ([PRESET, "--cuda-graph", "yes"], "cuda_graph=True needs a GPU, and this run is on cpu"),
        ([PRESET, "--set", "train.lr=fast"], "rfwp: train.lr: expected float, saw 'fast'"),
        (
            ["code-execution-3/rdn", "--set", "model.core.layer.phi=3"],
            "layer.phi: expected str, saw 3; in quotes it is one: '\"3\"'",
        ),
        ([PRESET, "--set", "train.lr"], "--set train.lr: expected name=value"),
        ([PRESET, "--set", "train.lr=NaN"], "expected a finite number"),
        ([PRESET, "--set", "train.lr=1", "train.lr=2"], "--set train.lr is there twice"),
        ([PRESET, "--set", "preset=lm/rdn"], "--set preset=lm/rdn: it says what a run was made from"),
        ([PRESET, "--set", "train.lr=1", "--set", "train.clip=2"], "--set is there twice; put all values behind one --set"),
        ([PRESET, "--set=train.lr=1", "--set=train.clip=2"], "--set is there twice; put all values behind one --set"),
        ([PRESET, "--seeds=1", "--seeds", "2"], "--seeds is there twice; put all values behind one --seeds"),
        ([PRESET, "--epochs", "0"], "train.epochs=0; use at least 1"),
        ([PRESET, "--seeds", "1", "1"], "a seed is there twice"),
        ([PRESET, "--seeds", "1", "2", "--set", "train.seed=3"], "--seeds and --set train.seed both say the seed; give one"),
        ([PRESET, "--data", "x"], "--data FOLDER and --model PRESET go together"),
        ([PRESET, "--data", "x", "--model", PRESET], "has a task of its own; give one of them"),
        (["--data", "nowhere", "--model", PRESET], "nowhere is not a folder"),
        (["--data", ".", "--model", "atari/rdn"], "does not read tokens"),
        (["--resume", "nowhere"], "nowhere is no run folder: it has no config.json"),
        (["--resume", "nowhere", "--out", "there"], "goes on in the run's own folder; leave --out away"),
        (["code-execution-3/rdn", "--set", "model.core.heads=7", "task.train=5"], "heads=7 does not divide width=256"),
        ([PRESET, "--set", "train.batch=8", "task.train=0"], "train=0 does not fit"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, out, err = train(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_eval_of_something_else_is_one_line(capsys, tmp_path):
    code, _, err = run(capsys, "eval", str(tmp_path), *DEVICE)
    assert code == 2
    assert f"{tmp_path} is no run folder" in err
    (tmp_path / "config.json").write_text(json.dumps({"rfwp": "0.1.0", "run": to_dict(replace(run_config(PRESET), SMALL))}))
    code, _, err = run(capsys, "eval", str(tmp_path), *DEVICE)
    assert code == 2
    assert "has no checkpoint yet" in err


def test_what_is_no_program_is_said_before_the_model_computes(capsys, monkeypatch):
    monkeypatch.setattr(trained, "predict", lambda *_: pytest.fail("computed"))
    code, out, err = run(capsys, "eval", "code-execution-5", "--input", "x = 3", *DEVICE)
    assert (code, out) == (2, "")
    assert "the program ends inside a statement, after '3'; expected ';'" in err
