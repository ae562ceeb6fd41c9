"""How a language model learns: its settings checked, and the learning rate of each step."""

import math

from rfwp.config import AttentionConfig, BlocksConfig, LanguageRunConfig, LanguageTrainConfig
from rfwp.errors import InvalidInput
from rfwp.train.optim import check_adam, check_counts


def learning_rate(train: LanguageTrainConfig, step: int) -> float:
    """lr · t / warmup for t = step + 1 up to warmup, then lr · (1 + cos(π t / steps)) / 2

    Differs from the authors' code: there the rate is set after a step, so the first one has the full rate.
    """
    t = step + 1
    if t <= train.warmup:
        return train.lr * t / train.warmup
    return train.lr * (1 + math.cos(math.pi * t / train.steps)) / 2


def check_language_training(config: LanguageRunConfig) -> None:
    """Settings that cannot work, in one line."""
    train, core = config.train, config.model.core
    check_counts(train, "steps", "streams", "accumulate", "validate_every", "test_stride")
    check_adam(train)
    if config.text.segment < 1:
        raise InvalidInput(f"text.segment={config.text.segment}; use at least 1")
    if not 0 <= train.warmup < train.steps:
        raise InvalidInput(f"train.warmup={train.warmup} of {train.steps} steps; use 0 to {train.steps - 1}")
    if train.test_stride > config.text.segment:
        raise InvalidInput(
            f"train.test_stride={train.test_stride} leaves out words between windows of {config.text.segment};"
            f" use at most {config.text.segment}"
        )
    if train.carry and isinstance(core, BlocksConfig) and isinstance(core.layer, AttentionConfig):
        raise InvalidInput("train.carry=true needs a state of fixed size, and that of attention grows; use train.carry=false")
