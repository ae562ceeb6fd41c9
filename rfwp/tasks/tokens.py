"""Texts as arrays of word ids, made once and kept in the cache folder; opening one takes no time and no memory.

Several processes may start at once: each writes a file of its own and moves it into place, and all of them write the same.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from rfwp.atomic import remove_unfinished, whole_file
from rfwp.errors import InvalidFile, reason
from rfwp.tasks.reading import read_words
from rfwp.tasks.words import Words

VERSION = 1
"""To be raised when the same text gives other ids."""
_log = logging.getLogger(__name__)


def words_of(text: Path, folder: Path) -> Words:
    """The vocabulary of a training text."""
    path = folder / f"words-v{VERSION}-{_key(text)}.txt"
    # os.path: also where the folder may not be looked into
    if os.path.exists(path):
        try:
            return Words.load(path)
        except InvalidFile as error:
            _log.warning("%s; counting the words of %s again", error, text)
    _log.info("counting the words of %s", text)
    words = Words.from_text(text)
    try:
        words.save(path)
    except OSError as error:
        _log.warning("the vocabulary of %s has to be made again next time, the cache cannot be written: %s", text, error)
    return words


def tokens_of(text: Path, words: Words, folder: Path) -> np.ndarray:
    """The ids of a text, (N,) int32, read only; memory-mapped where the cache folder can be written."""
    path = folder / f"tokens-v{VERSION}-{_key(text, words.digest)}.npy"
    if os.path.exists(path):
        try:
            return _open(path)
        except (OSError, ValueError, EOFError) as error:
            _log.warning("%s is damaged (%s); reading %s again", path, reason(error), text)
    _log.info("turning the words of %s into numbers", text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(path)
        with whole_file(path) as file:
            _write(file, _encoded(text, words))
        return _open(path)
    except OSError as error:
        _log.warning("the tokens of %s stay in memory, the cache cannot be written: %s", text, error)
    tokens = np.concatenate(list(_encoded(text, words)))
    tokens.flags.writeable = False
    return tokens


def _key(text: Path, *more: str) -> str:
    """A text that was changed or replaced has another key; its content is not looked at, because that takes time."""
    status = text.stat()
    parts = [VERSION, str(text.resolve()), status.st_size, status.st_mtime_ns, *more]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _encoded(text: Path, words: Words) -> Iterator[np.ndarray]:
    return (words.array(part) for part in read_words(text))


def _open(path: Path) -> np.ndarray:
    tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    if tokens.dtype != np.int32 or tokens.ndim != 1:
        raise ValueError(f"{tokens.dtype} of shape {tokens.shape}")
    return tokens


def _write(file: BinaryIO, parts: Iterable[np.ndarray]) -> None:
    """An .npy file whose length is known only at its end."""
    start = _write_header(file, 0)
    count = 0
    for part in parts:
        file.write(part.data)
        count += len(part)
    file.seek(0)
    # numpy leaves room for any length, so that the header can be written over
    assert _write_header(file, count) == start


def _write_header(file: BinaryIO, count: int) -> int:
    header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.int32)), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, header)
    return file.tell()
