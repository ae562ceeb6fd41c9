"""Everything that decides a result: what is trained, on what, and how."""

from dataclasses import dataclass

from rfwp.config.models import AgentConfig, SequenceConfig
from rfwp.config.tasks import EnvironmentConfig, TaskConfig, TextConfig
from rfwp.config.training import ImpalaConfig, LanguageTrainConfig, TrainConfig


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a result: model, task and training."""

    model: SequenceConfig
    task: TaskConfig
    train: TrainConfig = TrainConfig()
    preset: str = ""
    """The preset that this run was made from."""


@dataclass(frozen=True)
class LanguageRunConfig:
    """Everything that decides the result of a language model: model, text and training."""

    model: SequenceConfig
    text: TextConfig = TextConfig()
    train: LanguageTrainConfig = LanguageTrainConfig()
    preset: str = ""
    """The preset that this run was made from."""


@dataclass(frozen=True)
class RLRunConfig:
    """Everything that decides the training of an agent: agent, environment and IMPALA's settings."""

    agent: AgentConfig
    environment: EnvironmentConfig
    impala: ImpalaConfig = ImpalaConfig()
    preset: str = ""
    """The preset that this run was made from."""


AnyRunConfig = RunConfig | LanguageRunConfig | RLRunConfig

PLACES = ("task.folder", "text.source", "text.held_out", "text.vocabulary")
"""The fields that only say where the data of a run are: it is the same run when they have moved."""
