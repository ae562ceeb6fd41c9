"""Files that are there whole or not at all, whatever fails and however many processes write them at once."""

import glob
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, under a name of its own; moved to `path` at the end, removed if anything fails before.

    At every instant `path` is the old file or the new one, also when the power goes. A device or a pipe, as /dev/null, is
    written to as it is: moving a file there would replace it.
    """
    if path.exists() and not path.is_file():
        with open(path, "wb") as file:
            yield file
        return
    # in the same folder, because only there moving a file into place is one step
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.unfinished")
    try:
        with open(unfinished, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        sync(path.parent)
    except OSError as error:
        # its own name is nothing that a user has heard of
        if error.filename == str(unfinished) and error.filename2 is None:
            error.filename = str(path)
        raise
    finally:
        unfinished.unlink(missing_ok=True)


def remove_unfinished(path: Path, older_than: float = 3600.0) -> None:
    """Files that were to become `path` and were not written to for so many seconds: whoever wrote them was killed."""
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.unfinished"):
        # others may remove it, or write it to its end, meanwhile
        with suppress(FileNotFoundError):
            if time.time() - leftover.stat().st_mtime > older_than:
                leftover.unlink()


def write_whole(path: Path, content: bytes) -> None:
    """A file with this content; at every instant it is the old one or the new one."""
    with whole_file(path) as file:
        file.write(content)


def sync(path: Path) -> None:
    """Wait until a file or a folder is on the disk; Windows knows this for files only, and only for writable ones."""
    if os.name != "posix" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
