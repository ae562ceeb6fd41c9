"""What a language model loses on a text by the age of its state: how many segments it was carried before.

python tools/state_age.py runs/lm-full-context-rdn/seed-1                    # begins with a zero state
python tools/state_age.py runs/lm-full-context-rdn/seed-1 --before 1000      # after 1,000 segments of training text

The validation or test text is read in ten streams, segment by segment as in training, with the state carried if the run carried
it and cut before each segment if not; `--before` puts segments of the training text before each stream, not counted. Prints
the perplexity, the mean loss of segments by their place in a stream, and the norm of the state at the end. Runs on the CPU.
"""

import argparse
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rfwp.config import LanguageRunConfig
from rfwp.layers.state import flat
from rfwp.lm.saved import load_language_model, text_of_run
from rfwp.train.folder import RunFolder

STREAMS = 10
PLACES = (0, 1, 4, 16, 32, 64)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="of a language model")
    parser.add_argument("--split", choices=["valid", "test"], default="valid")
    parser.add_argument("--before", type=int, default=0, help="segments of training text before each stream")
    options = parser.parse_args()
    config = RunFolder(options.run).config()
    assert isinstance(config, LanguageRunConfig)
    T, carry = config.text.segment, config.train.carry
    model, words = load_language_model(options.run)
    text = text_of_run(config, splits=("train", options.split), words=words)

    state = None
    for segment in streams(text.tokens("train"), options.before * T).split(T, 1) if carry and options.before else ():
        state = model.hidden(segment, state)[1]
    tokens = streams(text.tokens(options.split))
    losses = []
    for start in range(0, tokens.shape[1] - T, T):
        hidden, left = model.hidden(tokens[:, start : start + T], state)
        losses.append(model.nll(hidden, tokens[:, start + 1 : start + T + 1]).mean().item())
        state = left if carry else None
    norm = math.sqrt(sum(x.square().sum().item() for x in flat(left) if x.is_floating_point()) / STREAMS)
    how = f"carried, {options.before} segments before" if carry else "cut"
    parts = [(low, high, losses[low:high]) for low, high in pairwise((*PLACES, len(losses))) if losses[low:high]]
    by_place = ", ".join(f"{low}-{high - 1}: {sum(part) / len(part):.3f}" for low, high, part in parts)
    print(f"{options.split}, {how}: perplexity {math.exp(sum(losses) / len(losses)):.2f}; by segment {by_place}; norm {norm:.0f}")


def streams(tokens: np.ndarray, length: int | None = None) -> Tensor:
    """(STREAMS, length): parts that begin equally far from each other; all of the text, but for a rest, if no length is given."""
    apart = len(tokens) // STREAMS
    kept = tokens[: STREAMS * apart].reshape(STREAMS, apart)[:, :length]
    return torch.from_numpy(np.array(kept, dtype=np.int64))


if __name__ == "__main__":
    main()
