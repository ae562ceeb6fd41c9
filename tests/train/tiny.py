"""A task and a run so small that they train in a moment; `python -m tests.train.tiny FOLDER` trains it in a process of its own.

KILL_AT=fsync:5 or rename:3 or step:7 makes that process kill itself with SIGKILL just before its nth such call;
LOSE=1 makes torchrun's process 1 do so at its first start only. PACKED=1: the run of `packed_trainer`.
"""

import dataclasses
import os
import signal
import sys
from pathlib import Path

import torch

from rfwp.config import BlocksConfig, CodeExecutionConfig, FWPConfig, LSTMConfig, RunConfig, SequenceConfig, TrainConfig
from rfwp.tasks import Split, Vocabulary
from rfwp.tasks.types import tally, tally_sequences
from rfwp.train import Log, Speed, Trainer
from rfwp.train.data import Data
from rfwp.train.distributed import leave

SYMBOLS = 5


class Tiny:
    """At every token, the sum of the last two, modulo 5."""

    config = CodeExecutionConfig()
    source = target = Vocabulary("01234")
    score = "token accuracy"

    def __init__(self, train=22, valid=9, test=7):
        self.sizes = {"train": train, "valid": valid, "test": test}

    def split(self, name):
        generator = torch.Generator().manual_seed(sum(map(ord, name)))
        N = self.sizes[name]
        lengths = torch.randint(2, 13, (N,), generator=generator, dtype=torch.int32)
        tokens = torch.randint(0, SYMBOLS, (N, 12), generator=generator)
        inside = torch.arange(12) < lengths.unsqueeze(1)
        tokens = torch.where(inside, tokens, 0)
        targets = torch.where(inside, (tokens + tokens.roll(1, 1)) % SYMBOLS, -1)
        return Split(tokens.to(torch.uint8), targets.to(torch.int8), lengths)

    def count(self, predictions, targets):
        return {
            "token accuracy": tally(predictions == targets, targets >= 0),
            "sequence accuracy": tally_sequences(predictions, targets),
        }

    def encode(self, text):
        return torch.tensor(self.source.encode(text.split()))

    def truth(self, text):
        return None


def tiny_config(core="lstm", dropout=0.2, **train):
    """22 sequences in batches of 8: three steps an epoch, the last one smaller."""
    cores = {
        "lstm": LSTMConfig(hidden=8),
        "delta_rnn": BlocksConfig(FWPConfig(fast="rnn"), width=8, layers=1, heads=2, ff=16, dropout=dropout),
    }
    model = SequenceConfig(SYMBOLS, SYMBOLS, cores[core], embedding=8, embedding_dropout=dropout)
    settings = {"epochs": 3, "batch": 8, "lr": 1e-2, "precision": "fp32", **train}
    return RunConfig(model, Tiny.config, TrainConfig(**settings), "tiny")


def trainer(folder, config=None, task=None, **options):
    return Trainer(config or tiny_config(), folder, device="cpu", task=task or Tiny(), **options)


def packed_trainer(folder, config=None, pack=True, **options):
    """A Delta RNN on 70 sequences in batches of 48: two steps an epoch, of at most 16 of 24 rows in each of two processes."""
    config = config or tiny_config("delta_rnn", batch=48)
    return trainer(folder, config, Tiny(train=70), speed=Speed(pack=pack), **options)


def weights(folder, name="last"):
    return (Path(folder) / name / "model.safetensors").read_bytes()


def before_call(n, call, act):
    """`call`, but `act` comes just before the nth one."""
    count = 0

    def counted(*arguments, **keywords):
        nonlocal count
        count += 1
        if count == n:
            act()
        return call(*arguments, **keywords)

    return counted


def main():
    torch.set_num_threads(1)
    what, _, n = os.environ.get("KILL_AT", "").partition(":")
    lost = os.environ.get("LOSE") == os.environ.get("RANK") and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
    if what and (lost or "LOSE" not in os.environ):
        place, name = (Data, "get") if what == "step" else (os, what)
        setattr(place, name, before_call(int(n), getattr(place, name), lambda: os.kill(os.getpid(), signal.SIGKILL)))
    changes = {name: int(value) for name, value in (text.split("=") for text in sys.argv[2:])}
    packed = "PACKED" in os.environ
    base = tiny_config("delta_rnn" if packed else "lstm", dropout=0.0 if "RANK" in os.environ else 0.2)
    config = dataclasses.replace(base, train=dataclasses.replace(base.train, **changes))
    # a checkpoint after every step: there is much to interrupt
    (packed_trainer if packed else trainer)(sys.argv[1], config, log=Log(), save_minutes=0).run()
    leave()
    # a thread of gloo that is left can abort the process while the interpreter ends
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    assert not [name for name in names if "gloo" in name], names


if __name__ == "__main__":
    main()
