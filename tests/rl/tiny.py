"""An agent's run so small that it trains in a moment; `python -m tests.rl.tiny FOLDER` trains it in a process of its own.

LOSE=1 makes torchrun's process 1 kill itself with SIGKILL in its fifth update, at its first start only.
"""

import os
import signal
import sys
from dataclasses import replace

import torch

from rfwp.config import AgentConfig, ImpalaConfig, LSTMConfig, MemoryGameConfig, RLRunConfig
from rfwp.rl.learner import Learner
from rfwp.rl.trainer import RLTrainer
from rfwp.train import Log
from rfwp.train.distributed import leave
from tests.train.tiny import before_call

CATCH = AgentConfig(actions=3, vector=50, features=16, core=LSTMConfig(8))


def tiny_config(**impala):
    """Eight unrolls of five steps an update."""
    settings = {"steps": 400, "unroll": 5, "batch": 8, "environments": 16, "lr": 3e-3, "precision": "fp32", **impala}
    return RLRunConfig(CATCH, MemoryGameConfig("catch"), ImpalaConfig(**settings), "tiny")


def trainer(folder, config=None, **options):
    return RLTrainer(config or tiny_config(), folder, device="cpu", **options)


def main():
    torch.set_num_threads(1)
    if os.environ.get("LOSE") == os.environ.get("RANK") and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
        Learner.clip = before_call(5, Learner.clip, lambda: os.kill(os.getpid(), signal.SIGKILL))
    config = tiny_config()
    mode = replace(config.impala, mode=sys.argv[2])
    trainer(sys.argv[1], replace(config, impala=mode), log=Log(), save_minutes=0).run()
    leave()


if __name__ == "__main__":
    main()
