"""Modes of a model: using it changes nothing about it."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout inside, and as it was after."""
    if not model.training:
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()
