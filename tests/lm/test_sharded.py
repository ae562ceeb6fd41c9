"""`torchrun -m rfwp train ... --shard` with two processes on the CPU: the numbers of one process, whatever happens on the way."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import safetensors.torch
import torch

from rfwp.cli import main
from rfwp.errors import InvalidInput
from rfwp.lm.changes import changed
from rfwp.models import SequenceModel
from rfwp.presets import language_run
from rfwp.train import Speed
from rfwp.train.distributed import World
from rfwp.train.options import TrainOptions
from tests.test_cli import run

STEPS = 24
SETTINGS = {
    # the embedding follows
    "model.core.width": 8,
    "model.core.layers": 2,
    "model.core.heads": 2,
    # odd, so that parts are not equal
    "model.core.ff": 9,
    "model.core.dropout": 0,
    "model.embedding_dropout": 0,
    "model.head_dropout": 0,
    "model.positions": '"none"',
    "text.segment": 6,
    "train.streams": 4,
    "train.lr": 1e-2,
    "train.carry": "true",
    "train.precision": "fp32",
    "train.validate_every": 10,
}
SET = [*("--checkpoint-blocks", "--device", "cpu", "--set"), *(f"{name}={value}" for name, value in SETTINGS.items())]


def command(text, folder, *more):
    return ["train", "lm/rdn", "--text", str(text), "--steps", str(STEPS), "--out", str(folder), *more, *SET]


def two_processes(arguments, *options, **environment):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run([*torchrun, "-m", "tests.lm.sharded_run", *arguments], env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, text):
    """`one` process alone; two that are `stopped` after 10 of 24 steps, and how that goes on."""
    home = tmp_path_factory.mktemp("sharded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RFWP_CACHE", str(home / "cache"))
        with pytest.raises(SystemExit):
            main(command(text, home / "one"))
    environment = {"RFWP_CACHE": str(home / "cache")}
    said = {"stopped": two_processes(command(text, home / "stopped", "--shard"), STOP_AT="9", **environment)}
    for name in ("two", "alone"):
        shutil.copytree(home / "stopped", home / name)
    # one of them is lost in its 9th step, and torchrun starts both again
    again = command(text, home / "two", "--shard", "--save-minutes", "0")
    said["two"] = two_processes(again, "--max-restarts=1", LOSE_AT="9", **environment)
    return home, said


def curve(folder):
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(record["step"], record["loss"], record["valid"]["perplexity"]) for record in records]


def assert_same_curve(folder, expected):
    ours, wanted = curve(folder), curve(expected)
    assert [step for step, _, _ in ours] == [10, 20, 24]
    for a, b in zip(ours, wanted, strict=True):
        assert a == pytest.approx(b, rel=1e-5)


def test_two_processes_with_parts_stop_together_and_save_their_parts(runs):
    home, said = runs
    assert "each with a part of the weights" in said["stopped"].stdout
    assert f"stopped by SIGTERM after step 10/{STEPS}, saved" in said["stopped"].stdout
    files = sorted(path.name for path in (home / "stopped/last").iterdir())
    assert files == [f"shard-0000{n}-model-00001-of-00001.safetensors" for n in (1, 2)] + ["state.json"]
    assert not (home / "stopped/result.json").exists()


def test_they_go_on_although_one_is_lost_and_end_as_one_process_does(runs):
    home, said = runs
    assert said["two"].returncode == 0, said["two"].stderr
    assert f"exitcode: -{int(signal.SIGKILL)}" in said["two"].stderr
    assert "resumed after step 10/24" in said["two"].stdout
    assert "Warning" not in said["two"].stderr
    assert_same_curve(home / "two", home / "one")
    ours, wanted = (json.loads((home / name / "result.json").read_text()) for name in ("two", "one"))
    assert ours["metrics"]["perplexity"] == pytest.approx(wanted["metrics"]["perplexity"], rel=1e-5)
    assert ours["parameters"] == wanted["parameters"]
    found, expected = (safetensors.torch.load_file(home / name / "best/model.safetensors") for name in ("two", "one"))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-4, rtol=0)
    assert {"best", "last", "previous"} < {path.name for path in (home / "two").iterdir()}


def test_one_process_goes_on_with_the_run_of_two(runs, capsys, monkeypatch):
    """Its checkpoints are whole from then on; the one before is still in parts."""
    home, _ = runs
    monkeypatch.setenv("RFWP_CACHE", str(home / "cache"))
    code, out, err = run(capsys, "train", "--resume", str(home / "alone"), "--shard", "--device", "cpu")
    assert (code, err) == (0, "")
    assert "one process keeps the model whole" in out
    assert "resumed after step 10/24" in out
    assert_same_curve(home / "alone", home / "one")
    assert (home / "alone/last/model.safetensors").exists()


def test_eval_and_generate_read_the_result(runs, capsys, monkeypatch):
    home, _ = runs
    monkeypatch.setenv("RFWP_CACHE", str(home / "cache"))
    code, _, _ = run(capsys, "eval", str(home / "two"), "--device", "cpu")
    assert code == 0
    result = json.loads((home / "two/result.json").read_text())
    found = json.loads((home / "two/eval-test.json").read_text())
    assert found["perplexity"] == pytest.approx(result["metrics"]["perplexity"], rel=1e-6)
    code, out, _ = run(capsys, "generate", str(home / "two"), "--prompt", "w0 w1", "--tokens", "4", "--device", "cpu")
    assert code == 0
    assert out.startswith("w0 w1")


def changes(*texts):
    return changed(language_run("lm/rdn"), TrainOptions(set=texts)).model


def test_the_embedding_follows_the_width_unless_it_is_given():
    model = changes("model.core.width=1024", "model.core.layers=24")
    assert (model.embedding, model.core.width, model.core.layers) == (1024, 1024, 24)
    assert changes("model.core.width=64", "model.embedding=32").embedding == 32
    with pytest.raises(InvalidInput, match=r"embedding=32 differs from the blocks' width=64; make them equal"):
        SequenceModel(changes("model.core.width=64", "model.embedding=32"))


def test_cuda_graphs_and_agents_do_not_go_with_shards(capsys):
    with pytest.raises(InvalidInput, match="one process only"):
        Speed(cuda_graph=True, shard=True).resolve(World(0, 2))
    assert Speed(shard=True).resolve(World(0, 2, torch.device("cuda"))) == ("blocks", False)
    code, _, err = run(capsys, "train", "rl", "--env", "CartPole-v1", "--core", "rdn", "--shard")
    assert (code, err) == (2, "rfwp: --shard is not for agents; leave it away\n")
