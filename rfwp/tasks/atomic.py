"""Files that are there whole or not at all, however many processes write them at once."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, under a name of its own; moved to `path` at the end, removed if anything fails before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # in the same folder, because only there moving a file into place is one step
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}.unfinished")
    try:
        with open(unfinished, "xb") as file:
            yield file
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
