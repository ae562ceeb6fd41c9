"""What the commands `train` and `eval` do, without printing: configs and folders of runs, training, evaluation."""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from rfwp.config import FilesConfig, RunConfig, SequenceConfig, TrainConfig, replace
from rfwp.errors import InvalidFile, InvalidInput
from rfwp.models import SequenceModel
from rfwp.tasks import load_task
from rfwp.train.checkpoint import BEST, EARLIER_BEST, load
from rfwp.train.data import Data, checked
from rfwp.train.distributed import is_first, leave, restarted
from rfwp.train.evaluate import evaluate, predict
from rfwp.train.folder import Folder, RunFolder, fingerprint
from rfwp.train.log import Log, shown
from rfwp.train.loop import Trainer
from rfwp.train.model import load_weights
from rfwp.train.optim import check_training
from rfwp.train.options import EvalOptions, TrainOptions
from rfwp.train.result import Result, RunResult
from rfwp.train.speed import find_device

EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143}
"""What the shell expects of a process that a signal ended."""


def speed_of(options: TrainOptions) -> dict[str, Any]:
    return {"speed": options.speed}


@dataclass(frozen=True)
class Kind:
    """What the commands need to know of a kind of run."""

    change: Callable[[Any, TrainOptions], Any]
    """What the options make of a config."""
    trainer: Callable[..., Any]
    settings: Callable[[TrainOptions], dict[str, Any]] = speed_of
    """What its trainer is told beside what all trainers are told."""
    folder: type[Folder[Any, Any]] = RunFolder
    seed: str = "train.seed"
    """Where its config has the seed."""


@dataclass(frozen=True)
class Plan:
    """One run and its folder."""

    config: Any
    folder: Folder[Any, Any]


# --- rfwp train ---


def train(plans: Sequence[Plan], options: TrainOptions, log: Log, kind: Kind) -> list[Any]:
    """One run after another: a begun one goes on, a finished one is taken as it is. Nothing follows one that was stopped."""
    results: list[Any] = []
    for plan in plans:
        if plan.folder.finished:
            results.append(plan.folder.result())
            if is_first():
                log.say(f"{plan.folder} is finished")
            continue
        told = {"device": options.device, "log": log, "save_minutes": options.save_minutes, **kind.settings(options)}
        results.append(kind.trainer(plan.config, plan.folder.path, **told).run())
        # one that lost its patience is finished
        if results[-1].stopped not in (None, "patience"):
            break
    leave()
    return results


def plan_runs(config: Any, options: TrainOptions, name: str, kind: Kind) -> list[Plan]:
    """One run a seed, new or begun, of a changed config; whatever cannot work is an error before anything is written."""
    seeds = options.seeds or (attrgetter(kind.seed)(config),)
    if len(set(seeds)) < len(seeds):
        raise InvalidInput(f"--seeds {' '.join(map(str, seeds))}: a seed is there twice; give each once")
    home = options.out or Path("runs") / name.replace("/", "-").replace(":", "-")
    alone = options.out is not None and len(seeds) == 1
    plans = []
    for seed in seeds:
        folder = kind.folder(home if alone else home / f"seed-{seed}")
        plans.append(Plan(replace(config, {kind.seed: seed}), folder))
        folder.check(plans[-1].config)
    # torchrun may start a run again that has just finished, and of its processes only the first can tell
    if len(plans) == 1 and plans[0].folder.finished and is_first() and not restarted():
        folder = plans[0].folder
        metrics = ", ".join(f"{name} {shown(name, value)}" for name, value in folder.result().metrics.items())
        reached = f" ({metrics})" if metrics else ""
        raise InvalidInput(f"{folder} holds this run already, finished{reached}; use another --out to train it again")
    return plans


def plan_resumed(base: Any, options: TrainOptions, kind: Kind) -> list[Plan]:
    """The run of a folder; a preset's run (or None) and changes that are given beside it must agree with it."""
    assert options.resume is not None
    if options.out is not None or options.data is not None:
        raise InvalidInput("--resume goes on in the run's own folder with its own data; leave --out and --data away")
    folder = kind.folder(options.resume)
    config = folder.config()
    wanted = kind.change(base or config, options)
    seeds = options.seeds or (attrgetter(kind.seed)(wanted if base is None else config),)
    if len(seeds) > 1:
        raise InvalidInput("--resume takes one run; leave --seeds away")
    folder.check(replace(wanted, {kind.seed: seeds[0]}))
    if folder.finished:
        raise InvalidInput(f"{folder} is finished; see: rfwp eval {folder}")
    return [Plan(config, folder)]


def changed(base: RunConfig, options: TrainOptions) -> RunConfig:
    """With --epochs and --set. Where the task changes, the model gets the sizes of its vocabularies."""
    if options.steps is not None or options.text or options.held_out or options.vocabulary is not None:
        raise InvalidInput("--steps, --text, --held-out and --vocabulary are for language models, such as lm/rdn")
    changes = parse_changes(options.set)
    if options.epochs is not None:
        changes["train.epochs"] = options.epochs
    config: RunConfig = replace(base, changes)
    check_training(config.train)
    if config.task != base.task:
        config = fit_vocabularies(config, keep=set(changes))
    return config


KIND = Kind(changed, Trainer)


def parse_changes(texts: Sequence[str]) -> dict[str, Any]:
    """`train.lr=1e-3` -> {"train.lr": 0.001}; values are JSON, and a word is a string."""
    changes: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InvalidInput(f"--set {text}: expected name=value, for example train.lr=1e-3")
        if name in changes:
            raise InvalidInput(f"--set {name} is there twice; give it once")
        words = {"none": None, "true": True, "false": False}
        try:
            changes[name] = words[value.lower()] if value.lower() in words else json.loads(value)
        except ValueError:
            changes[name] = value
        if isinstance(changes[name], float) and not math.isfinite(changes[name]):
            raise InvalidInput(f"--set {text}: expected a finite number")
    return changes


def fit_vocabularies(config: RunConfig, keep: set[str] | frozenset[str] = frozenset()) -> RunConfig:
    """The model's inputs and outputs are the task's symbols, unless they were given."""
    task = load_task(config.task)
    sizes = {"model.inputs": len(task.source), "model.outputs": len(task.target)}
    fitted: RunConfig = replace(config, {name: size for name, size in sizes.items() if name not in keep})
    return fitted


def files_run(model: SequenceConfig, train: TrainConfig, folder: Path) -> RunConfig:
    """A preset's model on a user's own sequences."""
    # the clusters of an adaptive softmax belong to the vocabulary that they were made for
    plain: SequenceConfig = replace(model, {"cutoffs": ()})
    return fit_vocabularies(RunConfig(plain, FilesConfig(str(folder.expanduser().resolve())), train))


def summary(results: Sequence[Result]) -> list[tuple[str, str]]:
    """Every test metric, with its mean ± standard deviation (n - 1) over the seeds."""
    rows = []
    for name in results[0].metrics:
        factor, unit = (1, "") if name.startswith("perplexity") else (100, " %")
        values = [factor * result.metrics[name] for result in results]
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        rows.append((name, f"{statistics.fmean(values):.2f}{spread}{unit}"))
    return rows


def exit_code(results: Sequence[RunResult]) -> int:
    return EXIT_CODES.get(results[-1].stopped or "", 0)


# --- rfwp eval ---


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
    predictions = task.target.decode(predict(model, tokens, config.train.precision))
    truth: Sequence[str | None] = task.truth(options.input) or [None] * len(tokens)
    symbols = task.source.decode(tokens)
    return [Said(*position) for position in zip(symbols, predictions, truth, strict=True)]


def _load(path: Path, options: EvalOptions, log: Log) -> tuple[RunConfig, SequenceModel, Any]:
    folder, device = RunFolder(path), find_device(options.device)
    config = folder.config()
    if not isinstance(config, RunConfig):
        raise InvalidFile(f"{path} is the run of a language model")
    best = load(path, (BEST, EARLIER_BEST), log.warn)
    if best is None:
        raise InvalidFile(f"{path} has no checkpoint yet: it appears after the first epoch")
    task = load_task(config.task)
    # the symbols of a user's files are those of the files as they were
    folder.check(config, fingerprint(task.split("train")))
    model = SequenceModel(config.model)
    load_weights(model, best.model, path)
    return config, model.to(device).eval(), task
