"""Time a word and memory, from the 100th word of a text to the 100,000th: neither may grow.

python tools/time_generation.py                                 # a small RDN
python tools/time_generation.py --preset lm/delta-rnn --device cuda --streams 1000 --tokens 10000
"""

import argparse
import resource
import time
from itertools import islice

import torch

import rfwp
from rfwp.config import BlocksConfig, FWPConfig, ModelConfig, SequenceConfig
from rfwp.models.generate import stream
from rfwp.presets import model_config

WINDOW = 100
"""Words that a time is the median of."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=100_000)
    options = parser.parse_args()
    config = model_config(options.preset) if options.preset else small()
    model = rfwp.build(config, device=options.device).eval()
    prompt = torch.zeros(options.streams, 1, dtype=torch.long, device=options.device)
    marks = {10**n for n in range(2, 9)} | {options.tokens}
    print(f"{options.preset or 'small RDN'} on {options.device}, {options.streams} streams")
    print(f"{'word':>9}  {'ms a word':>9}  {'memory, MiB':>11}")
    times: list[float] = []
    before = time.perf_counter()
    for n, token in enumerate(islice(stream(model, prompt, seed=1), options.tokens), 1):
        # as a reader of the text does: wait for the word
        token[0].item()
        now = time.perf_counter()
        times = [*times[-WINDOW + 1 :], now - before]
        if n in marks:
            print(f"{n:>9,}  {1e3 * sorted(times)[len(times) // 2]:>9.3f}  {memory(options.device):>11.1f}", flush=True)
        before = time.perf_counter()


def small() -> ModelConfig:
    blocks = BlocksConfig(FWPConfig(slow="recurrent"), width=64, layers=2, heads=4, ff=128, wiring="lm")
    return SequenceConfig(1000, 1000, blocks, embedding=64, cutoffs=(100, 400), init="normal")


def memory(device: str) -> float:
    """Of the device now, or of the process at most so far."""
    if device.startswith("cuda"):
        return torch.cuda.memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


if __name__ == "__main__":
    main()
