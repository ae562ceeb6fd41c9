"""Jobs of `rfwp reproduce atari`: an agent, a game and a seed; and what a finished one is worth."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rfwp.config import AtariConfig, RLRunConfig, replace, to_dict
from rfwp.errors import InvalidInput, unknown
from rfwp.presets import agent_run, presets
from rfwp.report.records import Run
from rfwp.reproduce.jobs import START_SECONDS, Job, key, training_options
from rfwp.reproduce.options import ReproduceOptions, several
from rfwp.rl.changes import changed
from rfwp.rl.eval_options import AgentEvalOptions
from rfwp.rl.result import RLResult
from rfwp.rl.trained import evaluate_trained, load_agent, write_evaluation
from rfwp.tasks.atari import PAPER_GAMES
from rfwp.train.log import Log

LARGE = "rdn-large"
TEST_SECONDS = 60.0
"""Of the test at the end, which is no part of a run's seconds."""
STEPS_PER_S = {"cuda": 10_000.0, "cpu": 150.0}
"""Agent steps, before any run has told better."""


@dataclass(frozen=True)
class AgentJob(Job):
    """One run of an agent."""

    config: RLRunConfig  # type: ignore[assignment]

    @property
    def seed(self) -> int:
        return self.config.impala.seed

    @property
    def what(self) -> str:
        assert isinstance(self.config.environment, AtariConfig)
        return f"{self.preset} {self.config.environment.game}"

    def _done(self, record: dict[str, Any]) -> float:
        return float(record["steps"] / self.config.impala.steps)


class AgentCosts:
    """How many seconds a job may take: by the speed of finished runs of the same agent here, or of any agent, or a guess."""

    def __init__(self, runs: Iterable[Run], device: str):
        self.speeds: dict[str, list[float]] = {}
        for run in runs:
            if run.config.get("kind") == "rlrun" and run.seconds > 0 and run.device == device:
                self.speeds.setdefault(run.preset, []).append(run.config["impala"]["steps"] / run.seconds)

    def left(self, job: Job) -> float:
        assert isinstance(job, AgentJob)
        all_speeds = [speed for found in self.speeds.values() for speed in found]
        known = self.speeds.get(job.preset) or all_speeds or [STEPS_PER_S["cuda" if torch.cuda.is_available() else "cpu"]]
        steps = job.config.impala.steps * (1 - job.progress())
        return START_SECONDS + steps / statistics.median(known) + TEST_SECONDS


def agent_jobs(options: ReproduceOptions) -> list[AgentJob]:
    """Every model in every game with every seed. Each number of steps, and each other change, has folders of its own."""
    if options.steps is None:
        raise InvalidInput("atari needs --steps, the agent steps of each run; the paper's trainings had 200,000,000")
    if not options.seeds:
        raise InvalidInput("no seeds; give at least one: --seeds 1")
    # by folder: a game may have been named twice, in two spellings
    jobs: dict[Path, AgentJob] = {}
    for game in several(options.games) or list(PAPER_GAMES):
        for name in _presets(several(options.models)):
            config = changed(agent_run(name, AtariConfig(game), options.recipe), training_options(options))
            assert isinstance(config.environment, AtariConfig)
            home = options.runs_folder / f"{name.replace('/', '-')}-{config.environment.game}-{key(config)}"
            for seed in options.seeds:
                folder = home / f"seed-{seed}"
                jobs[folder] = AgentJob(replace(config, {"impala.seed": seed}), folder)
    return list(jobs.values())


def finished_line(result: RLResult, folder: Path, device: str, log: Log) -> dict[str, Any]:
    """The line of a run: its result, and the paper's test of its agent."""
    trained = load_agent(folder, device, log)
    options = AgentEvalOptions()
    found = evaluate_trained(trained, options)
    write_evaluation(trained, found)
    test = {"score": found.mean, "score std": found.std}
    evaluation = {"episodes": options.episodes, "runs": options.runs, "means": found.means, "dropped": found.dropped}
    # what a line of any kind has
    others = {"valid": {}, "epochs": 0, "best_epoch": 0}
    played = {"environment": to_dict(found.environment)}
    return result.to_json() | {"metrics": result.metrics | test, "evaluation": evaluation | played} | others


def _presets(models: Sequence[str]) -> list[str]:
    known = {name.partition("/")[2]: name for name in presets() if name.startswith("atari/")} | {LARGE: "atari-large/rdn"}
    for model in models:
        if model not in known:
            raise unknown("model of atari", model, known)
    return [known[model] for model in models] or [name for model, name in known.items() if model != LARGE]
