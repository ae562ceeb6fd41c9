"""The words that a language model knows: by frequency, with `<eos>` for the end of a line and `<unk>` for all others."""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterable
from functools import cache, cached_property
from itertools import repeat
from pathlib import Path
from typing import Self

import numpy as np

from rfwp.atomic import whole_file
from rfwp.errors import InvalidFile
from rfwp.tasks.reading import EOS, read_pieces, read_words
from rfwp.tasks.types import Vocabulary

UNK = "<unk>"
_log = logging.getLogger(__name__)


class Words(Vocabulary):
    """A vocabulary in which every word has an id: a word that it does not have is `<unk>`."""

    def __init__(self, symbols: Iterable[str]) -> None:
        super().__init__(symbols)
        self.eos, self.unk = self._ids[EOS], self._ids[UNK]

    @classmethod
    def from_text(cls, path: Path) -> Self:
        """`<eos>`, then the words of a text by frequency, those with the same frequency in the order they are first seen."""
        counts: Counter[str] = Counter()
        for words in read_words(path):
            counts.update(words)
        # it is first, however often it occurs
        del counts[EOS]
        return cls(_completed([EOS, *(word for word, _ in counts.most_common())], path))

    @classmethod
    def from_content(cls, content: bytes) -> Self:
        """What `content` gives."""
        return cls(content.decode().split())

    @classmethod
    def load(cls, path: Path) -> Self:
        """One word a line, plain or .xz; further columns are ignored. The ids follow the lines; a missing `<eos>` becomes 0."""
        lines: dict[str, int] = {}
        for line, text, ends in read_pieces(path):
            if not ends:
                raise InvalidFile(f"{path}: line {line} is very long; give one word a line")
            word = next(iter(text.split()), None)
            if word is None:
                raise InvalidFile(f"{path}: line {line} is empty; give one word a line")
            if word in lines:
                raise InvalidFile(f"{path}: line {line} has the word '{word}' of line {lines[word]} again; remove one of them")
            lines[word] = line
        if not lines:
            raise InvalidFile(f"{path} is empty; give one word a line")
        return cls(_completed(lines, path))

    def save(self, path: Path) -> None:
        """One word a line, for `load`; the file is there whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(self.content())

    @cached_property
    def digest(self) -> str:
        """The same for the same words in the same order, and only then."""
        return hashlib.sha256(self.content()).hexdigest()

    def encode(self, symbols: Iterable[str]) -> list[int]:
        return list(map(self._ids.get, symbols, repeat(self.unk)))

    def array(self, words: list[str]) -> np.ndarray:
        """Their ids as int32."""
        return np.fromiter(map(self._ids.get, words, repeat(self.unk)), np.int32, len(words))

    def content(self) -> bytes:
        """Of the file that `save` writes."""
        return "".join(f"{word}\n" for word in self.symbols).encode()


def check_same_vocabulary(saved: Words, here: Words) -> None:
    """A model's ids mean what they meant in training only with the vocabulary it was trained with."""
    if saved.digest == here.digest:
        return
    place = next(
        (place for place, (old, new) in enumerate(zip(saved.symbols, here.symbols, strict=False)) if old != new),
        min(len(saved), len(here)),
    )
    old, new = (f"'{words.symbols[place]}'" if place < len(words) else "nothing" for words in (saved, here))
    raise InvalidFile(
        f"the model was trained with another vocabulary ({len(saved):,} words) than this text has ({len(here):,}):"
        f" word {place} is {old} there and {new} here; use the vocabulary file saved with the model"
    )


def _completed(words: Iterable[str], path: Path) -> list[str]:
    """With `<eos>` first and `<unk>` after it where they are missing; in an adaptive softmax both are then frequent words."""
    symbols = list(words)
    if EOS not in symbols:
        symbols.insert(0, EOS)
    if UNK not in symbols:
        symbols.insert(symbols.index(EOS) + 1, UNK)
        _say_added(path, symbols.index(UNK))
    return symbols


@cache
def _say_added(path: Path, place: int) -> None:
    """Once, however often a file is read."""
    _log.warning("%s has no %s; added as word %d, for words that are not in the vocabulary", path, UNK, place)
