"""Several processes under torchrun train as one does, also when one of them is lost on the way."""

import os
import signal
import subprocess
import sys

import pytest
import safetensors.torch
import torch

from rfwp.errors import InvalidInput
from rfwp.train import Speed
from rfwp.train.distributed import World, join
from tests.train.test_loop import without_times
from tests.train.tiny import tiny_config, trainer, weights


def test_two_processes_train_as_one_does_although_one_is_killed_on_the_way(tmp_path):
    """18 epochs of 3 steps; process 1 is lost in its 20th step, and torchrun starts both again."""
    one, two = tmp_path / "one", tmp_path / "two"
    trainer(one, tiny_config(dropout=0.0, epochs=18)).run()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    lose = {"KILL_AT": "step:26", "LOSE": "1", "OMP_NUM_THREADS": "1"}
    run = [*torchrun, "-m", "tests.train.tiny", str(two), "epochs=18"]
    done = subprocess.run(run, env=os.environ | lose, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"-{int(signal.SIGKILL)}" in done.stderr
    for ours, expected in zip(without_times(two), without_times(one), strict=True):
        assert ours["epoch"] == expected["epoch"]
        assert ours["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    trained, expected = safetensors.torch.load(weights(two)), safetensors.torch.load(weights(one))
    for name in expected:
        torch.testing.assert_close(trained[name], expected[name], atol=1e-4, rtol=0)
    assert (two / "result.json").exists()


def test_a_process_alone_agrees_with_itself():
    world = World()
    assert world.agree(15, step=3, last=9) == 15
    assert torch.equal(world.gather(torch.ones(2))[0], torch.ones(2))
    assert join(torch.device("cpu")) == world


def test_processes_that_read_other_data_are_noticed(tmp_path, monkeypatch):
    assert World().first_that_differs("data") is None
    monkeypatch.setattr(World, "gather", lambda self, tensor: [tensor, tensor, tensor + 1])
    assert World().first_that_differs("data") == 2
    with pytest.raises(InvalidInput, match="process 2 reads other data or words than the first one"):
        trainer(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_cuda_graphs_are_for_one_process():
    with pytest.raises(InvalidInput, match="one process only"):
        Speed(cuda_graph=True).resolve(World(0, 2))
    assert Speed().resolve(World(0, 1, torch.device("cuda"))) == ("blocks", True)
    assert Speed().resolve(World(0, 2, torch.device("cuda"))) == ("blocks", False)
    assert Speed().resolve(World()) == ("no", False)
    # many lengths: compiled once for all of them
    assert Speed().resolve(World(0, 1, torch.device("cuda")), lengths=15) == ("lengths", True)
    with pytest.raises(InvalidInput, match="exclude each other"):
        Speed(cuda_graph=True, checkpoint_blocks=True).resolve(World())
    with pytest.raises(InvalidInput, match="needs a GPU, and this run is on cpu"):
        Speed(cuda_graph=True).resolve(World())
    assert Speed(checkpoint_blocks=True).resolve(World(0, 1, torch.device("cuda"))) == ("blocks", False)
