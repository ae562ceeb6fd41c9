"""A text and a run so small that they train in a moment; `python -m tests.lm.tiny RUN TEXT name=value ...` trains it.

STOP_AT=7 makes that process raise SIGTERM before its 7th batch.
"""

import os
import random
import signal
import sys
from pathlib import Path

import torch

from rfwp.config import BlocksConfig, FWPConfig, LanguageRunConfig, LanguageTrainConfig, SequenceConfig, TextConfig, replace
from rfwp.lm.loop import LanguageTrainer
from rfwp.lm.segments import Segments
from rfwp.train import Log
from rfwp.train.distributed import leave
from tests.train.tiny import before_call

WORDS = [f"w{n}" for n in range(18)]
VOCABULARY = 20
"""With <eos> and <unk>."""
SIZES = {"train": 401, "valid": 90, "test": 70}
LAYERS = {
    "delta_net": FWPConfig(),
    "delta_rnn": FWPConfig(fast="rnn"),
    "rdn": FWPConfig(slow="recurrent", phi="softmax"),
}


def write_text(folder):
    """Each word follows from the one before, mostly; lines of some words."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in SIZES.items():
        chance = random.Random(name)
        words, last = [], 0
        for n in range(size):
            last = (last * 5 + 3) % len(WORDS) if chance.random() < 0.8 else chance.randrange(len(WORDS))
            # the last word too: every line feed ends a line
            words.append(WORDS[last] + ("\n" if n % 9 == 8 else " "))
        (folder / f"{name}.txt").write_text("".join(words) + "<unk>\n")
    return folder


def tiny_config(text, layer="rdn", dropout=0.1, preset="tiny", **changes):
    """4 streams of segments of 6; a pass has 19 steps, the last of them shorter."""
    core = BlocksConfig(LAYERS[layer], width=8, layers=2, heads=2, ff=12, dropout=dropout)
    positions = "none" if changes.get("train.carry") else "descending"
    model = SequenceConfig(
        VOCABULARY,
        VOCABULARY,
        core,
        embedding=8,
        positions=positions,
        window=6,
        cutoffs=(6, 12),
        embedding_dropout=dropout,
        init="normal",
    )
    settings = {"steps": 24, "streams": 4, "lr": 1e-2, "warmup": 3, "validate_every": 10, "precision": "fp32", "test_stride": 3}
    config = LanguageRunConfig(model, TextConfig(str(text), segment=6), LanguageTrainConfig(**settings), preset)
    return replace(config, changes)


def trainer(folder, config, **options):
    return LanguageTrainer(config, folder, device="cpu", **options)


def main():
    torch.set_num_threads(1)
    changes = {name: int(value) for name, value in (text.split("=") for text in sys.argv[3:])}
    changes = {name: bool(value) if name == "train.carry" else value for name, value in changes.items()}
    if stop := os.environ.get("STOP_AT"):
        Segments.get = before_call(int(stop), Segments.get, lambda: signal.raise_signal(signal.SIGTERM))
    trainer(sys.argv[1], tiny_config(Path(sys.argv[2]), dropout=0.0, **changes), log=Log()).run()
    leave()


if __name__ == "__main__":
    main()
