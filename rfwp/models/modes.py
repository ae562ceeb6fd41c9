"""Modes of a model: using it changes nothing about it."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout inside, and as it was after."""
    if not any(module.training for module in model.modules()):
        yield
        return
    # a part may have been in another mode than the whole
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
