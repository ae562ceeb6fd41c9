"""The examples in examples/ run, tell what they promise and leave their files behind."""

import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rfwp.config import MemoryGameConfig
from rfwp.report.records import read_file
from rfwp.tasks.environments import make

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = ["--statements", "4", "--train", "64", "--test", "8", "--epochs", "2"]


@pytest.fixture
def demo(tmp_path, monkeypatch, capsys):
    """Runs a tiny demo in an empty folder and gives its exit code and what it printed."""
    monkeypatch.setenv("RFWP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    main = runpy.run_path(str(EXAMPLES / "code_execution.py"))["main"]

    def run(*more):
        code = 0
        try:
            main([*SMALL, *more])
        except SystemExit as leaving:
            code = leaving.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_demo_trains_both_models_and_leaves_a_report_with_its_plot(demo):
    code, out, _ = demo()
    assert code == 0
    report = Path("runs/demo/report")
    page = (report / "report.md").read_text(encoding="utf-8")
    assert "| Delta RNN |" in page
    assert "| Linear Transformer |" in page
    assert "![learning curves](learning-curves.png)" in page
    assert (report / "learning-curves.png").read_bytes().startswith(b"\x89PNG")
    assert [run.preset for run in read_file(report / "runs.jsonl")] == ["demo/delta-rnn", "demo/linear-transformer"]
    assert str(report / "report.md") in out
    assert str(Path("runs/demo/delta-rnn/best")) in out
    assert "epoch 2/2" in out


def test_demo_shows_what_both_models_say_at_every_token(demo):
    _, out, _ = demo()
    lines = out.splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith("statement")) + 1
    steps = lines[first : lines.index("", first)]
    # four statements, each ends with a semicolon; the last one always prints
    assert sum(" ;  " in line for line in steps) >= 4
    assert len(steps) >= 4 * 3
    assert "wrong" in out


def test_demo_that_is_finished_shows_the_same_again_without_training(demo):
    _, first, _ = demo()
    checkpoints = [Path("runs/demo", name, "last/state.json") for name in ("delta-rnn", "linear-transformer")]
    written = [path.stat().st_mtime_ns for path in checkpoints]
    code, again, _ = demo()
    assert code == 0
    assert again.count("trained before") == 2
    assert written == [
        Path("runs/demo", name, "last/state.json").stat().st_mtime_ns for name in ("delta-rnn", "linear-transformer")
    ]
    shown = first.index("token by token")
    assert again[again.index("token by token") :] == first[shown:]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_demo_goes_on_after_ctrl_c(demo, number):
    """Ctrl-C for the first process; it passes it on, and both runs are saved."""
    command = [sys.executable, str(EXAMPLES / "code_execution.py"), *SMALL, "--epochs", "200"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "epoch 3/200" in line:
            break
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "the same command goes on" in err
    assert not Path("runs/demo/delta-rnn/result.json").exists()
    code, out, _ = demo("--epochs", "200")
    assert code == 0
    assert "Delta RNN: resumed after epoch" in out
    assert Path("runs/demo/report/report.md").exists()


def test_demo_leaves_a_run_with_other_settings_alone(demo):
    demo()
    code, _, err = demo("--epochs", "3")
    assert code == 2
    assert "holds a run of another config: train.epochs 2 -> 3" in err


def test_associative_recall_trains_and_compares_both_models(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["associative_recall.py", "--steps", "2"])
    runpy.run_path(str(EXAMPLES / "associative_recall.py"), run_name="__main__")
    out = capsys.readouterr().out
    assert "Recall accuracy" in out
    assert "Not trained long enough." in out


def test_recurrent_ppo_solves_its_game_with_fast_weights(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["recurrent_ppo.py", "--core", "rdn", "--updates", "60", "--length", "3"])
    runpy.run_path(str(EXAMPLES / "recurrent_ppo.py"), run_name="__main__")
    assert capsys.readouterr().out.splitlines()[-1] == "solved"


def test_recurrent_ppo_goes_on_where_no_game_of_some_updates_ended(capsys):
    runpy.run_path(str(EXAMPLES / "recurrent_ppo.py"))["train"]("none", updates=3, length=40, seed=1)
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("core", ["rdn", "delta_rnn", "delta_net", "lstm", "none"])
def test_recurrent_ppo_learns_from_the_numbers_that_it_played_with(core):
    """Whole unrolls in one call, episodes beginning inside, give the log probabilities of playing step by step."""
    example = runpy.run_path(str(EXAMPLES / "recurrent_ppo.py"))
    torch.manual_seed(0)
    games = make(MemoryGameConfig("recall", length=3), 8)
    model = example["ActorCritic"](example["make_core"](core), games.shape[0], games.actions)
    player = example["Player"](model, games, seed=1)
    for _ in range(2):
        unroll = player.unroll()
        assert unroll.begins[:, 1:].any()
        logits, value, _ = model(unroll.observation, unroll.state, unroll.begins)
        again = torch.distributions.Categorical(logits=logits).log_prob(unroll.action)
        torch.testing.assert_close(again, unroll.log_prob, atol=1e-5, rtol=0)
        torch.testing.assert_close(value, unroll.value, atol=1e-5, rtol=0)
