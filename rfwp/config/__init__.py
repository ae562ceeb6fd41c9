"""Configs: frozen dataclasses that are at once command-line flags, config.json beside the weights, and the key of a result.

The text under a field is its help. A config knows nothing of the code that it configures.
"""

from rfwp.config.changes import differences, parse_changes, replace
from rfwp.config.models import (
    AgentConfig,
    AgentInit,
    AttentionConfig,
    BlocksConfig,
    CoreConfig,
    FWPConfig,
    HighwayConfig,
    LSTMConfig,
    ModelConfig,
    NoCoreConfig,
    SequenceConfig,
    StemName,
    Wiring,
)
from rfwp.config.plain import check_fields, from_dict, to_dict
from rfwp.config.runs import PLACES, AnyRunConfig, LanguageRunConfig, RLRunConfig, RunConfig
from rfwp.config.tasks import (
    AtariConfig,
    CodeExecutionConfig,
    EnvironmentConfig,
    FilesConfig,
    GymConfig,
    ListOpsConfig,
    MemoryGameConfig,
    TaskConfig,
    TextConfig,
)
from rfwp.config.training import ImpalaConfig, LanguageTrainConfig, Recipe, TrainConfig

__all__ = [
    "PLACES",
    "AgentConfig",
    "AgentInit",
    "AnyRunConfig",
    "AtariConfig",
    "AttentionConfig",
    "BlocksConfig",
    "CodeExecutionConfig",
    "CoreConfig",
    "EnvironmentConfig",
    "FWPConfig",
    "FilesConfig",
    "GymConfig",
    "HighwayConfig",
    "ImpalaConfig",
    "LSTMConfig",
    "LanguageRunConfig",
    "LanguageTrainConfig",
    "ListOpsConfig",
    "MemoryGameConfig",
    "ModelConfig",
    "NoCoreConfig",
    "RLRunConfig",
    "Recipe",
    "RunConfig",
    "SequenceConfig",
    "StemName",
    "TaskConfig",
    "TextConfig",
    "TrainConfig",
    "Wiring",
    "check_fields",
    "differences",
    "from_dict",
    "parse_changes",
    "replace",
    "to_dict",
]
