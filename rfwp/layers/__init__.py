"""Layers with one contract: `y, state = layer(x, state=None, reset=None)`, and `layer.step` for one step."""

from rfwp.layers.attention import Attention
from rfwp.layers.block import Block
from rfwp.layers.fwp import FWP
from rfwp.layers.lstm import LSTM
from rfwp.layers.state import detach, select

__all__ = ["FWP", "LSTM", "Attention", "Block", "detach", "select"]
