"""The paper's test of a language model's run."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from rfwp.config import LanguageRunConfig, replace
from rfwp.errors import InvalidInput
from rfwp.lm.evaluate import on_device, paper_perplexity
from rfwp.lm.saved import load_language_model, places_of_text, text_of_run
from rfwp.models.perplexity import Perplexity, sliding_window
from rfwp.tasks.wikitext import Text
from rfwp.train.checkpoint import replace_file
from rfwp.train.folder import RunFolder
from rfwp.train.log import Log
from rfwp.train.options import EvalOptions
from rfwp.train.speed import find_device
from rfwp.train.step import precision_of


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
    place: str
    """Where the text of the split lies."""
    own: bool
    """That of the run itself, and none that was named for this evaluation."""

    @property
    def name(self) -> str:
        """Of its files: those of another text are not in the place of the run's own."""
        return self.split if self.own else f"{self.split}-{Path(self.place).resolve().name}"

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("perplexity", f"{self.found.perplexity:.2f}"),
            ("-log p a word", f"{self.found.mean:.4f} nats"),
            ("words", f"{self.found.count:,}"),
            ("protocol", self.how),
            ("seconds", f"{self.seconds:.1f}"),
        ]


def evaluate_run(path: Path, options: EvalOptions, log: Log) -> Evaluation:
    """By the paper's protocol."""
    if options.input is not None:
        raise InvalidInput(f"--input is for tasks of sequences; a language model goes on with a text: rfwp generate {path}")
    if options.data is not None:
        raise InvalidInput("--data is for sequences with targets; a language model reads --text FOLDER")
    config = RunFolder(path).config()
    assert isinstance(config, LanguageRunConfig)
    config = _at_its_place(config, options)
    if config.train.carry and options.stride is not None:
        raise InvalidInput("--stride is for windows; this run carries its state, so its text is read once, without windows")
    stride = config.train.test_stride if options.stride is None else options.stride
    model, words = load_language_model(path, find_device(options.device))
    own = not (options.text or options.held_out)
    splits = (options.split,)
    # who has named a place need not hear that it can be named
    text = text_of_run(config, splits, words) if own else Text(config.text, splits=splits, words=words)
    tokens = on_device(text.tokens(options.split), next(model.parameters()).device)
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
    return Evaluation(options.split, how, found, seconds, by_position, _place(config, options.split), own)


def _at_its_place(config: LanguageRunConfig, options: EvalOptions) -> LanguageRunConfig:
    """The config of the run with the text where the options say; that of the split must be among what they name."""
    moved: LanguageRunConfig = replace(config, places_of_text(options.text, options.held_out))
    named = {"--text": options.text, "--held-out": options.held_out}
    wanted = "--held-out" if options.split != "train" and moved.text.held_out else "--text"
    if any(named.values()) and not named[wanted]:
        raise InvalidInput(f"the {options.split} text of this run is not what was named; its place is {wanted} FOLDER")
    return moved


def _place(config: LanguageRunConfig, split: str) -> str:
    return config.text.source if split == "train" else config.text.held_out or config.text.source


def _numbers(values: torch.Tensor) -> list[float]:
    """Only positions that have targets; a text may be shorter than a window."""
    return [round(value, 6) for value in values.tolist() if value == value]


def keep(evaluation: Evaluation, run: Path) -> Path:
    """The numbers, as eval-SPLIT.json in the run's folder."""
    data = {
        "split": evaluation.split,
        "text": evaluation.place,
        "protocol": evaluation.how,
        "perplexity": evaluation.found.perplexity,
        "words": evaluation.found.count,
        "seconds": round(evaluation.seconds, 3),
        "by_position": evaluation.by_position,
    }
    path = run / f"eval-{evaluation.name}.json"
    replace_file(path, (json.dumps(data) + "\n").encode())
    return path
