"""How well a language model predicts one long sequence of tokens: in sliding windows, or with all that went before.

>>> result = sliding_window(model, tokens, window=256)      # tokens (N,) long, on the model's device
>>> result.perplexity, result.count                         # over N - 1 targets
>>> result.by_position                                      # mean -log p at each position of the window, for a plot

Several processes share the work: share=(1, 4) does the second quarter of it, the sums and counts of all add up to the whole, and
every process calls the model as often as the others, as a model in parts needs it.

Neither looks at precision: put autocast around the call. Results stay on the device until the end, so on a GPU
`progress(done, total)` counts the targets whose work has been handed over.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rfwp.errors import InvalidInput, check_shapes
from rfwp.layers.state import detach
from rfwp.models.modes import evaluating
from rfwp.models.sequence import SequenceModel

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Perplexity:
    """-log p by position in the window or segment: sums (window,) in float64 and how many targets each is over, on the CPU."""

    sums: Tensor
    counts: Tensor

    @property
    def nll(self) -> float:
        """Σ -log p over all targets, in nats."""
        return self.sums.sum().item()

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        return self.nll / self.count

    @property
    def perplexity(self) -> float:
        """exp(mean -log p), infinite where that is beyond all numbers."""
        return math.inf if self.mean >= 700 else math.exp(self.mean)

    @property
    def by_position(self) -> Tensor:
        """Mean -log p at each position; NaN where no target was counted."""
        return self.sums / self.counts


@torch.no_grad()
def sliding_window(
    model: SequenceModel,
    tokens: Tensor,
    window: int = 256,
    stride: int = 1,
    batch: int = 256,
    progress: Progress | None = None,
    share: tuple[int, int] = (0, 1),
) -> Perplexity:
    """Windows that start `stride` apart, each from a zero state: the first counts all its positions, the others their last ones.

    With stride=1 every target but the first ones is predicted from exactly `window` tokens, as the paper evaluates models of
    limited context; a larger stride is that much cheaper, and stride=window gives the loss at every position of a window.
    Every target counts once: the last window ends with the tokens and counts what the one before has left.
    `batch` windows are computed at once, and only what counts goes through the head. The same batches are computed however many
    processes share them.
    """
    total = _check(tokens, window=window, stride=stride, batch=batch)
    if stride > window:
        raise InvalidInput(f"sliding_window: stride={stride} leaves out tokens between windows of {window}; use at most {window}")
    length = min(window, total)
    inputs, targets = tokens[:-1].unfold(0, length, 1), tokens[1:].unfold(0, length, 1)
    work = _windows(total, length, stride, batch)
    rank, size = share
    mine = work[rank::size]
    tally = _Tally(model, window, sum(rows * last for _, rows, last in mine), progress)
    with evaluating(model):
        for places, _, last in mine:
            tally.add(inputs[places], targets[places], last)
        # where the others have one batch more
        if len(mine) < -(-len(work) // size):
            tally.add(inputs[:1], torch.full_like(targets[:1], -1), 1)
    return tally.result()


def _windows(total: int, length: int, stride: int, batch: int) -> list[tuple[slice, int, int]]:
    """Batches of windows: where they start, how many they are, and how many of their last positions count."""
    work = [(slice(0, 1), 1, length)]
    # the ends of what is counted: `stride` apart, the last at the end of the tokens
    whole, rest = divmod(total - length, stride)
    for first in range(0, whole, batch):
        end = min(first + batch, whole)
        work.append((slice((first + 1) * stride, end * stride + 1, stride), end - first, stride))
    if rest:
        work.append((slice(total - length, None), 1, rest))
    return work


@torch.no_grad()
def full_context(
    model: SequenceModel,
    tokens: Tensor,
    segment: int = 256,
    streams: int = 1,
    progress: Progress | None = None,
    share: tuple[int, int] = (0, 1),
) -> Perplexity:
    """Segments one after the other, each from the state that the one before has left: every target is predicted from all before.

    The tokens are cut into `streams` contiguous parts that go side by side, each from a zero state; 1 is the paper's way.
    Processes share the streams, so one stream is never quicker with several of them.
    The state of attention without a window grows with the tokens.
    """
    total = _check(tokens, segment=segment, streams=streams)
    if streams > total:
        raise InvalidInput(f"full_context: streams={streams} are more than the {total} targets; use fewer")
    length = -(-total // streams)
    inputs, targets = _cut(tokens[:-1], streams, length, 0), _cut(tokens[1:], streams, length, -1)
    rank, size = share
    first, end = (-(-streams * n // size) for n in (rank, rank + 1))
    if first == end:
        # nothing is left for this process: it computes what does not count
        first, end, targets = 0, 1, torch.full_like(targets, -1)
    inputs, targets = inputs[first:end], targets[first:end]
    tally = _Tally(model, segment, int((targets >= 0).sum()), progress)
    state = None
    with evaluating(model):
        for start in range(0, length, segment):
            part = slice(start, start + segment)
            state = detach(tally.add(inputs[:, part], targets[:, part], segment, state))
    return tally.result()


class _Tally:
    """Runs the model over some rows, and adds up -log p by position on its device."""

    def __init__(self, model: SequenceModel, positions: int, total: int, progress: Progress | None):
        self.model, self.total, self.progress, self.done = model, total, progress, 0
        device = next(model.parameters()).device
        self.sums = torch.zeros(positions, dtype=torch.float64, device=device)
        self.counts = torch.zeros(positions, dtype=torch.long, device=device)

    def add(self, inputs: Tensor, targets: Tensor, last: int, state: Any = None) -> Any:
        """Count the last positions of inputs (B, T) and targets (B, T), those of targets -1 left out; the state comes back."""
        hidden, state = self.model.hidden(inputs, state)
        hidden, targets = hidden[:, -last:], targets[:, -last:]
        counted = targets >= 0
        nll = self.model.nll(hidden, targets.clamp(min=0)).masked_fill(~counted, 0)
        end = inputs.shape[1]
        places = slice(end - targets.shape[1], end)
        self.sums[places] += nll.sum(0, dtype=torch.float64)
        self.counts[places] += counted.sum(0)
        self.done = min(self.total, self.done + targets.numel())
        if self.progress is not None:
            self.progress(self.done, self.total)
        return state

    def result(self) -> Perplexity:
        return Perplexity(self.sums.cpu(), self.counts.cpu())


def _cut(tokens: Tensor, streams: int, length: int, fill: int) -> Tensor:
    """(N,) -> (streams, length), filled up at the end."""
    return F.pad(tokens, (0, streams * length - len(tokens)), value=fill).view(streams, length)


def _check(tokens: Tensor, **sizes: int) -> int:
    """The number of targets."""
    check_shapes("perplexity", {"tokens": (tokens, "N")})
    if len(tokens) < 2:
        raise InvalidInput("perplexity: one token predicts nothing; give at least two")
    for name, size in sizes.items():
        if size < 1:
            raise InvalidInput(f"perplexity: {name}={size}; use at least 1")
    return len(tokens) - 1
