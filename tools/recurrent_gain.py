"""How a small difference of y grows through a Delta RNN's y_t = z_t + R_t softmax(y_{t-1}), with its state carried and cut.

python tools/recurrent_gain.py runs/lm-full-context-delta-rnn/seed-1

R depends on the input alone, so a difference of y_{t-1} reaches y_t through R_t (diag(s) - s s'), s = softmax(y_{t-1}). Where a
product of 256 of them is above 1, gradients grow the longer they go back. Prints, for some segments of the run's training text:
the mean loss; that product as a power of ten, in the mean of all heads and layers and at most; the norms of R and of the values
that are written; and the variance of recurrent keys, in the middle one of their directions. Runs on the CPU.
"""

import argparse
import math
from pathlib import Path

import torch
from torch import Tensor

import rfwp.layers.fwp
from rfwp.config import LanguageRunConfig
from rfwp.fwp.rules import Delta
from rfwp.lm.saved import load_language_model, text_of_run
from rfwp.train.folder import RunFolder

SEGMENTS = (0, 1, 4, 16, 64, 128, 256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="of a Delta RNN on text")
    parser.add_argument("--streams", type=int, default=4, help="of those that the run read")
    options = parser.parse_args()
    config = RunFolder(options.run).config()
    assert isinstance(config, LanguageRunConfig)
    model, words = load_language_model(options.run)
    tokens = torch.tensor(text_of_run(config, splits=("train",), words=words).tokens("train")).long()
    T, length = config.text.segment, len(tokens) // config.train.streams
    streams = tokens[: config.train.streams * length].view(-1, length)[: options.streams]
    carried = None
    for n in range(SEGMENTS[-1] + 1):
        segment = streams[:, n * T : n * T + T + 1]
        if segment.shape[1] <= T:
            break
        for name, state in (("carried", carried), ("cut", None)):
            if name == "carried" or n in SEGMENTS:
                line, new = measured(model, segment, state, n in SEGMENTS)
                carried = new if name == "carried" else carried
            if n in SEGMENTS:
                print(f"segment {n}, {name}: {line}", flush=True)


@torch.no_grad()
def measured(model, segment: Tensor, state, look: bool):
    """One line about a segment, and the state after it."""
    calls, plain = [], rfwp.layers.fwp.ops.delta_rnn

    def seen(z: Tensor, k: Tensor, v: Tensor, beta: Tensor, **more):
        calls.append((z, k, v, beta, *more["state"]))
        return plain(z, k, v, beta, **more)

    rfwp.layers.fwp.ops.delta_rnn = seen
    try:
        hidden, new = model.hidden(segment[:, :-1], state)
    finally:
        rfwp.layers.fwp.ops.delta_rnn = plain
    if not look:
        return "", new
    growths, norms, values, spreads = zip(*(gain(*call) for call in calls), strict=True)
    growth = torch.stack(growths) / math.log(10)
    numbers = [torch.stack(found).mean() for found in (norms, values, spreads)]
    loss = model.nll(hidden, segment[:, 1:]).mean()
    text = f"loss {loss:.3f}; growth 10^{growth.mean():.0f}, at most 10^{growth.max():.1f}; "
    return text + "norm of R {:.1f}, values {:.2f}, variance of keys {:.1e}".format(*numbers), new


def gain(z: Tensor, k: Tensor, v: Tensor, beta: Tensor, R: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of one layer: the logarithm of the growth (B, H); the mean spectral norm of R at the end, values' size, keys' variance."""
    z, k, v, beta, R, y = (x.double() for x in (z, k, v, beta, R, y))
    torch.manual_seed(0)
    u, total = torch.randn_like(y), torch.zeros(y.shape[:2], dtype=torch.float64)
    for t in range(z.shape[1]):
        R = Delta().update(R, k[:, t], v[:, t], beta[:, t])
        s = y.softmax(-1)
        y = z[:, t] + torch.einsum("bhij,bhj->bhi", R, s)
        u = torch.einsum("bhij,bhj->bhi", R, s * (u - (s * u).sum(-1, keepdim=True)))
        size = u.norm(dim=-1, keepdim=True).clamp(min=1e-300)
        u, total = u / size, total + size.log().squeeze(-1)
    away = k - k.mean((0, 1))
    variances = torch.linalg.eigvalsh(torch.einsum("bthi,bthj->hij", away, away) / (k.shape[0] * k.shape[1]))
    return total, torch.linalg.matrix_norm(R, 2).mean(), v.square().mean().sqrt(), variances.median()


if __name__ == "__main__":
    main()
