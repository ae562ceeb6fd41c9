"""Traces by key, the latest ones: bounded in length, number and memory."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rfwp.config import replace
from rfwp.errors import InvalidInput, unknown
from rfwp.models import Agent, SequenceModel
from rfwp.play.shown import Reader, Shown, ShownAgent, ShownLanguage, ShownTask
from rfwp.tasks import CodeExecution, ListOps
from rfwp.trace import Trace, trace

if TYPE_CHECKING:
    from rfwp.play.language import Reading

MOST_CHARACTERS = 12_000
MOST_TOKENS = 1_000
MOST_KEPT = 12
MOST_BYTES = 2**30
"""Of the fast weights of all kept traces."""
MOST_STATEMENTS, MOST_DEPTH = 100, 15


@dataclass(frozen=True)
class Kept:
    shown: Reader
    steps: "Trace | Reading"
    symbols: list[str]
    """The text as it was written, one for each step."""
    truth: list[str]
    """What is right at each step, "" where nothing is."""
    size: int


class Traces:
    """Traces what it is asked for, one at a time, and forgets the oldest."""

    def __init__(self, shown: Mapping[str, Shown]):
        self.shown = shown
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._lock = threading.Lock()

    def model(self, name: str) -> Shown:
        if name not in self.shown:
            raise unknown("model", name, self.shown)
        return self.shown[name]

    def reader(self, name: str) -> Reader:
        shown = self.model(name)
        if isinstance(shown, ShownAgent):
            raise InvalidInput(f"{name} is an agent: it plays, it does not read; choose another model")
        return shown

    def language_model(self, name: str) -> ShownLanguage:
        shown = self.model(name)
        if not isinstance(shown, ShownLanguage):
            raise InvalidInput(f"{name} is no language model; choose another model")
        return shown

    def add(self, name: str, text: str) -> tuple[str, Kept]:
        """Let a model read a text; the same text twice is one trace."""
        shown = self.reader(name)
        if len(text) > MOST_CHARACTERS:
            raise InvalidInput(f"the text has {len(text):,} characters; give at most {MOST_CHARACTERS:,}")
        key = hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()[:16]
        with self._lock:
            if key not in self._kept:
                self._keep(key, self._read(shown, text))
            self._kept.move_to_end(key)
            return key, self._kept[key]

    def get(self, key: str) -> Kept | None:
        return self._kept.get(key)

    def _read(self, shown: Reader, text: str) -> Kept:
        kept = _read_words(shown, text) if isinstance(shown, ShownLanguage) else _read_symbols(shown, text)
        finite = kept.steps.logits if isinstance(kept.steps, Trace) else kept.steps.probabilities
        if not finite.isfinite().all():
            raise InvalidInput(f"{shown.name} says nothing but NaN to this text; its weights may be damaged")
        return kept

    def _keep(self, key: str, kept: Kept) -> None:
        self._kept[key] = kept
        while len(self._kept) > MOST_KEPT or sum(k.size for k in self._kept.values()) > MOST_BYTES:
            self._kept.popitem(last=False)


def _read_symbols(shown: ShownTask, text: str) -> Kept:
    """A program or a list."""
    tokens, truth = shown.task.encode(text), shown.task.truth(text)
    if len(tokens) > MOST_TOKENS:
        raise InvalidInput(f"the text has {len(tokens):,} tokens; the page shows at most {MOST_TOKENS:,}")
    size = _size(shown, len(tokens))
    return Kept(shown, trace(shown.model, tokens), shown.task.source.decode(tokens), truth, size)


def _read_words(shown: ShownLanguage, text: str) -> Kept:
    from rfwp.play.language import read_text, words_of

    size = _size(shown, len(words_of(text)))
    reading = read_text(shown, text)
    following = shown.words.decode(reading.tokens[1:])
    return Kept(shown, reading, reading.written, [*following, ""], size)


def _size(shown: Reader, steps: int) -> int:
    """The memory that a trace needs; an error if that is too much."""
    each = bytes_a_step(shown.model)
    if steps * each > MOST_BYTES:
        seen = f"the fast weights of {shown.name} over {steps:,} tokens need too much memory"
        raise InvalidInput(f"{seen}; give at most {MOST_BYTES // each:,} tokens")
    return steps * each


def bytes_a_step(model: SequenceModel | Agent) -> int:
    """Of the fast weights of all layers."""
    layers = [block.layer for block in model.core.blocks]  # type: ignore[union-attr]
    return sum(4 * layer.heads * m.rows * m.cols for layer in layers for m in layer.composition.fast.matrices(layer.head_size))


def generate(shown: Shown, size: int, seed: int) -> str:
    """A random program of so many statements, or a list of that depth."""
    if not isinstance(shown, ShownTask):
        raise InvalidInput(f"{shown.name} reads no programs or lists; choose another model")
    config = shown.task.config
    name, least, most = ("statements", 2, MOST_STATEMENTS) if isinstance(shown.task, CodeExecution) else ("depth", 1, MOST_DEPTH)
    if not least <= size <= most:
        raise InvalidInput(f"{name}={size} does not fit; use {least} to {most}")
    changes = {name: size, "data_seed": seed, "train": 1, "valid": 1, "test": 1}
    task = type(shown.task)(replace(config, changes))
    assert isinstance(task, CodeExecution | ListOps)
    split = task.generate("train")
    return " ".join(task.source.decode(split.tokens[0, : int(split.lengths[0])]))
