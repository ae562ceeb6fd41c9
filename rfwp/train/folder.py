"""The folder of a run: its config, the records of its progress and its result."""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from rfwp.atomic import sync
from rfwp.config import PLACES, AnyRunConfig, LanguageRunConfig, RunConfig, differences, from_dict, to_dict
from rfwp.errors import InvalidFile, InvalidInput, RFWPError, reason
from rfwp.models.pretrained import WORDS
from rfwp.tasks import Split
from rfwp.train.checkpoint import BEST, EARLIER_BEST, LAST, PREVIOUS, replace_file, writing
from rfwp.train.result import Result, RunResult
from rfwp.version import __version__

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("rfwp")

CONFIG, METRICS, RESULT, LOCK = "config.json", "metrics.jsonl", "result.json", ".lock"
FILES = (METRICS, RESULT, WORDS, LAST, PREVIOUS, BEST, EARLIER_BEST)
"""What a run writes after its config."""

C = TypeVar("C")
R = TypeVar("R", bound=RunResult)


class Folder(Generic[C, R]):
    """A folder that holds one run, or none yet. Its kind of run is told by a class of its own."""

    configs: tuple[type[C], ...]
    results: type[R]
    of: str
    """Whose run it is, in words."""
    count: str
    """What its records count: the key of their place in the run."""

    def __init__(self, path: Path):
        self.path = path
        if path.exists() and not path.is_dir():
            raise InvalidFile(f"{path} is a file; give a folder for the run")

    def __str__(self) -> str:
        return str(self.path)

    @property
    def used(self) -> bool:
        return (self.path / CONFIG).exists()

    @property
    def finished(self) -> bool:
        return (self.path / RESULT).exists()

    def config(self) -> C:
        """Of the run that is here; an error if there is none."""
        if not self.used:
            # what several seeds are trained in
            runs = sorted(path.parent for path in self.path.glob(f"seed-*/{CONFIG}"))
            advice = (
                f"give one of the runs in it: {', '.join(map(str, runs))}" if runs else "give the folder that `rfwp train` made"
            )
            raise InvalidFile(f"{self.path} is no run folder: it has no {CONFIG}; {advice}")
        config = read_run_config(self.path)
        if not isinstance(config, self.configs):
            raise InvalidFile(f"{self.path} holds no run of {self.of}; give the folder of one that `rfwp train` made")
        return config

    def check(self, config: C, data: str | None = None, moved: Iterable[str] = ()) -> None:
        """A run that is here must be of this config and these data. `moved`: places of data, which may be others."""
        if not self.used:
            self._check_nothing_of_a_run()
            return
        saved = _read_json(self.path / CONFIG).get("data")
        # without a fingerprint nothing tells data that have moved from others
        ignored = () if saved is None else moved
        here, wanted = to_dict(self.config()), to_dict(config)
        if changes := differences(here, wanted, ignored):
            advice = "use another folder"
            if not differences(here, wanted, PLACES):
                advice += ", or, if these are its data, --resume with --data or --text"
            raise InvalidInput(f"{self.path} holds a run of another config: {'; '.join(changes)}; {advice}")
        if data is not None and saved not in (None, data):
            raise InvalidInput(f"{self.path} was trained on other data than the task has now; use another folder")

    def _check_nothing_of_a_run(self) -> None:
        """A run writes its config first: what has its files' names without one is somebody else's, and would be lost."""
        if here := [name for name in FILES if (self.path / name).exists()]:
            seen = ", ".join(here)
            raise InvalidInput(f"{self.path} has {seen} but no {CONFIG}, so it is the folder of no run; use another folder")

    def create(self, config: C, data: str | None = None) -> None:
        """Write the run's config, and which data it has, if it has any; of a run that is here, where its data lie now."""
        if not self.used:
            content = {"rfwp": __version__, "run": to_dict(config)} | ({} if data is None else {"data": data})
        elif self.config() != config:
            # it was checked: nothing but places can differ
            content = _read_json(self.path / CONFIG) | {"run": to_dict(config)}
        else:
            return
        replace_file(self.path / CONFIG, (json.dumps(content, indent=2) + "\n").encode())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder. Only one process trains in it; the lock goes with the process, however it ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidFile(f"cannot make the folder {self.path}: {error.strerror}; use another one") from error
        with writing(self.path / LOCK):
            sync(self.path.parent)
            file = (self.path / LOCK).open("w")
        with file:
            try:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InvalidInput(f"{self.path} is being trained by another process; wait, or use another folder") from None
            except OSError as error:
                log.warning("%s: this disk knows no locks (%s); do not train in it twice at once", self.path, error.strerror)
            yield

    # --- Records ---

    def records(self) -> list[dict[str, Any]]:
        """What metrics.jsonl holds; a last line that was cut off does not count."""
        path = self.path / METRICS
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        records = [record for line in lines if (record := _parse(line)) is not None]
        return [record for record in records if isinstance(record.get(self.count), int)]

    def keep_records(self, done: int) -> None:
        """Drop the records of what will be trained again: of all beyond so many epochs or steps."""
        if (self.path / METRICS).exists():
            kept = {record[self.count]: record for record in self.records() if record[self.count] <= done}
            text = "".join(json.dumps(record) + "\n" for record in kept.values())
            replace_file(self.path / METRICS, text.encode())

    def add_record(self, record: dict[str, Any]) -> None:
        path = self.path / METRICS
        with writing(path), path.open("a") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    # --- Result ---

    def result(self) -> R:
        data = _read_json(self.path / RESULT)
        try:
            return self.results.from_json(data)
        except (RFWPError, TypeError, KeyError) as error:
            where = self.path / RESULT
            raise InvalidFile(f"{where} is not a result of this version: {error}; delete it to finish again") from error

    def write_result(self, result: R) -> None:
        text = json.dumps(result.to_json(), indent=2, allow_nan=False) + "\n"
        replace_file(self.path / RESULT, text.encode())


class RunFolder(Folder[RunConfig | LanguageRunConfig, Result]):
    """Of a model of sequences."""

    configs, results = (RunConfig, LanguageRunConfig), Result
    of, count = "a model of sequences", "epoch"


def read_run_config(path: Path) -> AnyRunConfig | None:
    """The config of the run that a folder holds, of whatever kind; None where it holds none, as that of a saved model."""
    data = _read_json(path / CONFIG) if (path / CONFIG).exists() else {}
    if "run" not in data:
        return None
    try:
        config = from_dict(data["run"], "run")
    except RFWPError as error:
        raise InvalidFile(f"{path / CONFIG}: {error}") from error
    return config if isinstance(config, AnyRunConfig) else None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidFile(f"{path} is not readable as JSON: {reason(error)}") from error
    if not isinstance(data, dict):
        raise InvalidFile(f"{path} holds a {type(data).__name__}, expected an object")
    return data


def fingerprint(split: Split) -> str:
    """Tells one data set from another."""
    digest = hashlib.sha256()
    for tensor in (split.tokens, split.targets, split.lengths):
        digest.update(f"{tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()[:16]


def _parse(line: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None
