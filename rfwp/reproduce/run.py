"""From options to finished runs."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rfwp.build import build
from rfwp.config import replace
from rfwp.environment import device_name, process_age
from rfwp.errors import InvalidFile, InvalidInput
from rfwp.lm.changes import changed as change_language
from rfwp.report.records import read_runs
from rfwp.reproduce import agents
from rfwp.reproduce.jobs import AGENTS, Change, Costs, Job, chosen_presets, make_jobs, missing, training_options
from rfwp.reproduce.options import ReproduceOptions, several
from rfwp.reproduce.process import Process
from rfwp.reproduce.schedule import Budget, Outcome, Scheduler, Worker
from rfwp.train.changes import changed
from rfwp.train.log import duration
from rfwp.train.signals import StopSignals
from rfwp.train.speed import find_device


@dataclass(frozen=True)
class Plan:
    """All runs that were asked for, and those of them that are missing, the shortest first."""

    jobs: list[Job]
    missing: list[Job]
    costs: Costs | agents.AgentCosts
    device: str = ""
    """Its name, where times of others say nothing."""


def make_plan(options: ReproduceOptions) -> Plan:
    """What cannot work is an error here, before anything is begun."""
    if options.jobs < 1:
        raise InvalidInput(f"jobs={options.jobs}; use at least 1")
    if options.budget_seconds is not None and not options.budget_seconds > 0:
        raise InvalidInput(f"budget-seconds={options.budget_seconds}; use a positive number, or leave it away")
    if seed := next((text for text in options.set if text.startswith(("train.seed=", "impala.seed="))), None):
        raise InvalidInput(f"--set {seed}: every run has a seed of --seeds; say it there")
    if options.table == AGENTS:
        return _agents_plan(options)
    if options.games:
        raise InvalidInput("--games is for atari: rfwp reproduce atari --games pong seaquest")
    if options.recipe != "paper":
        raise InvalidInput(f"--recipe {options.recipe} is for atari: rfwp reproduce atari --recipe {options.recipe}")
    change = _change(options)
    jobs = make_jobs(chosen_presets(options.table, several(options.models)), options.seeds, change, options.runs_folder)
    find_device(options.device)
    for config in {replace(job.config, {"train.seed": 0}) for job in jobs} if options.set else ():
        build(config.model, device="meta")
    runs = read_runs(options.out)
    costs = Costs(runs)
    return Plan(jobs, sorted(missing(jobs, runs), key=costs.left), costs)


def _agents_plan(options: ReproduceOptions) -> Plan:
    jobs = agents.agent_jobs(options)
    device = device_name(find_device(options.device))
    runs = read_runs(options.out)
    costs = agents.AgentCosts(runs, device)
    return Plan(list(jobs), sorted(missing(jobs, runs), key=costs.left), costs, device)


def _change(options: ReproduceOptions) -> Change:
    """From the config of a preset to the one that was asked for."""
    how = training_options(options)
    if options.table != "wiki-28m":
        return partial(changed, options=how)
    if not (options.text and options.vocabulary):
        raise InvalidInput("wiki-28m needs --text FOLDER with the training text and --vocabulary FILE of WikiText-103's words")
    return partial(change_language, options=how)


def reproduce(
    plan: Plan,
    options: ReproduceOptions,
    say: Callable[[str], None],
    start: Callable[[Job], Worker] | None = None,
    elapsed: float | None = None,
) -> tuple[Outcome, int]:
    """Run what is missing. Returns what became of it, and the exit code.

    `elapsed`: seconds of the budget that are over; None: the age of this process.
    """
    try:
        # not after hours of training
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidFile(f"cannot make the folder {options.out}: {error.strerror}; give another --out") from None
    request = {"out": str(options.out.absolute()), "device": options.device, "commit": options.commit}
    at_once = min(options.jobs, max(1, len(plan.missing)))
    with StopSignals() as signals:
        scheduler = Scheduler(
            start=start or partial(Process, request=request, at_once=at_once),
            costs=lambda: _costs(plan, options.out).left,
            at_once=at_once,
            budget=Budget() if options.budget_seconds is None else Budget(options.budget_seconds),
            say=say,
            wish=lambda: signals.wish,
            elapsed=process_age() if elapsed is None else elapsed,
        )
        outcome = scheduler.run(plan.missing)
    if outcome.failed:
        return outcome, 1
    return outcome, 128 + signals.wish if signals.wish else 0


def _costs(plan: Plan, out: Path) -> Costs | agents.AgentCosts:
    """With what was learnt from runs that have finished since."""
    try:
        runs = read_runs(out)
        return Costs(runs) if isinstance(plan.costs, Costs) else agents.AgentCosts(runs, plan.device)
    except InvalidFile:
        # a worker may be writing its line this very moment, which is no reason to stop the others
        return plan.costs


def describe_plan(plan: Plan, jobs: int) -> list[str]:
    """What is there, what is missing and how long that may take."""
    lines = [f"{len(plan.jobs) - len(plan.missing)} of {len(plan.jobs)} runs are finished, {len(plan.missing)} missing"]
    for what in dict.fromkeys(job.what for job in plan.missing):
        mine = [job for job in plan.missing if job.what == what]
        seeds = " ".join(f"{job.seed} ({job.progress():.0%} done)" if job.progress() else str(job.seed) for job in mine)
        lines.append(f"  {what}: seed {seeds}, about {duration(sum(map(plan.costs.left, mine)))}")
    if plan.missing:
        total = sum(map(plan.costs.left, plan.missing))
        lines.append(f"about {duration(total)} of training, {min(jobs, len(plan.missing))} at a time")
    return lines


def describe_outcome(outcome: Outcome) -> list[str]:
    """What was done, what is unfinished and how to go on, and what failed with its last lines."""
    counts = ("done", outcome.done), ("stopped", outcome.stopped), ("waiting", outcome.waiting), ("failed", outcome.failed)
    lines = [", ".join(f"{len(jobs)} {word}" for word, jobs in counts)]
    lines += [f"  {job}: stopped at {job.progress():.0%}" for job in outcome.stopped]
    lines += [f"  {job}: {f'waits at {job.progress():.0%}' if job.progress() else 'not begun'}" for job in outcome.waiting]
    for job, last in outcome.failed.items():
        lines += [f"  {job}: failed; its last lines:", *(f"    {line}" for line in last)]
    if outcome.stopped or outcome.waiting or outcome.failed:
        lines.append("the same command goes on with what is unfinished")
    return lines
