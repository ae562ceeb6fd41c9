"""Cores: what stands between a model's input and its heads. One contract for all, those without memory included.

Every core has `outputs`, the size of its output, and `y, state = core(x, state=None, reset=None)`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rfwp.config import AttentionConfig, BlocksConfig, CoreConfig, FWPConfig, HighwayConfig, LSTMConfig, NoCoreConfig
from rfwp.errors import InvalidInput
from rfwp.fwp import Composition
from rfwp.layers.attention import Attention
from rfwp.layers.block import Block
from rfwp.layers.fwp import FWP
from rfwp.layers.lstm import LSTM
from rfwp.layers.state import Stepwise, check_input


class Core(Stepwise):
    """x (B, T, inputs), reset (B, T) -> y (B, T, outputs) and the state after the last step."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.inputs, self.outputs = inputs, outputs


class Stack(Core):
    """Blocks one after the other; the state is the tuple of the states of their layers.

    With `checkpoint_blocks` a training step keeps the inputs of the blocks only, and the backward pass computes what is inside
    of a block once more: less memory for more time, the same numbers.
    """

    def __init__(self, config: BlocksConfig):
        super().__init__(config.width, config.width)
        self.checkpoint_blocks = False
        if config.layers < 1:
            raise InvalidInput(f"blocks: layers={config.layers}; use at least 1")
        self.blocks = nn.ModuleList(
            Block(build_layer(config), config.width, config.ff, config.dropout, config.wiring) for _ in range(config.layers)
        )
        if config.alike:
            for block in self.blocks[1:]:
                block.load_state_dict(self.blocks[0].state_dict())
        self.norm = nn.LayerNorm(config.width) if config.final_norm else nn.Identity()

    def forward(self, x: Tensor, state: tuple | None = None, reset: Tensor | None = None) -> tuple[Tensor, tuple]:
        states = (None,) * len(self.blocks) if state is None else state
        if not isinstance(states, tuple | list) or len(states) != len(self.blocks):
            seen = f"of {len(states)} layers" if isinstance(states, tuple | list) else f"a {type(states).__name__}"
            raise InvalidInput(
                f"blocks: this state is {seen}; the model has {len(self.blocks)} layers, it comes from another model"
            )
        check_input("blocks", x, self.inputs, reset, next(self.parameters()))
        new = []
        for block, old in zip(self.blocks, states, strict=True):
            if self.checkpoint_blocks and torch.is_grad_enabled():
                x, after = checkpoint(block, x, old, reset, use_reentrant=False)
            else:
                x, after = block(x, old, reset)
            new.append(after)
        return self.norm(x), tuple(new)


class LSTMCore(Core):
    """nn.LSTM layers; the state is the dict of `rfwp.layers.LSTM`."""

    def __init__(self, config: LSTMConfig, inputs: int):
        super().__init__(inputs, config.hidden)
        self.layer = LSTM(inputs, config.hidden, config.layers)

    def forward(self, x: Tensor, state: Any = None, reset: Tensor | None = None) -> tuple[Tensor, Any]:
        return self.layer(x, state, reset)


class NoCore(Core):
    """y = x: no memory, so its state is (), whatever resets say."""

    def forward(self, x: Tensor, state: Any = None, reset: Tensor | None = None) -> tuple[Tensor, Any]:
        if state is not None and not (isinstance(state, tuple) and len(state) == 0):
            raise InvalidInput("this core has no memory and its state is (); the given state comes from another model")
        weight = next(self.parameters(), x)
        check_input("core", x, self.inputs, reset, weight)
        return self.map(x), ()

    def map(self, x: Tensor) -> Tensor:
        return x


class Highway(NoCore):
    """y = t ⊙ tanh(W_h x + b_h) + c ⊙ (W_p x + b_p),  t = σ(W_t x + b_t),  c = σ(W_c x + b_c)

    The general highway layer, with a projection of x where sizes differ. The paper gives only its size (1.7 M
    parameters in all) and the authors' code has none; four maps give that size.
    """

    def __init__(self, config: HighwayConfig, inputs: int):
        super().__init__(inputs, config.hidden)
        if config.hidden < 1:
            raise InvalidInput(f"highway: hidden={config.hidden}; use at least 1")
        self.maps = nn.Linear(inputs, 4 * config.hidden)

    def map(self, x: Tensor) -> Tensor:
        h, p, t, c = self.maps(x).chunk(4, dim=-1)
        return t.sigmoid() * torch.tanh(h) + c.sigmoid() * p


def build_layer(config: BlocksConfig) -> nn.Module:
    """The layer of one block that mixes time."""
    layer = config.layer
    if isinstance(layer, AttentionConfig):
        return Attention(config.width, config.heads, bias=layer.bias, dropout=layer.dropout, window=layer.window)
    if isinstance(layer, FWPConfig):
        composition = Composition(layer.slow, layer.rule, layer.fast, layer.phi)  # type: ignore[arg-type]
        return FWP(composition, config.width, config.heads, scale_output=layer.scale_output, output_dropout=layer.output_dropout)
    raise InvalidInput(f"blocks: layer is {type(layer).__name__}, expected FWPConfig or AttentionConfig")


def build_core(config: CoreConfig, inputs: int) -> Core:
    """The core that a config describes, for inputs of that size."""
    if isinstance(config, BlocksConfig):
        if config.width != inputs:
            raise InvalidInput(f"blocks of width={config.width} cannot take inputs of size {inputs}; make them equal")
        return Stack(config)
    if isinstance(config, LSTMConfig):
        return LSTMCore(config, inputs)
    if isinstance(config, HighwayConfig):
        return Highway(config, inputs)
    if isinstance(config, NoCoreConfig):
        return NoCore(inputs, inputs)
    raise InvalidInput(f"core is {type(config).__name__}, expected BlocksConfig, LSTMConfig, HighwayConfig or NoCoreConfig")
