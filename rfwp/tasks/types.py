"""What a task is: two vocabularies, three data sets, a way to count what is right, and the answers to a user's own text."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rfwp.config import TaskConfig
from rfwp.errors import InvalidInput, UnknownName

SPLITS = ("train", "valid", "test")
NO_TARGET = -1
"""The target of a position that has none."""
_SHOWN = 40


@dataclass(frozen=True)
class Split:
    """A data set in memory, on the CPU."""

    tokens: Tensor
    """(N, L), uint8 where the vocabulary allows it, right padded with 0."""
    targets: Tensor
    """(N, L), int8 where the vocabulary allows it; -1: no target here."""
    lengths: Tensor
    """(N,) int32."""


class Vocabulary:
    """Ordered symbols; the id of a symbol is its place."""

    def __init__(self, symbols: Iterable[str]) -> None:
        self.symbols = tuple(symbols)
        self._ids = {symbol: place for place, symbol in enumerate(self.symbols)}
        assert len(self._ids) == len(self.symbols), "a symbol is there twice"

    def __len__(self) -> int:
        return len(self.symbols)

    def __contains__(self, symbol: object) -> bool:
        return symbol in self._ids

    def encode(self, symbols: Iterable[str]) -> list[int]:
        ids = self._ids
        try:
            return [ids[symbol] for symbol in symbols]
        except KeyError as error:
            raise self.unknown(error.args[0]) from None

    def decode(self, ids: Tensor | Sequence[int]) -> list[str]:
        places = [int(place) for place in ids]
        wrong = next((place for place in places if not 0 <= place < len(self)), None)
        if wrong is not None:
            raise InvalidInput(f"id {wrong} is not in the vocabulary; use 0 to {len(self) - 1}")
        return [self.symbols[place] for place in places]

    def unknown(self, symbol: str, where: str = "") -> UnknownName:
        """`character 9: unknown token 'q'; known: x y z`"""
        more = f" ... ({len(self)} in all)" if len(self) > _SHOWN else ""
        return UnknownName(f"{where}unknown token '{symbol}'; known: {' '.join(self.symbols[:_SHOWN])}{more}")


class Task(Protocol):
    """What training, evaluation and the command line know of a task."""

    @property
    def config(self) -> TaskConfig: ...

    @property
    def source(self) -> Vocabulary:
        """Input symbols; its length is the model's number of inputs."""
        ...

    @property
    def target(self) -> Vocabulary:
        """Output symbols; its length is the model's number of outputs."""
        ...

    @property
    def score(self) -> str:
        """The metric that selects the best checkpoint."""
        ...

    def split(self, name: str) -> Split:
        """The data set `train`, `valid` or `test`."""
        ...

    def count(self, predictions: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """For each metric [right, counted] (2,), of two (B, T) tensors; counts of several batches are added."""
        ...

    def encode(self, text: str) -> Tensor:
        """The ids (T,) of a text that a user typed; an error names the token and its place."""
        ...

    def truth(self, text: str) -> list[str] | None:
        """The right target symbol at each token of a text, "" where there is none; None where the task cannot know."""
        ...


def tally(right: Tensor, counted: Tensor) -> Tensor:
    """[right, counted] as int64, without waiting for the device."""
    return torch.stack([(right & counted).sum(), counted.sum()])


def tally_sequences(predictions: Tensor, targets: Tensor) -> Tensor:
    """A sequence is right if all of its targets are; a row without targets is padding and no sequence."""
    has_target = targets >= 0
    return tally(((predictions == targets) | ~has_target).all(1), has_target.any(1))


def pack(rows: Iterable[tuple[Sequence[int], Sequence[int]]], inputs: int, outputs: int) -> Split:
    """Rows of tokens and their targets in the smallest types that hold vocabularies of these sizes."""
    token_type = np.uint8 if inputs <= 2**8 else np.int16 if inputs <= 2**15 else np.int32
    target_type = np.int8 if outputs <= 2**7 else np.int16 if outputs <= 2**15 else np.int32
    # arrays at once: lists of whole data sets would need many times the memory
    arrays = [(np.array(tokens, token_type), np.array(targets, target_type)) for tokens, targets in rows]
    lengths = np.array([len(tokens) for tokens, _ in arrays], np.int32)
    tokens = np.zeros((len(arrays), lengths.max()), token_type)
    targets = np.full(tokens.shape, NO_TARGET, target_type)
    for number, (row_tokens, row_targets) in enumerate(arrays):
        tokens[number, : len(row_tokens)] = row_tokens
        targets[number, : len(row_targets)] = row_targets
    return Split(torch.from_numpy(tokens), torch.from_numpy(targets), torch.from_numpy(lengths))
