"""What to learn: sequences of tokens with a target at some or all of their positions. Knows nothing of models."""

from pathlib import Path

from rfwp.config import CodeExecutionConfig, FilesConfig, ListOpsConfig, TaskConfig
from rfwp.errors import InvalidInput
from rfwp.tasks.code_execution import CodeExecution
from rfwp.tasks.files import Files
from rfwp.tasks.listops import ListOps
from rfwp.tasks.types import SPLITS, Split, Task, Vocabulary

__all__ = ["SPLITS", "CodeExecution", "Files", "ListOps", "Split", "Task", "Vocabulary", "load_task"]


def load_task(config: TaskConfig, cache: Path | None = None) -> Task:
    """The task of a config. Generated data are kept in `cache`, by default $RFWP_CACHE or ~/.cache/rfwp/data."""
    if isinstance(config, CodeExecutionConfig):
        return CodeExecution(config, cache)
    if isinstance(config, ListOpsConfig):
        return ListOps(config, cache)
    if isinstance(config, FilesConfig):
        return Files(config)
    raise InvalidInput(f"{type(config).__name__} is not a task; use CodeExecutionConfig, ListOpsConfig or FilesConfig")
