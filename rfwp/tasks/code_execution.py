"""Code execution: read a program token by token and say, at the end of each print statement, what it prints.

x = 3 ; y = 7 ; x ++ ; if y < 6 : print x ; print x ;
_ _ _ _ _ _ _ _ _ _  _ _  _ _ _ _ _     _ _ _     _ 4
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args, get_type_hints

import torch
from torch import Tensor

from rfwp.config import CodeExecutionConfig
from rfwp.errors import unknown
from rfwp.tasks.generated import Generated, check_count, stream
from rfwp.tasks.program import LARGEST, SILENT, SMALLEST, execute, is_executed
from rfwp.tasks.text import tokenise
from rfwp.tasks.types import Split, Vocabulary, pack, tally, tally_sequences

VARIABLES = ("x", "y", "z", "a", "b")
DIGITS = tuple("0123456789")
_PATTERN = re.compile(r"\+\+|--|[A-Za-z]+|[0-9]+|\S")


class CodeExecution(Generated):
    """Programs over a few variables whose values stay from -8 to 16.

    Source symbols, in this order: `= ++ -- ; print if < > :`, the digits 0 to 9, the variables (x y z a b, as many as
    the config says). Target symbols: `_` where nothing is printed, then -8 to 16. Ids do not depend on the data.

    There are two semantics. The numbers that the paper prints come from `authors`: under a true condition, an assignment
    is executed only if its variable has no value yet. In `true` a true condition executes every statement, as the language
    would have it. A model is only ever right in the one it was trained on: four of five programs differ.

    Differs from the paper: an increment that would leave -8 .. 16 becomes a decrement, and the other way round, where the
    paper says that such statements are rejected; the output vocabulary has -8 even if no program prints it.
    """

    version = 1
    score = "sequence accuracy"

    def __init__(self, config: CodeExecutionConfig, cache: Path | None = None) -> None:
        self.config: CodeExecutionConfig = config
        super().__init__(cache)
        check_count(config, "variables", least=1, most=len(VARIABLES))
        # the first statement assigns and the last one prints
        check_count(config, "statements", least=2)
        known = get_args(get_type_hints(CodeExecutionConfig)["semantics"])
        if config.semantics not in known:
            raise unknown("semantics", config.semantics, known)
        names = VARIABLES[: config.variables]
        self.source = Vocabulary(("=", "++", "--", ";", "print", "if", "<", ">", ":", *DIGITS, *names))
        self.target = Vocabulary((SILENT, *map(str, range(SMALLEST, LARGEST + 1))))

    def generate(self, name: str) -> Split:
        return pack(self._rows(name), len(self.source), len(self.target))

    def _rows(self, name: str) -> Iterator[tuple[list[int], list[int]]]:
        random = stream(self.config.data_seed, name).random
        for _ in range(getattr(self.config, name)):
            writer = Writer(self.config, random)
            yield self.source.encode(writer.source), self.target.encode(writer.target)

    def count(self, predictions: Tensor, targets: Tensor) -> dict[str, Tensor]:
        right = predictions == targets
        return {
            "sequence accuracy": tally_sequences(predictions, targets),
            "print accuracy": tally(right, targets > 0),
            "no-op accuracy": tally(right, targets == 0),
        }

    def encode(self, text: str) -> Tensor:
        """Spaces are needed only between words: "x=3; x++; print x;"."""
        return torch.tensor(self.source.encode(symbol for symbol, _ in tokenise(text, _PATTERN, self.source)))

    def truth(self, text: str) -> list[str]:
        return execute(tokenise(text, _PATTERN, self.source), self.config.semantics)


class Writer:
    """Writes one random program and executes it on the way.

    The first statement assigns, the last one prints, and each other one is an assignment, an increment or decrement, a
    print or one of these behind a condition, all four equally likely. All further choices are uniform: the variable (in an
    assignment one of all, elsewhere one that has a value), the digit, the direction and the comparison.
    """

    def __init__(self, config: CodeExecutionConfig, random: Callable[[], float]) -> None:
        self.source: list[str] = []
        self.target: list[str] = []
        self._random = random
        self._names = VARIABLES[: config.variables]
        self._semantics = config.semantics
        self._values: dict[str, int] = {}
        # the variables that have a value, in the order in which they got it
        self._assigned: list[str] = []
        basic = (self._assign, self._step, self._print)
        self._assign(True, False)
        for _ in range(config.statements - 2):
            choice = int(random() * 4)
            if choice < 3:
                basic[choice](True, False)
            else:
                holds = self._condition()
                basic[int(random() * 3)](holds, True)
        self._print(True, False)

    def _pick(self, options: tuple[str, ...] | list[str]) -> str:
        return options[int(self._random() * len(options))]

    def _assign(self, holds: bool, conditional: bool) -> None:
        name, digit = self._pick(self._names), self._pick(DIGITS)
        is_new = name not in self._values
        if holds and is_executed(self._semantics, conditional, is_new):
            self._values[name] = int(digit)
            if is_new:
                self._assigned.append(name)
        self._say((name, "=", digit, ";"))

    def _step(self, holds: bool, conditional: bool) -> None:
        name = self._pick(self._assigned)
        value = self._values[name]
        change = 1 if self._random() < 0.5 else -1
        # written down in either case, so turned round in either case
        if not SMALLEST <= value + change <= LARGEST:
            change = -change
        if holds:
            self._values[name] = value + change
        self._say((name, "++" if change > 0 else "--", ";"))

    def _print(self, holds: bool, conditional: bool) -> None:
        name = self._pick(self._assigned)
        self._say(("print", name, ";"))
        if holds:
            self.target[-1] = str(self._values[name])

    def _condition(self) -> bool:
        name, comparison, digit = self._pick(self._assigned), self._pick(("<", ">")), self._pick(DIGITS)
        self._say(("if", name, comparison, digit, ":"))
        return self._values[name] < int(digit) if comparison == "<" else self._values[name] > int(digit)

    def _say(self, symbols: tuple[str, ...]) -> None:
        self.source += symbols
        self.target += (SILENT,) * len(symbols)
