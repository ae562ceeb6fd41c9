"""The language of the code execution task: reads a program that a user typed and executes it.

program   = statement, one after another
statement = basic, or: if VARIABLE < DIGIT : basic, or the same with >
basic     = VARIABLE = DIGIT ;   VARIABLE ++ ;   VARIABLE -- ;   print VARIABLE ;
"""

from rfwp.errors import InvalidInput
from rfwp.tasks.text import Token

SILENT = "_"
SMALLEST, LARGEST = -8, 16
"""The values that a program may print."""


def is_executed(semantics: str, conditional: bool, is_new: bool) -> bool:
    """Whether an assignment is executed whose condition, if it has one, holds; `is_new`: its variable has no value yet."""
    return semantics == "true" or not conditional or is_new


def execute(tokens: list[Token], semantics: str) -> list[str]:
    """What a program says at each of its tokens; the first slip in it is named with its place."""
    return _Reader(tokens, semantics).run()


class _Reader:
    def __init__(self, tokens: list[Token], semantics: str) -> None:
        self._tokens = tokens
        self._next = 0
        self._semantics = semantics
        self._values: dict[str, int] = {}
        self._output = [SILENT] * len(tokens)

    def run(self) -> list[str]:
        while self._next < len(self._tokens):
            self._statement()
        return self._output

    def _statement(self) -> None:
        if self._peek() != "if":
            self._basic(True, False)
            return
        self._take("if")
        variable = self._variable()
        comparison = self._take("<", ">")
        digit = self._digit()
        self._take(":")
        value = self._value(variable)
        self._basic(value < digit if comparison.symbol == "<" else value > digit, True)

    def _basic(self, holds: bool, conditional: bool) -> None:
        if self._peek() == "print":
            self._take("print")
            variable = self._variable()
            self._take(";")
            if holds:
                self._print(variable)
            return
        variable = self._variable("a statement")
        name = variable.symbol
        operation = self._take("=", "++", "--").symbol
        digit = self._digit() if operation == "=" else 0
        self._take(";")
        if operation == "=":
            if holds and is_executed(self._semantics, conditional, name not in self._values):
                self._values[name] = digit
        elif holds:
            self._values[name] = self._value(variable) + (1 if operation == "++" else -1)

    def _print(self, variable: Token) -> None:
        value = self._value(variable)
        if not SMALLEST <= value <= LARGEST:
            raise InvalidInput(
                f"character {variable.place}: {variable.symbol} is {value} here; print only {SMALLEST} to {LARGEST}"
            )
        self._output[self._next - 1] = str(value)

    def _value(self, variable: Token) -> int:
        if variable.symbol not in self._values:
            raise InvalidInput(f"character {variable.place}: {variable.symbol} has no value yet; assign one first")
        return self._values[variable.symbol]

    def _peek(self) -> str:
        """The next symbol, "" at the end."""
        return self._tokens[self._next].symbol if self._next < len(self._tokens) else ""

    def _take(self, *symbols: str) -> Token:
        if self._peek() not in symbols:
            raise self._slip(" or ".join(f"'{symbol}'" for symbol in symbols))
        self._next += 1
        return self._tokens[self._next - 1]

    def _variable(self, expected: str = "a variable") -> Token:
        # all words but these are variables: the tokens are already known to be of the language
        if not self._peek().isalpha() or self._peek() in ("print", "if"):
            raise self._slip(expected)
        return self._take(self._peek())

    def _digit(self) -> int:
        if not self._peek().isdigit():
            raise self._slip("a digit")
        return int(self._take(self._peek()).symbol)

    def _slip(self, expected: str) -> InvalidInput:
        if self._next == len(self._tokens):
            return InvalidInput(f"the program ends inside a statement, after '{self._tokens[-1].symbol}'; expected {expected}")
        symbol, place = self._tokens[self._next]
        return InvalidInput(f"character {place}: expected {expected}, saw '{symbol}'")
