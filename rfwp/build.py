"""From a preset's name to a model: where presets and models meet."""

from typing import Any

import torch

from rfwp import config as configs
from rfwp.config import ModelConfig, SequenceConfig
from rfwp.errors import InvalidInput, usable_device
from rfwp.models import Agent, SequenceModel
from rfwp.presets import model_config


def build(name_or_config: str | ModelConfig, device: torch.device | str = "cpu", **changes: Any) -> SequenceModel | Agent:
    """The model of a preset (`rfwp presets` lists them) or of a config, with some fields changed.

    >>> build("code-execution-5/rdn")
    >>> build("atari/rdn", actions=18)
    >>> build("lm/delta-mlp-b:live", device="meta", **{"core.width": 256})
    """
    config = model_config(name_or_config) if isinstance(name_or_config, str) else name_or_config
    if not isinstance(config, ModelConfig):
        raise InvalidInput(f"build takes the name of a preset or the config of a model, saw {config!r}; see: rfwp presets")
    config = configs.replace(config, changes)
    with usable_device(device):
        return SequenceModel(config) if isinstance(config, SequenceConfig) else Agent(config)
