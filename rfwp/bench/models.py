"""The models whose training steps are timed, in the paper's shapes with a tiny vocabulary; and the floor under them."""

from typing import Any

import torch
from torch import Tensor, nn

from rfwp.bench.shapes import ModelShape
from rfwp.config import AttentionConfig, BlocksConfig, FWPConfig, LSTMConfig, SequenceConfig
from rfwp.errors import unknown
from rfwp.layers import FWP, Block
from rfwp.models import SequenceModel
from rfwp.presets import DELTA_NET, DELTA_RNN, LINEAR_TRANSFORMER, RDN

INPUTS, OUTPUTS = 24, 26
"""Vocabularies of code execution."""

MODELS: dict[str, FWPConfig | AttentionConfig | LSTMConfig] = {
    "floor": DELTA_NET,
    "linear_transformer": LINEAR_TRANSFORMER,
    "delta_net": DELTA_NET,
    "delta_rnn": DELTA_RNN,
    "rdn": RDN,
    "delta_lstm": FWPConfig(fast="lstm"),
    "transformer": AttentionConfig(),
    "lstm": LSTMConfig(256),
}


class Product(nn.Module):
    """y = W_o (q ⊙ k ⊙ v): a Delta Net without its fast weights, what is left when the op costs nothing."""

    def __init__(self, layer: FWP):
        super().__init__()
        self.slow, self.out, self.head_size = layer.slow, layer.out, layer.head_size

    def forward(self, x: Tensor, state: Any = None, reset: Tensor | None = None) -> tuple[Tensor, Any]:
        u, _ = self.slow(x, {}, reset)
        q, k, v = u[..., : 3 * self.head_size].chunk(3, dim=-1)  # B T H d
        return self.out((q * k * v).flatten(-2)), {}


def build_model(name: str, shape: ModelShape, device: torch.device, backend: str = "auto") -> SequenceModel:
    """One of MODELS, the same weights every time."""
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    torch.manual_seed(0)
    layer = MODELS[name]
    if isinstance(layer, LSTMConfig):
        config = SequenceConfig(INPUTS, OUTPUTS, layer, embedding=128)
    else:
        core = BlocksConfig(layer, shape.width, shape.layers, shape.heads, shape.ff, shape.dropout)
        config = SequenceConfig(INPUTS, OUTPUTS, core, embedding=shape.width)
    model = SequenceModel(config)
    for module in model.modules():
        if isinstance(module, FWP):
            module.backend = backend
    if name == "floor":
        for module in list(model.modules()):
            if isinstance(module, Block):
                assert isinstance(module.layer, FWP)
                module.layer = Product(module.layer)
    return model.to(device)


def batches(shape: ModelShape, device: torch.device, n: int = 4) -> list[tuple[Tensor, Tensor]]:
    """Random tokens and targets."""
    generator = torch.Generator().manual_seed(0)

    def draw(size: int) -> Tensor:
        return torch.randint(0, size, (shape.B, shape.T), generator=generator).to(device)

    return [(draw(INPUTS), draw(OUTPUTS)) for _ in range(n)]


def loss_of(model: SequenceModel, tokens: Tensor, targets: Tensor) -> Tensor:
    return model.loss(tokens, targets)[0]
