"""Traces by key, the latest ones: bounded in length, number and memory."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from rfwp.config import replace
from rfwp.errors import InvalidInput, unknown
from rfwp.play.shown import Shown
from rfwp.tasks import CodeExecution, ListOps
from rfwp.trace import Trace, trace

MOST_CHARACTERS = 12_000
MOST_TOKENS = 1_000
MOST_KEPT = 12
MOST_BYTES = 2**30
"""Of the fast weights of all kept traces."""
MOST_STATEMENTS, MOST_DEPTH = 100, 15


@dataclass(frozen=True)
class Kept:
    shown: Shown
    steps: Trace
    truth: list[str]
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

    def add(self, name: str, text: str) -> tuple[str, Kept]:
        """Let a model read a text; the same text twice is one trace."""
        shown = self.model(name)
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

    def _read(self, shown: Shown, text: str) -> Kept:
        tokens, truth = shown.task.encode(text), shown.task.truth(text)
        if len(tokens) > MOST_TOKENS:
            raise InvalidInput(f"the text has {len(tokens):,} tokens; the page shows at most {MOST_TOKENS:,}")
        size = len(tokens) * bytes_a_step(shown)
        if size > MOST_BYTES:
            most = MOST_BYTES // bytes_a_step(shown)
            seen = f"the fast weights of {shown.name} over {len(tokens):,} tokens need too much memory"
            raise InvalidInput(f"{seen}; give at most {most:,} tokens")
        steps = trace(shown.model, tokens)
        if not steps.logits.isfinite().all():
            raise InvalidInput(f"{shown.name} says nothing but NaN to this text; its weights may be damaged")
        return Kept(shown, steps, truth, size)

    def _keep(self, key: str, kept: Kept) -> None:
        self._kept[key] = kept
        while len(self._kept) > MOST_KEPT or sum(k.size for k in self._kept.values()) > MOST_BYTES:
            self._kept.popitem(last=False)


def bytes_a_step(shown: Shown) -> int:
    """Of the fast weights of all layers."""
    layers = [block.layer for block in shown.model.core.blocks]  # type: ignore[union-attr]
    return sum(4 * layer.heads * m.rows * m.cols for layer in layers for m in layer.composition.fast.matrices(layer.head_size))


def generate(shown: Shown, size: int, seed: int) -> str:
    """A random program of so many statements, or a list of that depth."""
    config = shown.task.config
    name, least, most = ("statements", 2, MOST_STATEMENTS) if isinstance(shown.task, CodeExecution) else ("depth", 1, MOST_DEPTH)
    if not least <= size <= most:
        raise InvalidInput(f"{name}={size} does not fit; use {least} to {most}")
    changes = {name: size, "data_seed": seed, "train": 1, "valid": 1, "test": 1}
    task = type(shown.task)(replace(config, changes))
    assert isinstance(task, CodeExecution | ListOps)
    split = task.generate("train")
    return " ".join(task.source.decode(split.tokens[0, : int(split.lengths[0])]))
