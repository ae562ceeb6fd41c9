"""A residual block: a layer that mixes time, then a feedforward net that does not."""

from typing import Any, get_args

import torch
from torch import Tensor, nn

from rfwp.config import Wiring
from rfwp.errors import InvalidInput, check_probability, unknown
from rfwp.layers.lstm import LSTM
from rfwp.layers.state import Stepwise, check_input


class FeedForward(nn.Sequential):
    """FF(x) = Drop(W_2 Drop(relu(W_1 x + b_1)) + b_2)"""

    def __init__(
        self,
        width: int,
        ff: int,
        dropout: float = 0.0,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(
            nn.Linear(width, ff, device=device, dtype=dtype),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(ff, width, device=device, dtype=dtype),
            nn.Dropout(dropout),
        )


class Block(Stepwise):
    """Where the norms stand:

    pre   a = x + Drop(layer(LN(x))),      y = a + FF(LN(a))      (algorithmic tasks, Atari)
    post  a = LN(x + Drop(layer(x))),      y = LN(a + FF(a))      (Transformer on algorithmic tasks, full-context LMs)
    lm    a = LN(x) + Drop(layer(LN(x))),  y = a + FF(LN(a))      (language models)

    Differs from the paper: it says that all models are pre-norm. In the authors' code the language models take the
    residual from the normalised input (lm), and the Transformer on algorithmic tasks and the full-context language models
    are post-norm.
    Differs from the authors' code: their softmax attention in pre-norm language models takes queries and residual from x,
    and only keys and values from LN(x); here a layer has one input.

    Any module with `y, state = layer(x, state, reset)` can be the layer; its state is the block's state.
    """

    def __init__(
        self,
        layer: nn.Module,
        width: int,
        ff: int,
        dropout: float = 0.0,
        wiring: Wiring = "pre",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if wiring not in get_args(Wiring):
            raise unknown("wiring", wiring, get_args(Wiring))
        if width < 1 or ff < 1:
            raise InvalidInput(f"Block: width={width} and ff={ff} must both be at least 1")
        check_probability("Block", "dropout", dropout)
        if not isinstance(layer, nn.Module):
            raise InvalidInput(f"Block: layer is {layer!r}, expected a module; try Block(FWP({layer!r}, width, heads), ...)")
        # not asked of other layers, where such names may mean anything
        for size in ("inputs", "hidden") if isinstance(layer, LSTM) else ("width",):
            if getattr(layer, size, width) != width:
                raise InvalidInput(f"Block: width={width} but its layer has {size}={getattr(layer, size)}; make them equal")
        # exact types: a subclass may take resets
        if type(layer) in (nn.LSTM, nn.GRU, nn.RNN):
            raise InvalidInput(f"Block: nn.{type(layer).__name__} takes no resets; try Block(rfwp.LSTM(width, width), ...)")
        self.wiring = wiring
        self.layer = layer
        self.dropout = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(width, device=device, dtype=dtype)
        self.ff = FeedForward(width, ff, dropout, device=device, dtype=dtype)
        self.ff_norm = nn.LayerNorm(width, device=device, dtype=dtype)

    def forward(self, x: Tensor, state: Any = None, reset: Tensor | None = None) -> tuple[Tensor, Any]:
        """x (B, T, width), reset (B, T) -> y (B, T, width) and the layer's state after the last step."""
        # before the norm, which would not say it so clearly
        check_input("Block", x, self.layer_norm.normalized_shape[0], reset, self.layer_norm.weight)
        if self.wiring == "post":
            mixed, state = self.layer(x, state, reset)
            a = self.layer_norm(x + self.dropout(mixed))
            return self.ff_norm(a + self.ff(a)), state
        normed = self.layer_norm(x)
        mixed, state = self.layer(normed, state, reset)
        a = (normed if self.wiring == "lm" else x) + self.dropout(mixed)
        return a + self.ff(self.ff_norm(a)), state

    def extra_repr(self) -> str:
        return f"wiring={self.wiring}"
