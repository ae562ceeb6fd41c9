"""Checkpoints that are whole or not there: written beside, checked by sha256, and moved into place by a rename.

A checkpoint is a folder with model.safetensors, config.json (so that `rfwp.load` can read it), optimiser.safetensors with
the optimiser's state and the states of the random generators, and state.json with counters and the checksums of the rest.
When a new one replaces `last`, that one becomes `previous`: at every instant one of the two is whole. `best` is only tested
and loaded, never trained on, so it has no optimiser.safetensors.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rfwp.atomic import sync, write_whole
from rfwp.errors import InvalidFile, reason

LAST, PREVIOUS = "last", "previous"
BEST, EARLIER_BEST = "best", ".best-before"
MODEL, CONFIG, OPTIMISER, STATE = "model.safetensors", "config.json", "optimiser.safetensors", "state.json"


class Damaged(Exception):
    """A checkpoint that is not whole; the message says what is wrong with it."""


class NoneWhole(InvalidFile):
    """There are checkpoints, and all of them are damaged."""

    def __init__(self, problems: list[str]):
        self.problems = "; ".join(problems)
        super().__init__(f"{self.problems}, and no other checkpoint is there; use another folder to start again")


@dataclass(frozen=True)
class Checkpoint:
    """What a folder holds, in memory."""

    model: dict[str, Tensor]
    optimiser: dict[str, Tensor]
    """Empty where nobody trains on; then it has no file."""
    config: dict[str, Any]
    """config.json, as `save_pretrained` writes it."""
    state: dict[str, Any]
    """Counters and numbers."""
    beside: dict[str, bytes] = field(default_factory=dict)
    """Other files that belong to the weights, by name."""


@dataclass(frozen=True)
class Loaded:
    """What a checkpoint holds beside weights and optimiser."""

    state: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)


def save(checkpoint: Checkpoint, run: Path, name: str, earlier: str) -> None:
    """Write it as run/name; what stood there becomes run/earlier. A failure leaves both as they were."""
    new = run / f".{name}-new"
    with writing(run / name):
        if new.exists():
            shutil.rmtree(new)
        new.mkdir()
        try:
            _write(checkpoint, new)
            publish(new, run / name, run / earlier)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def publish(new: Path, path: Path, earlier: Path) -> None:
    """A folder that is written whole becomes `path`; what stood there becomes `earlier`."""
    old = path.with_name(f".{path.name}-old")
    shutil.rmtree(old, ignore_errors=True)
    # a folder cannot be renamed onto another: first make room, then move up one after the other
    if path.exists():
        if earlier.exists():
            os.rename(earlier, old)
        os.rename(path, earlier)
    os.rename(new, path)
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def load(run: Path, names: tuple[str, ...], say: Callable[[str], None]) -> Checkpoint | None:
    """The first of these that is whole. A damaged one is said; None if there is none, an error if all are damaged."""
    problems = []
    for name in names:
        if not (run / name).exists():
            continue
        try:
            found = read(run / name)
        except Damaged as problem:
            problems.append(f"{run / name} is damaged ({problem})")
            continue
        if problems:
            say(f"{'; '.join(problems)}; using {run / name}")
        return found
    if problems:
        raise NoneWhole(problems)
    return None


def read(folder: Path) -> Checkpoint:
    """A checkpoint whose files have the checksums of its state.json."""
    try:
        state = json.loads((folder / STATE).read_bytes())
        files, expected = dict(state.pop("files")), state.pop("sha256")
        if _digest(json_bytes({**state, "files": files})) != expected:
            raise Damaged(f"{STATE} does not have its checksum")
        found = {}
        for name, digest in files.items():
            found[name] = (folder / name).read_bytes()
            if _digest(found[name]) != digest:
                raise Damaged(f"{name} does not have its checksum")
        optimiser = safetensors.torch.load(found[OPTIMISER]) if OPTIMISER in found else {}
        beside = {name: content for name, content in found.items() if name not in (MODEL, CONFIG, OPTIMISER)}
        return Checkpoint(safetensors.torch.load(found[MODEL]), optimiser, json.loads(found[CONFIG]), state, beside)
    except FileNotFoundError as error:
        raise Damaged(f"{Path(error.filename).name} is missing") from None
    except OSError as error:
        raise Damaged(f"cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError):
        raise Damaged(f"{STATE} was not written whole") from None


def tensor_names(path: Path) -> set[str]:
    """Of a safetensors file; the tensors are not read."""
    with safe_open(path, framework="pt") as file:
        return set(file.keys())


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What cannot be read although its checksums fit, in one line."""
    try:
        yield
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise InvalidFile(f"cannot read {path}: {reason(error)}; was it made by another version?") from error


def write_file(path: Path, content: bytes) -> None:
    """Write a file through to the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Write a file that at every instant is the old one or the new one; a failure is one line."""
    with writing(path):
        write_whole(path, content)


def replace_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, str]) -> None:
    """The same for a safetensors file."""
    replace_file(path, safetensors.torch.save(_cpu(tensors), metadata=about))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A full disk or a folder that is gone, in one line."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        run = path.parent
        state = f"earlier checkpoints in {run} are whole" if run.is_dir() else f"the folder {run} is gone"
        raise InvalidFile(f"cannot write {path}: {reason(error)}; {state}") from error


def _write(checkpoint: Checkpoint, folder: Path) -> None:
    """All files, each through to the disk; state.json, which vouches for the others, is the last."""
    tensors = {MODEL: checkpoint.model, OPTIMISER: checkpoint.optimiser}
    contents = {name: safetensors.torch.save(_cpu(t), metadata={"format": "pt"}) for name, t in tensors.items() if t}
    contents |= checkpoint.beside | {CONFIG: json_bytes(checkpoint.config)}
    state = {**checkpoint.state, "files": {name: _digest(content) for name, content in contents.items()}}
    for name, content in contents.items():
        write_file(folder / name, content)
    write_file(folder / STATE, json_bytes({**state, "sha256": _digest(json_bytes(state))}))
    sync(folder)


def _cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().cpu().contiguous() for name, t in tensors.items()}


def json_bytes(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=2, sort_keys=True) + "\n").encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
