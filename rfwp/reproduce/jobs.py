"""A job is one training run: a preset with a seed. Which jobs a table has, which are missing, and how long each may take."""

import hashlib
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rfwp.config import (
    PLACES,
    AttentionConfig,
    BlocksConfig,
    FWPConfig,
    LanguageRunConfig,
    LanguageTrainConfig,
    ListOpsConfig,
    LSTMConfig,
    RLRunConfig,
    RunConfig,
    from_dict,
    replace,
    to_dict,
)
from rfwp.errors import InvalidInput, RFWPError, unknown
from rfwp.presets import TASKS, WIKI_28M, is_agent, is_language, language_run, presets, run_config
from rfwp.report.paper import tables
from rfwp.report.records import Run, same_run
from rfwp.reproduce.options import ReproduceOptions
from rfwp.train.folder import RunFolder
from rfwp.train.options import TrainOptions

AnyConfig = RunConfig | LanguageRunConfig
Change = Callable[[Any], AnyConfig]


def training_options(options: ReproduceOptions) -> TrainOptions:
    """What was asked for of every run; which of it does not suit a run, that run says."""
    return TrainOptions(
        epochs=options.epochs,
        steps=options.steps,
        text=options.text,
        held_out=options.held_out,
        vocabulary=options.vocabulary,
        set=options.set,
    )


AGENTS = "atari"
"""The one table whose runs are not of sequences: rfwp.reproduce.agents makes its jobs."""


@dataclass(frozen=True)
class Job:
    """One run: what, and where its checkpoints are."""

    config: AnyConfig
    folder: Path

    @property
    def preset(self) -> str:
        return self.config.preset

    @property
    def seed(self) -> int:
        return self.config.train.seed

    @property
    def what(self) -> str:
        """Which runs differ from it by their seed alone."""
        return self.preset

    def __str__(self) -> str:
        return f"{self.what} seed {self.seed}"

    def progress(self) -> float:
        """The part of a run that is behind it."""
        try:
            record = json.loads((self.folder / "metrics.jsonl").read_text().splitlines()[-1])
            return min(1.0, self._done(record))
        except (OSError, ValueError, LookupError, TypeError):
            # no such run yet, or a line that is being written
            return 0.0

    def _done(self, record: dict[str, Any]) -> float:
        """As the last line of its metrics says it."""
        train = self.config.train
        epochs = train.steps / train.validate_every if isinstance(train, LanguageTrainConfig) else train.epochs
        return float(record["epoch"] / epochs)


def chosen_presets(table: str, models: Sequence[str] = ()) -> list[str]:
    """The presets of a table that can be trained, in the paper's order; `models` keeps only some of them."""
    by_table: dict[str, list[str]] = {name: [p for p in presets() if p.split("/")[0] == name] for name in TASKS}
    by_paper = {id: [p for p in paper.presets() if p.split("/")[0] in TASKS] for id, paper in tables().items()}
    known = by_table | {id: found for id, found in by_paper.items() if found}
    known["wiki-28m"] = list(WIKI_28M)
    known["all"] = [preset for found in by_table.values() for preset in found]
    if table in tables() and table not in known:
        agents = any(is_agent(preset) for preset in tables()[table].presets())
        how = "rfwp reproduce atari --steps N" if agents else "rfwp train lm/ROW, a run each"
        raise InvalidInput(f"{table} is not made by this command, but by: {how}; see docs/reproduce.md")
    if table not in known:
        raise unknown("table", table, [*known, AGENTS])
    names = {preset.split("/")[1] for preset in known[table]}
    for model in models:
        if model not in names:
            raise unknown(f"model of {table}", model, names)
    return [preset for preset in known[table] if not models or preset.split("/")[1] in models]


def make_jobs(names: Iterable[str], seeds: Sequence[int], change: Change, folder: Path) -> list[Job]:
    """Every preset with every seed. A run with changes gets a folder of its own."""
    if not seeds:
        raise InvalidInput("no seeds; give at least one: --seeds 1")
    jobs = []
    for name in names:
        plain = language_run(name) if is_language(name) else run_config(name)
        config = change(plain)
        home, own = folder / name.replace("/", "-"), folder / f"{name.replace('/', '-')}-{key(config)}"
        for seed in dict.fromkeys(seeds):
            job = Job(replace(config, {"train.seed": seed}), home / f"seed-{seed}")
            # `rfwp train` uses the same folder, and may have left a changed run there
            shared = key(config) == key(plain) and _can_hold(job.folder, job.config)
            jobs.append(job if shared else Job(job.config, own / f"seed-{seed}"))
    return jobs


def _can_hold(folder: Path, config: AnyConfig) -> bool:
    """Whether a folder holds this run, or none."""
    try:
        RunFolder(folder).check(config)
    except RFWPError:
        return False
    return True


J = TypeVar("J", bound=Job)


def missing(jobs: Iterable[J], runs: Sequence[Run]) -> list[J]:
    """Those without a finished run of the very same config."""
    return [job for job in jobs if not any(run.preset == job.preset and same_run(run, job.config) for run in runs)]


class Costs:
    """How many seconds a job may take: as the same config took before; else a guess, scaled by how wrong guesses were so far."""

    def __init__(self, runs: Iterable[Run]):
        self.took: dict[str, list[float]] = {}
        ratios: dict[type, list[float]] = {}
        for run in runs:
            try:
                config = from_dict(run.config)
            except RFWPError:
                # a run of an older version, whose config says nothing today
                continue
            if not isinstance(config, AnyConfig):
                continue
            self.took.setdefault(key(config), []).append(run.seconds)
            # compiling and warming up would be most of a short run
            if guess(config) > START_SECONDS:
                ratios.setdefault(type(config), []).append(run.seconds / guess(config))
        self.scales = {kind: statistics.median(found) for kind, found in ratios.items()}

    def whole(self, job: Job) -> float:
        took = self.took.get(key(job.config))
        scale = self.scales.get(type(job.config), 1.0)
        return START_SECONDS + test_seconds(job.config) + (statistics.median(took) if took else scale * guess(job.config))

    def left(self, job: Job) -> float:
        """What is left of a run that was begun."""
        return START_SECONDS + (self.whole(job) - START_SECONDS) * (1 - job.progress())


START_SECONDS = 30.0
"""To import, generate data and compile."""
STEP_MS = {"sum": 5.9, "delta": 6.1, "rnn": 8.7, "recurrent": 7.5, "attention": 19.6, "lstm": 11.9}
"""Training steps of the code-execution models on an idle H200 (results/bench, commit e255a96); only their order matters."""


WORDS_PER_S = {
    "sum": 784,
    "delta": 746,
    "delta_net": 510,
    "mlp": 355,
    "rnn": 702,
    "recurrent": 735,
    "attention": 791,
    "lstm": 505,
}
"""Thousands of words a second of language models of 16 layers on an H200, in TF32 (results/bench, commit 9156243).

The Delta MLP was timed with the 11 layers that it has in Table 1: 517.
"""
TEST_WORDS = 463_215
"""WikiText-103's validation and test sets."""


def guess_language(config: LanguageRunConfig) -> float:
    """Seconds of training a language model on an idle H200, roughly."""
    return config.train.steps * config.train.streams * config.text.segment / _words_per_s(config)


def test_seconds(config: AnyConfig) -> float:
    """Of the tests at the end, which are no part of a run's seconds; those of sequences take no time."""
    if not isinstance(config, LanguageRunConfig):
        return 0.0
    # no backward pass, but each word is computed in many windows
    windows = 1 if config.train.carry else config.text.segment / config.train.test_stride
    return TEST_WORDS * windows / 3 / _words_per_s(config)


def _words_per_s(config: LanguageRunConfig) -> float:
    core = config.model.core
    if not isinstance(core, BlocksConfig):
        return 1000.0 * WORDS_PER_S["delta"]
    return 1000.0 * WORDS_PER_S[_kind(core.layer, WORDS_PER_S)] * 16 / core.layers


def _kind(layer: FWPConfig | AttentionConfig, timed: Iterable[str]) -> str:
    """Which of the timed layers a layer is most like."""
    if isinstance(layer, AttentionConfig):
        return "attention"
    if layer.slow in timed:
        return layer.slow
    # not "delta", where there is "delta_net"
    return max((name for name in timed if name in layer.fast), key=len, default=layer.rule)


def guess(config: AnyConfig) -> float:
    """Seconds of training on an idle H200, roughly."""
    if isinstance(config, LanguageRunConfig):
        return guess_language(config)
    steps = -(-getattr(config.task, "train", 10_000) // config.train.batch) * config.train.epochs
    ms, core = STEP_MS["delta"], config.model.core
    if isinstance(core, LSTMConfig):
        ms = STEP_MS["lstm"] * core.layers * (core.hidden / 256) ** 0.75
    elif isinstance(core, BlocksConfig):
        # half of a step goes through time, layer by layer, whatever the width
        ms = STEP_MS[_kind(core.layer, STEP_MS)] * core.layers / 4 * (0.5 + 0.5 * core.width / 256)
    # a batch is as long as its longest sequence: about 28 tokens a level of a list
    length = config.task.depth * 28 / 450 if isinstance(config.task, ListOpsConfig) else 1.0
    return steps * ms * length / 1000


def key(config: AnyConfig | RLRunConfig) -> str:
    """Of everything but the seed and the places of the data."""
    seed = "impala.seed" if isinstance(config, RLRunConfig) else "train.seed"
    data = to_dict(replace(config, {seed: 0}))
    for section, _, name in (place.partition(".") for place in PLACES):
        data.get(section, {}).pop(name, None)
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:8]
