"""`torchrun ... -m tests.lm.sharded_run ARGUMENTS`: `rfwp ARGUMENTS` in each process.

STOP_AT=7 makes every process raise SIGTERM before its 7th batch; LOSE_AT=7 kills process 1 there, at its first start only.
"""

import os
import signal
import sys

import torch

from rfwp.cli import main
from rfwp.lm.segments import Segments
from tests.train.tiny import before_call


def interrupt():
    if stop := os.environ.get("STOP_AT"):
        Segments.get = before_call(int(stop), Segments.get, lambda: signal.raise_signal(signal.SIGTERM))
    lost = os.environ["RANK"] == "1" and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    if (lose := os.environ.get("LOSE_AT")) and lost:
        Segments.get = before_call(int(lose), Segments.get, lambda: os.kill(os.getpid(), signal.SIGKILL))


if __name__ == "__main__":
    torch.set_num_threads(1)
    interrupt()
    main(sys.argv[1:])
