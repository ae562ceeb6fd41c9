"""WikiText from the Hugging Face hub, as the plain files wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rfwp.atomic import whole_file
from rfwp.errors import InvalidFile, missing_extra, reason

REPOSITORY = "Salesforce/wikitext"
# a commit and no branch: the files behind it never change, and those already here are found without asking the hub
REVISION = "b08601e04326c79dfdd32d625aee71d232d685c3"


class Part(NamedTuple):
    files: tuple[str, ...]
    """In the hub's repository."""
    tokens: int
    """Words, and one for each line's end."""


def _parts(folder: str, train_files: int, train_tokens: int) -> dict[str, Part]:
    train = tuple(f"{folder}/train-{number:05d}-of-{train_files:05d}.parquet" for number in range(train_files))
    return {
        "train": Part(train, train_tokens),
        "valid": Part((f"{folder}/validation-00000-of-00001.parquet",), 217_646),
        "test": Part((f"{folder}/test-00000-of-00001.parquet",), 245_569),
    }


WIKITEXT = {
    "wikitext-103": _parts("wikitext-103-v1", 2, 103_227_021),
    "wikitext-2": _parts("wikitext-2-v1", 1, 2_088_628),
}


def wikitext_folder(name: str, cache: Path, splits: Iterable[str]) -> Path:
    """The folder with the texts of these splits; those that are not there yet are downloaded, checked and unpacked."""
    folder = cache / name
    for split in splits:
        path = folder / f"wiki.{split}.tokens"
        if not path.is_file():
            _unpack(WIKITEXT[name][split], path)
    return folder


def _unpack(part: Part, path: Path) -> None:
    """Rows of parquet files as lines of a text file, which is there only if it has as many tokens as it must."""
    # before a long download, not after it
    _parquet()
    downloaded = [_download(file) for file in part.files]
    tokens = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as text:
            for line in _rows(downloaded):
                tokens += len(line.split()) + 1
                text.write(line.removesuffix("\n").encode() + b"\n")
            if tokens != part.tokens:
                files = ", ".join(part.files)
                raise InvalidFile(f"{files} of {REPOSITORY}: {tokens:,} tokens, expected {part.tokens:,}; this is another text")
    except OSError as error:
        raise InvalidFile(f"{path} cannot be written: {error.strerror or error}; set RFWP_CACHE to another folder") from None


def _download(file: str) -> Path:
    """A file of the repository in the hub's own cache, with the SHA-256 that the hub has for it."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise missing_extra("downloading WikiText", "text") from None
    try:
        path = Path(hf_hub_download(REPOSITORY, file, repo_type="dataset", revision=REVISION))
        expected = _expected(path, file)
    except Exception as error:
        # without a network the errors are those of the HTTP library, which is another one in each generation of the hub's client
        problem = f"{file} cannot be downloaded from {REPOSITORY}: {reason(error).rstrip('.')}"
        raise InvalidFile(f"{problem}; or give a folder with wiki.train.tokens, ...") from error
    with open(path, "rb") as content:
        seen = hashlib.file_digest(content, "sha256").hexdigest()
    if seen != expected:
        # the hub's cache has a link to the file itself, which it would go on using
        for damaged in (path.resolve(), path):
            damaged.unlink(missing_ok=True)
        raise InvalidFile(f"{path} was damaged and is removed: its SHA-256 was {seen}, the hub has {expected}; start again")
    return path


def _expected(path: Path, file: str) -> str:
    """The hub's SHA-256 of a file. Its cache links to files of that name; where a system has no links, the hub is asked."""
    if re.fullmatch("[0-9a-f]{64}", name := path.resolve().name):
        return name
    from huggingface_hub import HfApi

    (entry,) = HfApi().get_paths_info(REPOSITORY, [file], repo_type="dataset", revision=REVISION)
    return entry.lfs.sha256  # type: ignore[union-attr]


def _rows(paths: Iterable[Path]) -> Iterator[str]:
    """Each row is a line of the text; blank lines are empty rows."""
    for path in paths:
        with _parquet().ParquetFile(path) as file:
            for batch in file.iter_batches(columns=["text"]):
                yield from batch.column(0).to_pylist()


def _parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise missing_extra("reading WikiText's parquet files", "text") from None
    return pyarrow.parquet
