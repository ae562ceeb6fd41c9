"""Runs as they are asked for: a config and a folder each, trained one after another."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from rfwp.config import replace
from rfwp.errors import InvalidInput
from rfwp.train.distributed import is_first, leave, processes, restarted
from rfwp.train.folder import Folder, RunFolder
from rfwp.train.log import Log, shown
from rfwp.train.options import TrainOptions
from rfwp.train.result import RunResult, summary
from rfwp.train.runner import Diverged

EXIT_CODES = {"SIGINT": 130, "SIGTERM": 143}
"""What the shell expects of a process that a signal ended."""


def speed_of(options: TrainOptions) -> dict[str, Any]:
    return {"speed": options.speed}


@dataclass(frozen=True)
class Kind:
    """What `rfwp train` needs to know of a kind of run."""

    change: Callable[[Any, TrainOptions], Any]
    """What the options make of a config."""
    trainer: Callable[..., Any]
    settings: Callable[[TrainOptions], dict[str, Any]] = speed_of
    """What its trainer is told beside what all trainers are told."""
    folder: type[Folder[Any, Any]] = RunFolder
    seed: str = "train.seed"
    """Where its config has the seed."""
    summary: Callable[[Sequence[Any]], tuple[str, list[tuple[str, str]]]] = summary
    """What the results of all seeds come to: a title and rows."""
    places: Callable[[Any, TrainOptions], dict[str, str]] = lambda config, options: {}
    """Where the options say that the data of a run lie now: changes to its config."""


@dataclass(frozen=True)
class Plan:
    """One run and its folder."""

    config: Any
    folder: Folder[Any, Any]


def train_all(plans: Sequence[Plan], options: TrainOptions, log: Log, kind: Kind) -> list[Any]:
    """One run after another: a begun one goes on, a finished one is taken as it is. Nothing follows one that was stopped.

    One that diverges is said, and is an error only when the others have had their turn.
    """
    results: list[Any] = []
    diverged = 0
    for plan in plans:
        if plan.folder.finished:
            results.append(plan.folder.result())
            if is_first():
                log.say(f"{plan.folder} is finished")
            continue
        told = {"device": options.device, "log": log, "save_minutes": options.save_minutes, **kind.settings(options)}
        try:
            results.append(kind.trainer(plan.config, plan.folder.path, **told).run())
        except Diverged as error:
            # several processes may be in different places now
            if len(plans) == 1 or processes() > 1:
                raise
            log.warn(f"{plan.folder}: {error}")
            diverged += 1
            continue
        # one that lost its patience is finished
        if results[-1].stopped not in (None, "patience"):
            break
    leave()
    # one that a signal stopped has said how to go on with all of them
    if diverged and not (results and exit_code(results)):
        others = "; --seeds with the other ones shows their scores" if results else ""
        raise Diverged(f"{diverged} of {len(plans)} runs diverged, as said above{others}")
    return results


def plan_runs(config: Any, options: TrainOptions, name: str, kind: Kind) -> list[Plan]:
    """One run a seed, new or begun, of a changed config; whatever cannot work is an error before anything is written."""
    if options.seeds and any(change.startswith(f"{kind.seed}=") for change in options.set):
        raise InvalidInput(f"--seeds and --set {kind.seed} both say the seed; give one of them")
    seeds = options.seeds or (attrgetter(kind.seed)(config),)
    if len(set(seeds)) < len(seeds):
        raise InvalidInput(f"--seeds {' '.join(map(str, seeds))}: a seed is there twice; give each once")
    home = options.out or Path("runs") / name.replace("/", "-").replace(":", "-")
    # a further seed goes beside those that are there
    alone = options.out is not None and len(seeds) == 1 and not any(home.glob("seed-*/config.json"))
    if not alone and kind.folder(home).used:
        raise InvalidInput(f"{home} holds a run itself, so it is no folder for runs of several seeds; use another --out")
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
    """The run of a folder, its data where the options say; a preset's run (or None) and other changes must agree with it."""
    assert options.resume is not None
    if options.out is not None:
        raise InvalidInput("--resume goes on in the run's own folder; leave --out away")
    folder = kind.folder(options.resume)
    config = folder.config()
    places = kind.places(config, options)
    config = replace(config, places)
    wanted = kind.change(base or config, options)
    seeds = options.seeds or (attrgetter(kind.seed)(wanted if base is None else config),)
    if len(seeds) > 1:
        raise InvalidInput("--resume takes one run; leave --seeds away")
    folder.check(replace(wanted, {kind.seed: seeds[0]}), moved=places)
    if folder.finished:
        raise InvalidInput(f"{folder} is finished; see: rfwp eval {shlex.quote(str(folder))}")
    return [Plan(config, folder)]


def exit_code(results: Sequence[RunResult]) -> int:
    return EXIT_CODES.get(results[-1].stopped or "", 0)
