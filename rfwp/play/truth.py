"""What is true at every token, for people to compare with: the variables of a program, the nesting of a list."""

from collections.abc import Sequence
from dataclasses import dataclass

from rfwp.tasks.listops import END, OPERATORS
from rfwp.tasks.program import is_executed


def variables(symbols: Sequence[str], semantics: str) -> list[dict[str, int]]:
    """The variables of a program after each of its tokens; a statement counts from its `;` on. The program is well formed."""
    values: dict[str, int] = {}
    after, statement = [], list[str]()
    for symbol in symbols:
        statement.append(symbol)
        if symbol == ";":
            values = _execute(statement, values, semantics)
            statement = []
        after.append(values)
    return after


def _execute(statement: list[str], values: dict[str, int], semantics: str) -> dict[str, int]:
    """New values; the old ones are kept by the steps before."""
    conditional, holds = statement[0] == "if", True
    if conditional:
        _, name, comparison, digit, _, *statement = statement
        holds = values[name] < int(digit) if comparison == "<" else values[name] > int(digit)
    name, operation, *rest = statement
    if not holds or name == "print":
        return values
    if operation == "=":
        return values | {name: int(rest[0])} if is_executed(semantics, conditional, name not in values) else values
    return values | {name: values[name] + (1 if operation == "++" else -1)}


@dataclass(frozen=True)
class Nesting:
    """Where a token of a list stands."""

    depth: int
    """Lists around it; an operator and its bracket stand in their own list."""
    opened: int | None = None
    """For a closing bracket, the step of its operator."""
    value: int | None = None
    """For a closing bracket, the value of its list."""


def nesting(symbols: Sequence[str]) -> list[Nesting]:
    """Of every token of a well-formed list."""
    places, open_lists = [], list[tuple[int, list[int]]]()
    for step, symbol in enumerate(symbols):
        if symbol in OPERATORS:
            open_lists.append((step, []))
            places.append(Nesting(len(open_lists)))
        elif symbol == END:
            opened, values = open_lists.pop()
            value = OPERATORS[symbols[opened]](values)
            places.append(Nesting(len(open_lists) + 1, opened, value))
            if open_lists:
                open_lists[-1][1].append(value)
        else:
            open_lists[-1][1].append(int(symbol))
            places.append(Nesting(len(open_lists)))
    return places
