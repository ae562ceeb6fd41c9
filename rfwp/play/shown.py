"""The models that the page shows: a packaged one, the best checkpoint of a run, or any saved model; agents with their games."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rfwp.config import (
    CodeExecutionConfig,
    EnvironmentConfig,
    LanguageRunConfig,
    ListOpsConfig,
    RLRunConfig,
    RunConfig,
    SequenceConfig,
    replace,
)
from rfwp.errors import InvalidInput, unknown
from rfwp.lm.saved import load_language_model
from rfwp.models import Agent, SequenceModel, load
from rfwp.models.packaged import PRETRAINED
from rfwp.models.pretrained import WORDS, locate
from rfwp.tasks import CodeExecution, ListOps, load_task
from rfwp.tasks.code_execution import VARIABLES
from rfwp.tasks.words import Words
from rfwp.trace import check_fast_weights
from rfwp.train.checkpoint import BEST
from rfwp.train.folder import RESULT, RunFolder, read_run_config
from rfwp.train.model import check_fits
from rfwp.train.trained import best_model

log = logging.getLogger("rfwp")

PACKAGED = PRETRAINED / "code-execution-5"
"""As a folder: one of the same name that lies here is not meant."""
SEMANTICS = ("authors", "true")
CODE, LISTS, LANGUAGE, AGENT = "code-execution", "listops", "language", "agent"
_SYMBOLS_WITHOUT_VARIABLES, _VALUES = 19, 26
_LIST_SYMBOLS, _DIGITS = 14, 10


@dataclass(frozen=True)
class ShownTask:
    """A model under the name that the page knows it by, and the task that it was trained on."""

    name: str
    model: SequenceModel
    task: CodeExecution | ListOps

    @property
    def kind(self) -> str:
        return CODE if isinstance(self.task, CodeExecution) else LISTS


@dataclass(frozen=True)
class ShownLanguage:
    """A language model and its words."""

    kind: ClassVar[str] = LANGUAGE
    name: str
    model: SequenceModel
    words: Words


@dataclass(frozen=True)
class ShownAgent:
    """An agent and the game that it learned; one without fast weights can be watched all the same."""

    kind: ClassVar[str] = AGENT
    name: str
    model: Agent
    environment: EnvironmentConfig


Reader = ShownTask | ShownLanguage
Shown = Reader | ShownAgent


def load_all(arguments: Sequence[str], semantics: str | None = None) -> dict[str, Shown]:
    """The models of the command line by name, in order; the packaged one if none was given."""
    if semantics is not None and semantics not in SEMANTICS:
        raise unknown("semantics", semantics, SEMANTICS)
    shown: dict[str, Shown] = {}
    for argument in arguments or (str(PACKAGED),):
        name = _free_name(Path(argument), shown)
        shown[name] = _load(name, argument, semantics)
    return shown


def _load(name: str, argument: str, semantics: str | None) -> Shown:
    folder = Path(argument)
    run = read_run_config(folder)
    has_words = folder.is_dir() and any((place / WORDS).is_file() for place in (folder, folder.resolve().parent))
    if has_words or isinstance(run, LanguageRunConfig):
        model, words = load_language_model(folder)
        _check(argument, model)
        return ShownLanguage(name, model, words)
    if isinstance(run, RLRunConfig):
        # with all that training needs, so it is not quick to import
        from rfwp.rl.trained import load_agent
        from rfwp.train.log import Log

        trained = load_agent(folder, "cpu", Log())
        return ShownAgent(name, trained.agent, trained.config.environment)
    model, task = _load_run(folder, run) if run else _load_saved(argument)
    _check(argument, model)
    if semantics is not None and isinstance(task, CodeExecution):
        task = CodeExecution(replace(task.config, {"semantics": semantics}))
    return ShownTask(name, model.eval(), task)


def _load_saved(argument: str) -> tuple[SequenceModel, CodeExecution | ListOps]:
    folder = locate(argument)
    model = load(folder)
    if not isinstance(model, SequenceModel):
        raise InvalidInput(f"{argument} holds an agent but not its game; give the folder of its run")
    # a packaged model has the result of its run beside it, and that knows the task
    run = RunFolder(folder).result().config if (folder / RESULT).is_file() else None
    if isinstance(run, RunConfig) and isinstance(run.task, CodeExecutionConfig | ListOpsConfig):
        task: Any = load_task(run.task)
        check_fits(model.config, task)
        return model, task
    return model, _find_task(argument, model.config)


def _load_run(folder: Path, config: RunConfig | LanguageRunConfig) -> tuple[SequenceModel, CodeExecution | ListOps]:
    if not isinstance(config, RunConfig) or not isinstance(config.task, CodeExecutionConfig | ListOpsConfig):
        kind = type(getattr(config, "task", config)).__name__.removesuffix("Config")
        known = "code execution, ListOps, language models (with their words.txt) and agents"
        raise InvalidInput(f"{folder} is a run of kind {kind}; play shows runs of {known}")
    task: Any = load_task(config.task)
    check_fits(config.model, task)
    return best_model(folder, config.model, log.warning), task


def _find_task(argument: str, config: SequenceConfig) -> CodeExecution | ListOps:
    """A saved model does not say what it was trained on; the sizes of its vocabularies do."""
    variables = config.inputs - _SYMBOLS_WITHOUT_VARIABLES
    if config.outputs == _VALUES and 1 <= variables <= len(VARIABLES):
        return CodeExecution(CodeExecutionConfig(variables))
    if (config.inputs, config.outputs) == (_LIST_SYMBOLS, _DIGITS):
        return ListOps(ListOpsConfig())
    raise InvalidInput(
        f"{argument} reads {config.inputs} symbols and says {config.outputs}: neither code execution nor ListOps; "
        "give a model of one of these, the folder of its run, or a language model with its words.txt"
    )


def _check(argument: str, model: SequenceModel) -> None:
    """A model without fast weights is refused at the start, not at the first click."""
    try:
        check_fast_weights(model)
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
