"""Several processes under torchrun train as one does; a process that is lost costs what came after the last checkpoint."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from rfwp.config import ImpalaConfig, MemoryGameConfig, RLRunConfig
from rfwp.errors import InvalidInput
from rfwp.rl.shares import shares
from rfwp.train.checkpoint import read
from rfwp.train.distributed import World
from tests.rl.tiny import CATCH, tiny_config, trainer

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]


def torchrun(folder, mode, **variables):
    run = [*TORCHRUN, "-m", "tests.rl.tiny", str(folder), mode]
    return subprocess.run(run, env=os.environ | {"OMP_NUM_THREADS": "1", **variables}, capture_output=True, text=True)


def test_two_processes_with_half_the_batch_each_train_as_one_does(tmp_path):
    result = trainer(tmp_path / "one", tiny_config(mode="lockstep")).run()
    assert result.updates == 10
    done = torchrun(tmp_path / "two", "lockstep")
    assert done.returncode == 0, done.stderr
    one, two = (read(tmp_path / name / "last") for name in ("one", "two"))
    assert two.state["steps"] == one.state["steps"] == 400
    for name, weights in one.model.items():
        torch.testing.assert_close(two.model[name], weights, atol=1e-5, rtol=0)


def test_a_lost_process_is_started_again_from_the_last_checkpoint_in_free_mode(tmp_path):
    done = torchrun(tmp_path, "free", LOSE="1")
    assert done.returncode == 0, done.stderr
    assert f"-{int(signal.SIGKILL)}" in done.stderr
    result = trainer(tmp_path, tiny_config()).run()
    assert (result.steps, result.updates) == (400, 10)
    assert [record["steps"] for record in trainer(tmp_path).folder.records()][-1] == 400


@pytest.mark.parametrize(
    ("impala", "size", "message"),
    [
        ({"batch": 7}, 2, "impala.batch=7 cannot be shared by 2 processes; use a multiple of that"),
        ({"environments": 90}, 4, "impala.environments=90 cannot be shared by 2 groups in each of 4 processes"),
        ({"environments": 15}, 1, "impala.environments=15 cannot be shared by 2 groups"),
        ({"environments": 640}, 4, "160 environments with 8 unrolls an update have a lag above max_lag=4; use at most 32, or"),
    ],
)
def test_what_cannot_be_shared_is_one_line(impala, size, message):
    config = RLRunConfig(CATCH, MemoryGameConfig("catch"), ImpalaConfig(**impala))
    with pytest.raises(InvalidInput) as caught:
        shares(config, World(0, size))
    assert str(caught.value).startswith(message)
