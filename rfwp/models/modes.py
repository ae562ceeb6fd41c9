"""Modes of a model: using it changes nothing about it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module, parts: Sequence[nn.Module] = ()) -> Iterator[None]:
    """Without dropout inside, and as it was after; `parts`: the model's modules, if somebody has listed them already."""
    parts = parts or tuple(model.modules())
    # a part may be in another mode than the whole
    training = [part for part in parts if part.training]
    if not training:
        yield
        return
    model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
