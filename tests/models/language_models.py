"""Tiny language models of every kind: each name of the zoo, attention with and without a window, an LSTM."""

import torch

from rfwp.config import AttentionConfig, BlocksConfig, FWPConfig, LSTMConfig, SequenceConfig
from rfwp.fwp import ZOO
from rfwp.models import SequenceModel

VOCABULARY, WIDTH, WINDOW = 23, 8, 8


def blocks(layer):
    return BlocksConfig(layer=layer, width=WIDTH, layers=2, heads=2, ff=10, dropout=0.3)


CORES = {name: blocks(FWPConfig(**composition.specification())) for name, composition in ZOO.items()} | {
    "attention": blocks(AttentionConfig()),
    "attention_window": blocks(AttentionConfig(window=5)),
    "lstm": LSTMConfig(hidden=WIDTH),
}


def language_model(core="rdn", adaptive=True, dtype=torch.float64, **changes):
    """In training mode, with dropout and positions."""
    options = {"embedding": WIDTH, "positions": "descending", "window": WINDOW, "cutoffs": (5, 9, 20) if adaptive else ()}
    torch.manual_seed(0)
    return SequenceModel(SequenceConfig(VOCABULARY, VOCABULARY, CORES[core], **options | changes)).to(dtype)


def random_tokens(*shape):
    return torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(1))
