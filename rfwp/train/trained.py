"""The model of a run, its test, and what it says to a sequence of the user's."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rfwp.config import PLACES, RunConfig, SequenceConfig, replace
from rfwp.errors import InvalidFile
from rfwp.models import SequenceModel, load
from rfwp.models.packaged import packaged_models
from rfwp.tasks import load_task
from rfwp.train.checkpoint import BEST, EARLIER_BEST
from rfwp.train.checkpoint import load as load_checkpoint
from rfwp.train.data import Data, checked
from rfwp.train.evaluate import evaluate, predict
from rfwp.train.folder import RunFolder, fingerprint
from rfwp.train.log import Log
from rfwp.train.model import load_weights
from rfwp.train.options import EvalOptions
from rfwp.train.places import places_of_sequences, task_of_run
from rfwp.train.speed import find_device


@dataclass(frozen=True)
class Said:
    """One position of a sequence: what stands there, what the model says, and what is right, where that is known."""

    token: str
    prediction: str
    truth: str | None

    @property
    def wrong(self) -> bool:
        return bool(self.truth) and self.truth != self.prediction


def evaluate_run(path: Path, options: EvalOptions, log: Log) -> dict[str, float]:
    """The metrics of a run's best checkpoint."""
    config, model, task = _load(path, options, log)
    data = Data(checked(task.split(options.split), options.split), next(model.parameters()).device)
    return evaluate(model, task, data, config.train.batch, config.train.precision)


def answer(path: Path, options: EvalOptions, log: Log) -> list[Said]:
    """What a run's best checkpoint says to the user's own sequence."""
    assert options.input is not None
    config, model, task = _load(path, options, log)
    tokens = task.encode(options.input)
    # first: what is no program or no list is said before anything is computed
    truth: Sequence[str | None] = task.truth(options.input) or [None] * len(tokens)
    predictions = task.target.decode(predict(model, tokens, config.train.precision))
    symbols = task.source.decode(tokens)
    return [Said(*position) for position in zip(symbols, predictions, truth, strict=True)]


def _load(path: Path, options: EvalOptions, log: Log) -> tuple[RunConfig, SequenceModel, Any]:
    """Of a run; or of a model that comes with rfwp, by its name. A folder that is here wins."""
    device = find_device(options.device)
    packaged = packaged_models()[str(path)] if is_packaged(path) else None
    config, model, task = _load_run(path, options.data, log) if packaged is None else _load_packaged(packaged, options.data)
    return config, model.to(device).eval(), task


def is_packaged(path: Path) -> bool:
    """The name of a model that comes with rfwp, and not a folder."""
    return not path.exists() and str(path) in packaged_models()


def _load_packaged(path: Path, data: Path | None) -> tuple[RunConfig, SequenceModel, Any]:
    """The result of its run lies beside the model."""
    config, model = RunFolder(path).result().config, load(path)
    assert isinstance(config, RunConfig) and isinstance(model, SequenceModel)
    config = replace(config, places_of_sequences(config, data))
    return config, model, load_task(config.task)


def _load_run(path: Path, data: Path | None, log: Log) -> tuple[RunConfig, SequenceModel, Any]:
    folder = RunFolder(path)
    config = folder.config()
    if not isinstance(config, RunConfig):
        raise InvalidFile(f"{path} is the run of a language model")
    model = best_model(path, config.model, log.warn)
    config = replace(config, places_of_sequences(config, data))
    task = task_of_run(config)
    # the symbols of a user's files are those of the files as they were
    folder.check(config, fingerprint(task.split("train")), moved=PLACES)
    return config, model, task


def best_model(run: Path, config: SequenceConfig, warn: Callable[[str], None]) -> SequenceModel:
    """The model of a run's best checkpoint."""
    best = load_checkpoint(run, (BEST, EARLIER_BEST), warn)
    if best is None:
        raise InvalidFile(f"{run} has no checkpoint yet: it appears after the first epoch")
    model = SequenceModel(config)
    load_weights(model, best.model, run)
    return model
