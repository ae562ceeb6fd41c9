"""Sequential ListOps: read a nested list of MIN, MAX and FIRST once, from left to right, and say its value at the end.

[MAX 6 1 [FIRST 2 3 ] 0 [MIN 4 7 1 ] ]   ->   6
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from rfwp.config import ListOpsConfig
from rfwp.errors import InvalidInput
from rfwp.tasks.generated import Generated, check_count, stream
from rfwp.tasks.shapes import CLOSE, DIGIT, OPEN, Shapes
from rfwp.tasks.text import Token, tokenise
from rfwp.tasks.types import NO_TARGET, Split, Vocabulary, pack, tally

OPERATORS: dict[str, Callable[[list[int]], int]] = {"[MIN": min, "[MAX": max, "[FIRST": lambda values: values[0]}
DIGITS = tuple("0123456789")
END = "]"
_PATTERN = re.compile(r"\[[A-Za-z]*|\]|[0-9]+|[^\s\[\]]+")


class ListOps(Generated):
    """Lists of one depth, the number of nested operators.

    Source symbols, in this order: `[MIN [MAX [FIRST ]`, the digits 0 to 9. Target symbols: the digits. Only the last token
    of a list has a target. The shape of a list is drawn by `Shapes`; operators and digits are uniform.

    Differs from the paper: a list has up to five arguments, where the paper says less than five.
    """

    version = 1
    score = "accuracy"

    def __init__(self, config: ListOpsConfig, cache: Path | None = None) -> None:
        self.config: ListOpsConfig = config
        super().__init__(cache)
        check_count(config, "depth", least=1)
        self.source = Vocabulary((*OPERATORS, END, *DIGITS))
        self.target = Vocabulary(DIGITS)

    def generate(self, name: str) -> Split:
        return pack(self._rows(name), len(self.source), len(self.target))

    def _rows(self, name: str) -> Iterator[tuple[list[int], list[int]]]:
        random = stream(self.config.data_seed, name).random
        shapes = Shapes(self.config.depth)
        operators = tuple(OPERATORS)
        options = {OPEN: operators, DIGIT: DIGITS, CLOSE: (END,)}
        for _ in range(getattr(self.config, name)):
            symbols = []
            for part in shapes.draw(random):
                choices = options[part]
                symbols.append(choices[int(random() * len(choices))])
            tokens = self.source.encode(symbols)
            yield tokens, [NO_TARGET] * (len(tokens) - 1) + [_value(symbols)]

    def count(self, predictions: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"accuracy": tally(predictions == targets, targets >= 0)}

    def encode(self, text: str) -> Tensor:
        """No space is needed before a closing bracket: "[MAX 2 9 [MIN 4 7] 0]"."""
        return torch.tensor(self.source.encode(self._symbols(text)))

    def truth(self, text: str) -> list[str]:
        symbols = self._symbols(text)
        return [""] * (len(symbols) - 1) + [str(_value(symbols))]

    def _symbols(self, text: str) -> list[str]:
        tokens = tokenise(text, _PATTERN, self.source)
        _check_list(tokens)
        return [symbol for symbol, _ in tokens]


def _value(symbols: list[str]) -> int:
    """The value of a well-formed list."""
    # the innermost open list is the last
    lists: list[tuple[str, list[int]]] = [("", [])]
    for symbol in symbols:
        if symbol in OPERATORS:
            lists.append((symbol, []))
        elif symbol == END:
            operator, values = lists.pop()
            lists[-1][1].append(OPERATORS[operator](values))
        else:
            lists[-1][1].append(int(symbol))
    return lists[0][1][0]


def _check_list(tokens: list[Token]) -> None:
    """One list, whole, none of its operators without arguments."""
    opened: list[Token] = []
    for number, token in enumerate(tokens):
        if number == 0 and token.symbol not in OPERATORS:
            raise InvalidInput(f"character {token.place}: a list starts with {', '.join(OPERATORS)}, not with '{token.symbol}'")
        if number > 0 and not opened:
            what = "it is unbalanced" if token.symbol == END else "give one list at a time"
            raise InvalidInput(f"character {token.place}: '{token.symbol}' comes after the end of the list; {what}")
        if token.symbol in OPERATORS:
            opened.append(token)
        elif token.symbol == END:
            operator = opened.pop()
            if tokens[number - 1] == operator:
                raise InvalidInput(f"character {operator.place}: {operator.symbol} has no arguments; give at least one")
    if opened:
        symbol, place = opened[-1]
        missing = f"{len(opened)} closing bracket{'s' if len(opened) > 1 else ''}"
        raise InvalidInput(f"the list is unbalanced: {missing} missing, the first for '{symbol}' at character {place}")
