"""The parser of the command line, with what it refuses said in one line."""

import io
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, redirect_stderr
from functools import wraps
from typing import ParamSpec, TypeVar

import tyro

from rfwp.errors import InvalidInput

P = ParamSpec("P")
R = TypeVar("R")

VALUES = {"INT": "a whole number", "FLOAT": "a number", "[INT [INT ...]]": "whole numbers with spaces between them"}
"""What an option takes, as the parser writes it and in words."""


class Parser:
    """Reads the command line and begins a command; what is wrong with it is an `InvalidInput`."""

    def __init__(self, commands: Mapping[str, Callable[..., None]]):
        self._commands = commands
        self._app = tyro.extras.SubcommandApp()
        for name, command in commands.items():
            self._app.command(name=name)(self._ends_parsing(command))
        self._parsing = ExitStack()
        self._said = io.StringIO()

    def run(self, arguments: list[str], description: str) -> None:
        self._said = io.StringIO()
        with self._parsing:
            self._parsing.enter_context(redirect_stderr(self._said))
            try:
                self._app.cli(prog="rfwp", description=description, args=arguments, config=(tyro.conf.OmitArgPrefixes,))
            except SystemExit as end:
                if end.code != 2 or not self._said.getvalue():
                    raise
                known = [name for name in arguments[:1] if name in self._commands]
                raise InvalidInput(one_line(self._said.getvalue(), " ".join(["rfwp", *known]))) from None

    def _ends_parsing(self, command: Callable[P, R]) -> Callable[P, R]:
        """The same command, which has stderr for itself."""

        @wraps(command)
        def begun(*arguments: P.args, **named: P.kwargs) -> R:
            self._parsing.close()
            # nothing but a warning, since the command begins; a closed output is None
            if sys.stderr is not None:
                sys.stderr.write(self._said.getvalue())
            self._said = io.StringIO()
            return command(*arguments, **named)

        return begun


def one_line(box: str, command: str) -> str:
    """Of what stands in a box of several parts: what is wrong, the nearest option of this command, and where to read on.

    A text of another form, from another version of the parser, stays as it is.
    """
    # the frame of the box is of other characters where the terminal has few; its title is the first line
    lines = [line.strip(" ╭╮╰╯│") for line in box.strip().splitlines()[1:]]
    parts = [part.strip().splitlines() for part in re.split(r"^[─-]+$", "\n".join(lines), flags=re.MULTILINE) if part.strip()]
    if len(parts) < 2:
        return box.strip()
    what = " ".join(line for line in parts[0] if line)
    what = re.sub(r" ?Arguments are applied to the directly preceding subcommand.*", "", what)
    what = re.sub(r" \(applied to [^)]*\)", "", what).removeprefix("Error parsing ").rstrip(".")
    what = _wrong_value(what, parts) or what
    offered = [pair for part in parts[1:] for pair in _options(part)]
    typed = next((word for word in what.split() if word.startswith("--")), "")
    near = [(option, place) for option, place in offered if option != typed and place.startswith(command)]
    others = ", ".join(place for option, place in offered if option == typed)
    choices = [part[0].lower() for part in parts[1:] if part[0].startswith("Available subcommands")]
    hints = (
        [f"did you mean {near[0][0]}? "] if near else [f"{typed} is for {others}; "] if others else [f"{c}; " for c in choices]
    )
    return f"{what[:1].lower()}{what[1:]}; {''.join(hints)}see: {near[0][1] if near else command} --help"


def _wrong_value(what: str, parts: list[list[str]]) -> str | None:
    """`--epochs: expected a whole number, saw 'many'` in place of the names of types and of Python's own errors."""
    helptext = next((part for part in parts[1:] if part[0] == "Argument helptext:"), None)
    typed = re.search(r"\[(.+?)\]", what) or re.search(r"('[^']*')$", what)
    if helptext is None or len(helptext) < 2 or typed is None:
        return None
    option, _, form = helptext[1].strip().partition(" ")
    expected = VALUES.get(form.removeprefix("{None}|"))
    return f"{option}: expected {expected}, saw {typed[1]}" if expected else None


def _options(part: list[str]) -> Iterator[tuple[str, str]]:
    """Options that the parser offers, each with a command that has it."""
    option = ""
    for line in part:
        if line.startswith("--"):
            option = re.split(r"[ ,]", line)[0]
        elif place := re.fullmatch(r"in (rfwp.*) --help", line):
            yield option, place[1]
