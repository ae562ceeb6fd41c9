"""The parser of the command line, with what it refuses said in one line."""

import io
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, redirect_stderr
from functools import wraps
from typing import ParamSpec, TypeVar

import tyro

from rfwp.errors import InvalidInput

P = ParamSpec("P")
R = TypeVar("R")


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
                raise InvalidInput(one_line(self._said.getvalue(), " ".join(["rfwp", *known, "--help"]))) from None

    def _ends_parsing(self, command: Callable[P, R]) -> Callable[P, R]:
        """The same command, which has stderr for itself."""

        @wraps(command)
        def begun(*arguments: P.args, **named: P.kwargs) -> R:
            self._parsing.close()
            # nothing but a warning, since the command begins
            sys.stderr.write(self._said.getvalue())
            self._said = io.StringIO()
            return command(*arguments, **named)

        return begun


def one_line(box: str, read_on: str) -> str:
    """Of what stands in a box of several parts: the first part, the nearest option if there is one, and where to read on.

    A text of another form, from another version of the parser, stays as it is.
    """
    # the frame of the box is of other characters where the terminal has few; its title is the first line
    lines = [line.strip(" ╭╮╰╯│") for line in box.strip().splitlines()]
    parts = [" ".join(part.split()) for part in re.split(r"^[─-]+$", "\n".join(lines[1:]), flags=re.MULTILINE)]
    parts = [part for part in parts if part]
    if len(parts) < 2:
        return box.strip()
    what = parts[0]
    what = re.sub(r" ?Arguments are applied to the directly preceding subcommand.*", "", what)
    what = re.sub(r" \(applied to [^)]*\)", "", what).removeprefix("Error parsing ").rstrip(".")
    near = re.search(r"Perhaps you meant: (--[\w-]+)", " ".join(parts))
    hint = f"did you mean {near[1]}? " if near else ""
    return f"{what[:1].lower()}{what[1:]}; {hint}see: {read_on}"
