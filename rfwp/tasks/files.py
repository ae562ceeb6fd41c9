"""A user's own sequences: FOLDER/train.src and train.tgt, valid.* and test.*; one sequence a line, one target a token."""

import re
from pathlib import Path

import torch
from torch import Tensor

from rfwp.config import FilesConfig
from rfwp.errors import InvalidFile, unknown
from rfwp.tasks.text import tokenise
from rfwp.tasks.types import SPLITS, Split, Vocabulary, pack, tally, tally_sequences

_PATTERN = re.compile(r"\S+")
_WANTED = ", ".join(f"{name}.{side}" for name in SPLITS for side in ("src", "tgt"))

Lines = list[list[str]]


class Files:
    """Vocabularies are the tokens of the training files in sorted order; all files are read and checked at once."""

    score = "sequence accuracy"

    def __init__(self, config: FilesConfig) -> None:
        self.config = config
        folder = Path(config.folder).expanduser()
        if not folder.is_dir():
            raise InvalidFile(f"{folder} is not a folder; give one with {_WANTED}")
        lines = {name: _read_pair(folder, name) for name in SPLITS}
        self.source, self.target = (Vocabulary(sorted({token for line in side for token in line})) for side in lines["train"])
        self._splits = {name: self._encode_pair(folder, name, *lines[name]) for name in SPLITS}

    def split(self, name: str) -> Split:
        if name not in SPLITS:
            raise unknown("split", name, SPLITS)
        return self._splits[name]

    def count(self, predictions: Tensor, targets: Tensor) -> dict[str, Tensor]:
        right, has_target = predictions == targets, targets >= 0
        # no id where the training files never use the silent token: then every target is spoken
        silent = self.target.encode([self.config.silent])[0] if self.config.silent in self.target else len(self.target)
        return {
            "sequence accuracy": tally_sequences(predictions, targets),
            "token accuracy": tally(right, has_target),
            "spoken accuracy": tally(right, has_target & (targets != silent)),
        }

    def encode(self, text: str) -> Tensor:
        return torch.tensor(self.source.encode(symbol for symbol, _ in tokenise(text, _PATTERN, self.source)))

    def truth(self, text: str) -> None:
        """Nobody knows the rule behind a user's files."""

    def _encode_pair(self, folder: Path, name: str, source: Lines, target: Lines) -> Split:
        tokens = _encode(folder / f"{name}.src", source, self.source)
        targets = _encode(folder / f"{name}.tgt", target, self.target)
        return pack(zip(tokens, targets, strict=True), len(self.source), len(self.target))


def _encode(path: Path, lines: Lines, vocabulary: Vocabulary) -> list[list[int]]:
    rows = []
    for number, line in enumerate(lines, 1):
        strange = next((token for token in line if token not in vocabulary), None)
        if strange is not None:
            train = path.with_name(f"train{path.suffix}")
            raise InvalidFile(
                f"{path}: line {number} has the token '{strange}', which is not in {train.name}; models know only its tokens"
            )
        rows.append(vocabulary.encode(line))
    return rows


def _read_pair(folder: Path, name: str) -> tuple[Lines, Lines]:
    """The tokens of both files of a split, which stand side by side."""
    source_path, target_path = folder / f"{name}.src", folder / f"{name}.tgt"
    source, target = _read(source_path), _read(target_path)
    if len(source) != len(target):
        raise InvalidFile(
            f"{source_path} has {len(source)} lines but {target_path.name} has {len(target)}; give one line for each"
        )
    for number, (tokens, targets) in enumerate(zip(source, target, strict=True), 1):
        if len(tokens) != len(targets):
            raise InvalidFile(
                f"{target_path}: line {number} has {len(targets)} targets for {len(tokens)} tokens in {source_path.name};"
                " give one target for each token"
            )
    return source, target


def _read(path: Path) -> Lines:
    if not path.is_file():
        raise InvalidFile(f"{path} is missing; the folder needs {_WANTED}")
    try:
        content = path.read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise InvalidFile(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InvalidFile(
            f"{path}: line {line} is not UTF-8 (byte 0x{content[error.start]:02x}); convert the file to UTF-8"
        ) from None
    if not text.strip():
        raise InvalidFile(f"{path} is empty; give at least one sequence")
    # only the line feed ends a line: other separators may stand inside one
    lines = [line.split() for line in text.removesuffix("\n").split("\n")]
    empty = next((number for number, line in enumerate(lines, 1) if not line), None)
    if empty is not None:
        raise InvalidFile(f"{path}: line {empty} is empty; give at least one token, or remove the line from .src and .tgt")
    return lines
