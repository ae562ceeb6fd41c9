"""What the generated tasks share: data made on demand from a seed, one stream of random numbers for each split."""

import random
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from rfwp.config import CodeExecutionConfig, ListOpsConfig
from rfwp.errors import InvalidInput, unknown
from rfwp.tasks.cache import cache_folder, cached
from rfwp.tasks.types import SPLITS, Split


class Generated(ABC):
    """Splits are generated once, at the first call of `split`, and kept in memory and in the cache folder."""

    version: ClassVar[int]
    """Of the generator; to be raised when the same config gives other data."""
    config: CodeExecutionConfig | ListOpsConfig

    def __init__(self, cache: Path | None) -> None:
        for name in SPLITS:
            check_count(self.config, name, least=1)
        check_count(self.config, "data_seed", least=0)
        self._cache = cache
        self._splits: dict[str, Split] | None = None

    def split(self, name: str) -> Split:
        if name not in SPLITS:
            raise unknown("split", name, SPLITS)
        if self._splits is None:
            folder = cache_folder() if self._cache is None else Path(self._cache)
            self._splits = cached(self.config, self.version, folder.expanduser(), self.generate)
        return self._splits[name]

    @abstractmethod
    def generate(self, name: str) -> Split:
        """The split made anew; more sequences continue fewer ones, and no split depends on another."""


def stream(data_seed: int, split: str) -> random.Random:
    """A source of random numbers that is the same on every machine.

    Only its method `random` is used: it is the one whose sequence Python promises to keep.
    """
    return random.Random(f"{data_seed}/{split}")


def check_count(config: CodeExecutionConfig | ListOpsConfig, name: str, least: int, most: int | None = None) -> None:
    value = getattr(config, name)
    if type(value) is not int or value < least or (most is not None and value > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidInput(f"{name}={value!r} does not fit; use a whole number, {limits}")
