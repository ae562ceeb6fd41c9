"""Running text from files: words between whitespace, `<eos>` after every line, never a whole file in memory."""

import lzma
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from rfwp.errors import InvalidFile

EOS = "<eos>"
_PIECE = 2**20
"""Bytes that are read at once: a longer line comes in pieces."""
_WORDS = 2**16
"""Words that are handed on at once."""


class Piece(NamedTuple):
    line: int
    """Counted from 1."""
    text: str
    ends: bool
    """Whether the line ends here."""


def file_names(split: str) -> list[str]:
    """The names under which the text of a split is looked for."""
    plain = [f"wiki.{split}.tokens", f"wiki.{split}.txt", f"wiki.{split}", f"{split}.txt"]
    return plain + [f"{name}.xz" for name in plain]


def find_files(folder: Path, splits: Iterable[str]) -> dict[str, Path]:
    """The one file of each split."""
    if not folder.is_dir():
        raise InvalidFile(f"{folder} is not a folder; give one with wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens")
    found = {}
    for split in splits:
        names = file_names(split)
        here = [name for name in names if (folder / name).is_file()]
        if not here:
            raise InvalidFile(f"{folder} has no text for {split}; looked for {', '.join(names)}")
        if len(here) > 1:
            raise InvalidFile(f"{folder} has several texts for {split}: {', '.join(here)}; keep one of them")
        found[split] = folder / here[0]
    return found


def read_words(path: Path) -> Iterator[list[str]]:
    """All words of a file in order, in lists of some ten thousand; blank lines have their `<eos>` too."""
    words: list[str] = []
    empty = True
    for _, text, ends in read_pieces(path):
        found = text.split()
        words += found
        empty = empty and not found
        if ends:
            words.append(EOS)
        if len(words) >= _WORDS:
            yield words
            words = []
    if empty:
        raise InvalidFile(f"{path} is empty; give a file with at least one word")
    yield words


def read_pieces(path: Path) -> Iterator[Piece]:
    """The lines of a UTF-8 file, plain or .xz; a very long line in several pieces that end between words.

    Only the line feed ends a line: other separators may stand inside one.
    """
    line, ends, rest = 0, True, b""
    try:
        with _open(path) as file:
            while piece := file.readline(_PIECE):
                if line == 0:
                    piece = piece.removeprefix(BOM_UTF8)
                # a new line, if the piece before ended one
                line += ends
                piece = rest + piece
                ends = piece.endswith(b"\n")
                # less than was asked for: the last line, without a line feed
                last = not ends and len(piece) < _PIECE
                cut = len(piece) if ends else 0 if last else max(map(piece.rfind, (b" ", b"\t", b"\r"))) + 1
                rest = piece[cut:]
                if len(rest) > _PIECE:
                    raise InvalidFile(f"{path}: line {line} has a word of more than {_PIECE:,} bytes, so it is no text")
                if cut:
                    yield Piece(line, _decode(path, line, piece[:cut]), ends)
    except (lzma.LZMAError, EOFError) as error:
        raise InvalidFile(f"{path} cannot be unpacked: {error}; fetch it again") from None
    except OSError as error:
        raise InvalidFile(f"{path} cannot be read: {error.strerror or error}") from None
    if not ends:
        yield Piece(line, _decode(path, line, rest), True)


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, lzma.open(path)) if path.suffix == ".xz" else open(path, "rb")


def _decode(path: Path, line: int, content: bytes) -> str:
    if b"\0" in content:
        raise InvalidFile(f"{path}: line {line} has a zero byte, so it is no UTF-8 text; convert it, or give another file")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InvalidFile(
            f"{path}: line {line} is not UTF-8 (byte 0x{content[error.start]:02x}); convert the file to UTF-8"
        ) from None
