"""Fast weight programmers in PyTorch: neural nets whose slow net rewrites, at every time step, the weights of a fast net.

>>> layer = rfwp.FWP("rdn", width=256, heads=16)            # a drop-in for nn.LSTM
>>> y, state = layer(x, state, reset)
>>> model = rfwp.build("code-execution-5/delta-rnn")        # a row of a table of the paper
>>> rfwp.Composition("recurrent", "delta", "lstm").name     # any slow net × update rule × fast net
"""

from rfwp.build import build
from rfwp.errors import RFWPError
from rfwp.fwp import ZOO, Composition
from rfwp.layers import FWP, LSTM, Attention, Block, detach, select
from rfwp.models import Agent, SequenceModel, load
from rfwp.presets import presets
from rfwp.trace import trace
from rfwp.version import __version__

__all__ = [
    "FWP",
    "LSTM",
    "ZOO",
    "Agent",
    "Attention",
    "Block",
    "Composition",
    "RFWPError",
    "SequenceModel",
    "__version__",
    "build",
    "detach",
    "load",
    "presets",
    "select",
    "trace",
]
