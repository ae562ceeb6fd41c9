"""The models that the page shows: a packaged one, the best checkpoint of a run, or any saved model."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rfwp.config import CodeExecutionConfig, ListOpsConfig, RunConfig, SequenceConfig, replace
from rfwp.errors import InvalidFile, InvalidInput, unknown
from rfwp.models import SequenceModel, load
from rfwp.tasks import CodeExecution, ListOps, load_task
from rfwp.tasks.code_execution import VARIABLES
from rfwp.trace import trace
from rfwp.train.checkpoint import BEST, EARLIER_BEST
from rfwp.train.checkpoint import load as load_checkpoint
from rfwp.train.folder import RunFolder
from rfwp.train.model import check_fits, load_weights

log = logging.getLogger("rfwp")

PACKAGED = "code-execution-5"
SEMANTICS = ("authors", "true")
CODE, LISTS = "code-execution", "listops"
_SYMBOLS_WITHOUT_VARIABLES, _VALUES = 19, 26
_LIST_SYMBOLS, _DIGITS = 14, 10


@dataclass(frozen=True)
class Shown:
    """A model under the name that the page knows it by, and the task that it was trained on."""

    name: str
    model: SequenceModel
    task: CodeExecution | ListOps

    @property
    def kind(self) -> str:
        return CODE if isinstance(self.task, CodeExecution) else LISTS


def load_all(arguments: Sequence[str], semantics: str | None = None) -> dict[str, Shown]:
    """The models of the command line by name, in order; the packaged one if none was given."""
    if semantics is not None and semantics not in SEMANTICS:
        raise unknown("semantics", semantics, SEMANTICS)
    shown: dict[str, Shown] = {}
    for argument in arguments or (PACKAGED,):
        model, task = _load(argument)
        _check(argument, model)
        if semantics is not None and isinstance(task, CodeExecution):
            task = CodeExecution(replace(task.config, {"semantics": semantics}))
        name = _free_name(Path(argument), shown)
        shown[name] = Shown(name, model.eval(), task)
    return shown


def _load(argument: str) -> tuple[SequenceModel, CodeExecution | ListOps]:
    folder = Path(argument)
    if _is_run(folder):
        return _load_run(folder)
    model = load(argument)
    if not isinstance(model, SequenceModel):
        raise InvalidInput(f"{argument} holds an agent; play shows models that read programs or lists")
    return model, _find_task(argument, model.config)


def _is_run(folder: Path) -> bool:
    """A run's config.json holds a run, a saved model's holds a model; what is broken is left to the one who loads it."""
    try:
        data = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and "run" in data


def _load_run(folder: Path) -> tuple[SequenceModel, CodeExecution | ListOps]:
    config = RunFolder(folder).config()
    if not isinstance(config, RunConfig) or not isinstance(config.task, CodeExecutionConfig | ListOpsConfig):
        kind = type(getattr(config, "task", config)).__name__.removesuffix("Config")
        raise InvalidInput(f"{folder} is a run of kind {kind}; play shows runs of code execution and ListOps")
    task: Any = load_task(config.task)
    best = load_checkpoint(folder, (BEST, EARLIER_BEST), log.warning)
    if best is None:
        raise InvalidFile(f"{folder} has no checkpoint yet: it appears after the first epoch")
    check_fits(config.model, task)
    model = SequenceModel(config.model)
    load_weights(model, best.model, folder)
    return model, task


def _find_task(argument: str, config: SequenceConfig) -> CodeExecution | ListOps:
    """A saved model does not say what it was trained on; the sizes of its vocabularies do."""
    variables = config.inputs - _SYMBOLS_WITHOUT_VARIABLES
    if config.outputs == _VALUES and 1 <= variables <= len(VARIABLES):
        return CodeExecution(CodeExecutionConfig(variables))
    if (config.inputs, config.outputs) == (_LIST_SYMBOLS, _DIGITS):
        return ListOps(ListOpsConfig())
    raise InvalidInput(
        f"{argument} reads {config.inputs} symbols and says {config.outputs}: neither code execution nor ListOps; "
        "give a model of one of these, or the folder of its run"
    )


def _check(argument: str, model: SequenceModel) -> None:
    """A model without fast weights is refused at the start, not at the first click."""
    try:
        trace(model, [0])
    except InvalidInput as error:
        raise InvalidInput(f"{argument}: {error}") from None


def _free_name(path: Path, taken: dict[str, Shown]) -> str:
    """The folder's name; the run's where the folder is its checkpoint; with a number where that is taken."""
    path = path.resolve() if path.is_dir() else path
    base = path.parent.name if path.name == BEST else path.name
    # seeds of one run lie in folders called seed-1, seed-2, ...
    base = f"{path.parent.name}-{path.name}" if path.name.startswith("seed-") else base
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    return name
