"""What `rfwp train` and `rfwp eval` do for language models, without printing."""

import json
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from rfwp.config import BlocksConfig, LanguageRunConfig, TextConfig, replace
from rfwp.errors import InvalidFile, InvalidInput
from rfwp.lm.evaluate import on_device, paper_perplexity, precision_of
from rfwp.lm.loop import LanguageTrainer
from rfwp.lm.saved import load_language_model
from rfwp.lm.schedule import check_language_training
from rfwp.models.perplexity import Perplexity, sliding_window
from rfwp.tasks.hub import WIKITEXT
from rfwp.tasks.wikitext import Text
from rfwp.tasks.words import Words
from rfwp.train.checkpoint import replace_file
from rfwp.train.command import Kind, parse_changes
from rfwp.train.folder import RunFolder
from rfwp.train.log import Log
from rfwp.train.options import EvalOptions, TrainOptions
from rfwp.train.speed import find_device


def is_language_run(base: Any, options: TrainOptions) -> bool:
    """Whether the run of a preset, or of the folder that is to be resumed, is that of a language model."""
    if base is None and options.resume is not None:
        folder = RunFolder(options.resume)
        # what is no run folder is said where a run is resumed
        base = folder.config() if folder.used else None
    return isinstance(base, LanguageRunConfig)


# --- rfwp train ---


def changed(base: LanguageRunConfig, options: TrainOptions) -> LanguageRunConfig:
    """With --steps, --text, --vocabulary and --set. For another text the model gets the size of its vocabulary."""
    if options.epochs is not None:
        raise InvalidInput("--epochs is for tasks of sequences; a language model is trained for --steps N")
    if options.data is not None:
        raise InvalidInput("--data is for sequences with targets; a language model reads --text FOLDER")
    changes = parse_changes(options.set)
    given = _flags(base, options)
    if twice := sorted(set(given) & set(changes) - {"train.warmup", "train.validate_every"}):
        raise InvalidInput(f"{twice[0]} is there twice, as a flag and behind --set; give it once")
    config: LanguageRunConfig = replace(base, given | _with_embedding(base, changes))
    check_language_training(config)
    if config.text.segment != base.text.segment and "model.window" not in changes:
        # positions count down to the end of a segment
        config = replace(config, {"model.window": config.text.segment})
    if (config.text.source, config.text.vocabulary) != (base.text.source, base.text.vocabulary):
        config = fit_vocabulary(config, _count_words(config.text), keep=set(changes))
    return config


KIND = Kind(changed, LanguageTrainer)


@cache
def _count_words(text: TextConfig) -> int:
    """Once for all runs of a command."""
    return len(Text(text, splits=()).words)


def _with_embedding(base: LanguageRunConfig, changes: dict[str, Any]) -> dict[str, Any]:
    """Blocks read embeddings of their own width: who changes the one only means both."""
    width = changes.get("model.core.width")
    if width is None or "model.embedding" in changes or not isinstance(base.model.core, BlocksConfig):
        return changes
    return {**changes, "model.embedding": width}


def _flags(base: LanguageRunConfig, options: TrainOptions) -> dict[str, Any]:
    """What the flags change."""
    found: dict[str, Any] = {}
    for name, source in (("text.source", options.text), ("text.held_out", options.held_out)):
        if source:
            found[name] = source if source in WIKITEXT else _absolute(source)
    if options.vocabulary is not None:
        found["text.vocabulary"] = _absolute(str(options.vocabulary))
    if options.steps is not None:
        train = base.train
        found["train.steps"] = options.steps
        found["train.warmup"] = min(train.warmup, options.steps // 10)
        found["train.validate_every"] = min(train.validate_every, max(1, -(-options.steps // 5)))
    return found


def _absolute(path: str) -> str:
    """A run may be resumed from another place. What is not there stays as it was typed, for the error that follows."""
    found = Path(path).expanduser()
    return str(found.resolve()) if found.exists() else path


def fit_vocabulary(config: LanguageRunConfig, words: int, keep: set[str] | frozenset[str] = frozenset()) -> LanguageRunConfig:
    """The model's inputs and outputs are the words, and its cutoffs lie among them, unless they were given.

    Where all cutoffs lie beyond, the rarest word alone is a cluster: that is a plain softmax with tied weights.
    """
    cutoffs = tuple(cutoff for cutoff in config.model.cutoffs if cutoff < words) or (words - 1,)
    sizes: dict[str, Any] = {"model.inputs": words, "model.outputs": words}
    if config.model.cutoffs:
        sizes["model.cutoffs"] = cutoffs
    fitted: LanguageRunConfig = replace(config, {name: size for name, size in sizes.items() if name not in keep})
    return fitted


# --- rfwp eval ---


@dataclass(frozen=True)
class Evaluation:
    """What a run's best checkpoint reaches on a split, and how its loss depends on the place in a segment."""

    split: str
    how: str
    """`windows of 256 words, 1 apart` or `full context`."""
    found: Perplexity
    seconds: float
    by_position: dict[str, list[float]]
    """Mean -log p in nats at each position, with the state cut before each segment, and carried where the run does that."""

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("perplexity", f"{self.found.perplexity:.2f}"),
            ("-log p a word", f"{self.found.mean:.4f} nats"),
            ("words", f"{self.found.count:,}"),
            ("protocol", self.how),
            ("seconds", f"{self.seconds:.1f}"),
        ]


def evaluate_run(path: Path, options: EvalOptions, log: Log) -> Evaluation:
    """By the paper's protocol; the numbers are also kept in the run's folder, as eval-SPLIT.json."""
    if options.input is not None:
        raise InvalidInput(f"--input is for tasks of sequences; a language model goes on with a text: rfwp generate {path}")
    config = RunFolder(path).config()
    assert isinstance(config, LanguageRunConfig)
    stride = config.train.test_stride if options.stride is None else options.stride
    model, words = load_language_model(path, find_device(options.device))
    tokens = on_device(_tokens(config, words, options.split), next(model.parameters()).device)
    segment, carry = config.text.segment, config.train.carry
    if not 1 <= stride <= segment:
        raise InvalidInput(f"--stride {stride} does not fit windows of {segment} words; use 1 to {segment}")
    begun = time.monotonic()
    try:
        found = paper_perplexity(model, tokens, config, stride, lambda done, total: log.working(options.split, done, total))
        seconds = time.monotonic() - begun
        with precision_of(config.train.precision, tokens.device):
            cut = sliding_window(model, tokens, segment, stride=segment)
    finally:
        log.end()
    curves = {"state cut before each segment": cut} | ({"state carried": found} if carry else {})
    how = "full context" if carry else f"windows of {segment} words, {stride} apart"
    by_position = {name: _numbers(curve.by_position) for name, curve in curves.items()}
    evaluation = Evaluation(options.split, how, found, seconds, by_position)
    _keep(evaluation, path)
    return evaluation


def _tokens(config: LanguageRunConfig, words: Words, split: str) -> Any:
    try:
        return Text(config.text, splits=(split,), words=words).tokens(split)
    except InvalidFile as error:
        raise InvalidFile(f"{error} (the text that the run was trained on)") from error


def _numbers(values: torch.Tensor) -> list[float]:
    """Only positions that have targets; a text may be shorter than a window."""
    return [round(value, 6) for value in values.tolist() if value == value]


def _keep(evaluation: Evaluation, path: Path) -> None:
    data = {
        "split": evaluation.split,
        "protocol": evaluation.how,
        "perplexity": evaluation.found.perplexity,
        "words": evaluation.found.count,
        "seconds": round(evaluation.seconds, 3),
        "by_position": evaluation.by_position,
    }
    replace_file(path / f"eval-{evaluation.split}.json", (json.dumps(data) + "\n").encode())
