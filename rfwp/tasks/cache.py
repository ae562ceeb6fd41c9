"""Generated data sets on disk: written whole or not at all, checked when read, never needed.

Several processes may start at once: each writes a file of its own and moves it into place, and all of them write the same.
"""

import hashlib
import io
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rfwp.atomic import whole_file
from rfwp.config import CodeExecutionConfig, ListOpsConfig, to_dict
from rfwp.errors import InvalidInput, reason
from rfwp.tasks.types import SPLITS, Split

_log = logging.getLogger(__name__)
_PARTS = ("tokens", "targets", "lengths")


def cache_folder() -> Path:
    """$RFWP_CACHE, or ~/.cache/rfwp/data."""
    if os.environ.get("RFWP_CACHE"):
        return Path(os.environ["RFWP_CACHE"])
    try:
        return Path.home() / ".cache" / "rfwp" / "data"
    except RuntimeError:
        raise InvalidInput("there is no home folder to keep generated data in; set RFWP_CACHE to a folder") from None


def cached(
    config: CodeExecutionConfig | ListOpsConfig, version: int, folder: Path, generate: Callable[[str], Split]
) -> dict[str, Split]:
    """The splits of a config: from its file where there is a sound one, else generated and written."""
    key = json.dumps({"version": version, **to_dict(config)}, sort_keys=True)
    path = folder / f"{to_dict(config)['kind']}-v{version}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    # os.path: also where the folder may not be looked into
    if os.path.exists(path):
        try:
            return _read(path, key)
        except Exception as error:
            # a damaged file can fail in any way, and the cure is always the same
            _log.warning("%s is damaged (%s); generating the data again", path, reason(error))
    splits = {name: generate(name) for name in SPLITS}
    try:
        _write(path, key, splits)
    except OSError as error:
        _log.warning("generated data stay in memory, the cache cannot be written: %s", error)
    return splits


def _read(path: Path, key: str) -> dict[str, Split]:
    # npz files carry a checksum for each array, which is compared while reading
    with open(path, "rb") as content, np.load(content, allow_pickle=False) as file:
        if file["key"].item() != key:
            raise ValueError("it was made for another config")
        return {name: Split(*(torch.from_numpy(file[f"{name}.{part}"]) for part in _PARTS)) for name in SPLITS}


def _write(path: Path, key: str, splits: dict[str, Split]) -> None:
    arrays: dict[str, Any] = {f"{name}.{part}": getattr(splits[name], part).numpy() for name in SPLITS for part in _PARTS}
    content = io.BytesIO()
    np.savez(content, key=np.array(key), **arrays)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(content.getbuffer())
