"""How well a language model predicts a text: quickly while it trains, and by the paper's protocol at the end."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from rfwp.config import LanguageRunConfig
from rfwp.models import SequenceModel
from rfwp.models.perplexity import Perplexity, full_context, sliding_window
from rfwp.train.step import Precision, switched

STREAMS = 10
"""Streams of a validation with carried state, as in the authors' code."""
WINDOWS = 256
"""Windows that are computed at once."""

Progress = Callable[[int, int], None]


def on_device(tokens: np.ndarray, device: torch.device) -> Tensor:
    """The ids of a split as the models want them; a copy, for a file cannot be written to."""
    return torch.from_numpy(np.array(tokens, dtype=np.int64)).to(device)


def quick_perplexity(model: SequenceModel, tokens: Tensor, config: LanguageRunConfig) -> Perplexity:
    """As in training: segments that are cut, or streams with carried state."""
    segment = config.text.segment
    with precision_of(config.train.precision, tokens.device):
        if config.train.carry:
            return full_context(model, tokens, segment, streams=min(STREAMS, max(1, len(tokens) // segment)))
        return sliding_window(model, tokens, segment, stride=segment, batch=config.train.streams)


def paper_perplexity(
    model: SequenceModel, tokens: Tensor, config: LanguageRunConfig, stride: int = 1, progress: Progress | None = None
) -> Perplexity:
    """The paper's protocol: windows that slide by one word, or the whole text from its first word on with carried state."""
    segment = config.text.segment
    with precision_of(config.train.precision, tokens.device):
        if config.train.carry:
            return full_context(model, tokens, segment, progress=progress)
        return sliding_window(model, tokens, segment, stride, WINDOWS, progress)


@contextmanager
def precision_of(precision: Precision, device: torch.device) -> Iterator[None]:
    with switched(precision), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        yield
