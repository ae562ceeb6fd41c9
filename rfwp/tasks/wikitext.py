"""WikiText, or any running text in three files: one vocabulary, and each split as one long array of word ids."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rfwp.config import TextConfig
from rfwp.errors import InvalidInput, unknown
from rfwp.tasks.cache import cache_folder
from rfwp.tasks.hub import WIKITEXT, wikitext_folder
from rfwp.tasks.reading import find_files
from rfwp.tasks.streams import Batches
from rfwp.tasks.tokens import tokens_of, words_of
from rfwp.tasks.types import SPLITS
from rfwp.tasks.words import Words


class Text:
    """The splits that are asked for are found, read and checked at once; after the first time this takes no time.

    `words` is the vocabulary to use instead of the config's, such as the one that was saved with a model.
    """

    def __init__(
        self, config: TextConfig, cache: Path | None = None, splits: Sequence[str] = SPLITS, words: Words | None = None
    ) -> None:
        self.config = config
        for name in splits:
            if name not in SPLITS:
                raise unknown("split", name, SPLITS)
        if type(config.segment) is not int or config.segment < 1:
            raise InvalidInput(f"segment={config.segment!r} does not fit; use a whole number, at least 1")
        kept = (cache_folder() if cache is None else Path(cache)).expanduser()
        builds = words is None and not config.vocabulary
        wanted = [name for name in SPLITS if name in splits or (builds and name == "train")]
        files = _files(config, kept, wanted)
        if words is None:
            words = words_of(files["train"], kept) if builds else Words.load(Path(config.vocabulary).expanduser())
        self.words = words
        self._tokens = {name: tokens_of(files[name], words, kept) for name in splits}

    def tokens(self, name: str) -> np.ndarray:
        """The ids of a split in order, (N,) int32, read only."""
        if name not in self._tokens:
            raise unknown("split", name, self._tokens)
        return self._tokens[name]

    def batches(self, name: str, streams: int, rank: int = 0, world: int = 1) -> Batches:
        """One pass over a split in `streams` streams, over all processes; this process gets its share of them."""
        return Batches(self.tokens(name), streams, self.config.segment, rank, world)


def _files(config: TextConfig, cache: Path, splits: Sequence[str]) -> dict[str, Path]:
    """The file of each split: that of training may be in another place than the others."""
    files: dict[str, Path] = {}
    for source, here in ((config.source, ["train"]), (config.held_out or config.source, ["valid", "test"])):
        if wanted := [name for name in splits if name in here]:
            files |= find_files(_folder(source, cache, wanted), wanted)
    return files


def _folder(source: str, cache: Path, splits: Sequence[str]) -> Path:
    """A known name is that data set, also where there is a folder of this name: that one is ./name."""
    if source in WIKITEXT:
        return wikitext_folder(source, cache, splits)
    folder = Path(source).expanduser()
    if not folder.exists() and Path(source).name == source:
        raise unknown("text or folder", source, WIKITEXT)
    return folder
