"""A user's text as tokens that know where they stand."""

import re
from typing import NamedTuple

from rfwp.errors import InvalidInput
from rfwp.tasks.types import Vocabulary


class Token(NamedTuple):
    symbol: str
    place: int
    """The character where it starts, counted from 1."""


def tokenise(text: str, pattern: re.Pattern[str], vocabulary: Vocabulary) -> list[Token]:
    """The matches of the pattern, all in the vocabulary; the pattern leaves out nothing but space."""
    tokens = [Token(match.group(), match.start() + 1) for match in pattern.finditer(text)]
    if not tokens:
        raise InvalidInput("the text is empty; give at least one token")
    for symbol, place in tokens:
        if symbol not in vocabulary:
            raise vocabulary.unknown(symbol, f"character {place}: ")
    return tokens
