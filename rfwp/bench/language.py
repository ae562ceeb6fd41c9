"""Whole training steps of Table 1's language models with the real vocabulary, on random words: no data are needed."""

import torch
from torch import Tensor

from rfwp.bench.shapes import ModelShape
from rfwp.config import BlocksConfig, SequenceConfig, replace
from rfwp.layers import FWP
from rfwp.layers.state import flat
from rfwp.lm.carried import Carried
from rfwp.models import SequenceModel
from rfwp.models.adaptive import TiedAdaptive
from rfwp.presets import WIKI_28M, model_config
from rfwp.train.step import Precision, Region, TrainStep

LANGUAGE_MODELS = {row.removeprefix("wiki-28m/").replace("-", "_"): preset for row, preset in WIKI_28M.items()}
"""The rows of Table 1; those of full context carry their state from step to step."""
CLIP = 0.25
EXPONENT, OFFSET = 1.3, 20
"""p(r) ∝ (r + OFFSET)^-EXPONENT: about 7 % of the words lie beyond the first 20,000, as in WikiText-103."""
SPARE = 1.25
"""Room for rare words over what the random batches have: in a real text they come in bursts."""


def language_config(name: str, shape: ModelShape) -> SequenceConfig:
    """A row of Table 1 in the sizes of the shape; Delta MLPs have fewer layers, as many parameters."""
    config = model_config(LANGUAGE_MODELS[name])
    assert isinstance(config, SequenceConfig) and isinstance(config.core, BlocksConfig)
    sizes = {"width": shape.width, "heads": shape.heads, "ff": shape.ff, "dropout": shape.dropout}
    sizes["layers"] = min(shape.layers, config.core.layers)
    changes = {f"core.{size}": value for size, value in sizes.items()}
    changes |= {"embedding": shape.width, "inputs": shape.vocabulary, "outputs": shape.vocabulary}
    dropout = {"embedding_dropout": shape.dropout, "head_dropout": shape.dropout}
    changed: SequenceConfig = replace(config, changes | dropout | {"cutoffs": shape.cutoffs})
    return changed


def language_sizes(name: str, shape: ModelShape) -> dict[str, int]:
    """Those of the shape, with the layers that this row has."""
    core = language_config(name, shape).core
    assert isinstance(core, BlocksConfig)
    return {**shape.sizes, "layers": core.layers}


def language_batches(shape: ModelShape, device: torch.device, n: int = 4) -> list[tuple[Tensor, Tensor]]:
    """Random words and the words after them."""
    generator = torch.Generator().manual_seed(0)
    ranks = torch.arange(1, shape.vocabulary + 1, dtype=torch.float64)
    below = ((ranks + OFFSET) ** -EXPONENT).cumsum(0)
    found = []
    for _ in range(n):
        chance = torch.rand(shape.B, shape.T + 1, generator=generator, dtype=torch.float64) * below[-1]
        words = torch.searchsorted(below, chance).clamp(max=shape.vocabulary - 1)
        found.append((words[:, :-1].contiguous().to(device), words[:, 1:].contiguous().to(device)))
    return found


def language_step(
    name: str,
    shape: ModelShape,
    device: torch.device,
    backend: str,
    lr: float,
    precision: Precision,
    region: Region,
    graph: bool,
) -> TrainStep:
    """As in training: clipped, with a bounded number of rare words, and with carried state where the row has it."""
    torch.manual_seed(0)
    model = SequenceModel(language_config(name, shape)).to(device)
    for module in model.modules():
        if isinstance(module, FWP):
            module.backend = backend
    capacity = _capacity(model, shape, device)
    carried = Carried(model, shape.B, device) if name.endswith("full_context") else None

    def loss(model: SequenceModel, tokens: Tensor, targets: Tensor) -> Tensor:
        return model.loss(tokens, targets, capacity=capacity)[0]

    def loss_and_state(
        model: SequenceModel, tokens: Tensor, targets: Tensor, state: tuple[Tensor, ...]
    ) -> tuple[Tensor, list[Tensor]]:
        assert carried is not None
        found, new = model.loss(tokens, targets, carried.nested(state), capacity=capacity)
        return found, flat(new)

    return TrainStep(
        model,
        torch.optim.Adam(model.parameters(), lr=lr, fused=True),
        loss if carried is None else loss_and_state,
        precision=precision,
        compile=region,
        cuda_graph=graph,
        clip=CLIP,
        state=None if carried is None else carried.tensors,
    )


def _capacity(model: SequenceModel, shape: ModelShape, device: torch.device) -> tuple[int, ...] | None:
    """On the CPU the numbers are asked for at each step."""
    if device.type != "cuda":
        return None
    assert isinstance(model.head, TiedAdaptive)
    counts = [model.head.count(targets) for _, targets in language_batches(shape, device)]
    return tuple(16 + int(SPARE * max(found)) for found in zip(*counts, strict=True))
