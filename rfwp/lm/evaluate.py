"""How well a language model predicts a text: quickly while it trains, and by the paper's protocol at the end."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rfwp.config import LanguageRunConfig
from rfwp.models import SequenceModel
from rfwp.models.perplexity import Perplexity, full_context, sliding_window
from rfwp.train.distributed import World
from rfwp.train.step import precision_of

STREAMS = 10
"""Streams of a validation with carried state, as in the authors' code."""
WINDOWS = 256
"""Windows that are computed at once."""

Progress = Callable[[int, int], None]


def on_device(tokens: np.ndarray, device: torch.device) -> Tensor:
    """The ids of a split as the models want them; a copy, for a file cannot be written to."""
    return torch.from_numpy(np.array(tokens, dtype=np.int64)).to(device)


def quick_perplexity(model: SequenceModel, tokens: Tensor, config: LanguageRunConfig, world: World | None = None) -> Perplexity:
    """As in training: segments that are cut, or streams with carried state. The processes of a world share them."""
    segment, world = config.text.segment, world or World()
    share = world.rank, world.size
    with precision_of(config.train.precision, tokens.device):
        if config.train.carry:
            streams = min(STREAMS, max(1, len(tokens) // segment))
            found = full_context(model, tokens, segment, streams, share=share)
        else:
            found = sliding_window(model, tokens, segment, stride=segment, batch=config.train.streams, share=share)
    return _of_all(found, world)


def paper_perplexity(
    model: SequenceModel,
    tokens: Tensor,
    config: LanguageRunConfig,
    stride: int = 1,
    progress: Progress | None = None,
    world: World | None = None,
) -> Perplexity:
    """The paper's protocol: windows that slide by one word, or the whole text from its first word on with carried state.

    The processes of a world share the windows. One text from its first word on cannot be shared: they compute it side by side.
    """
    segment, world = config.text.segment, world or World()
    share = world.rank, world.size
    with precision_of(config.train.precision, tokens.device):
        if config.train.carry:
            found = full_context(model, tokens, segment, progress=progress, share=share)
        else:
            found = sliding_window(model, tokens, segment, stride, WINDOWS, progress, share)
    return _of_all(found, world)


def _of_all(found: Perplexity, world: World) -> Perplexity:
    """What all processes have counted; each adds it up in the same order, so that they agree to the last bit."""
    return Perplexity(*(torch.stack(world.gather(part)).sum(0) for part in (found.sums, found.counts)))
