"""The command line: `rfwp --help`. Each command has a file in rfwp/commands."""

import logging
import os
import sys
from collections.abc import Callable

import tyro
from rich.logging import RichHandler

from rfwp.commands.bench import bench
from rfwp.commands.console import console
from rfwp.commands.eval import evaluate
from rfwp.commands.export import export
from rfwp.commands.generate import generate
from rfwp.commands.play import play
from rfwp.commands.presets import list_presets, show
from rfwp.commands.report import report
from rfwp.commands.reproduce import reproduce
from rfwp.commands.train import train
from rfwp.commands.watch import watch
from rfwp.errors import InvalidInput, RFWPError, unknown
from rfwp.train.distributed import is_first

DESCRIPTION = """Fast weight programmers: neural nets whose slow net rewrites, at every step, the weights of a fast net.

Start here:
  rfwp presets                    every model of the paper, with its parameter count here and there
  rfwp presets code-execution-5   one table of them
  rfwp show lm/rdn                one model: its wiring, its parameters, its config
  rfwp bench train --quick        how fast a training step is here
  rfwp train listops-10/rdn       train one of them; rfwp eval RUN tests it
  rfwp train atari/rdn --game pong   an agent learns a game
  rfwp generate RUN               go on with a text; rfwp export RUN FOLDER hands the model to transformers
  rfwp reproduce table-2 --jobs 4 train what is missing of a table; rfwp report shows it beside the paper's
  rfwp watch RUN                  a video of an agent's game
  rfwp play                       watch a model write and read its fast weights, on a local web page
"""

COMMANDS: dict[str, Callable[..., None]] = {
    "presets": list_presets,
    "show": show,
    "bench": bench,
    "train": train,
    "eval": evaluate,
    "watch": watch,
    "generate": generate,
    "export": export,
    "reproduce": reproduce,
    "report": report,
    "play": play,
}
"""In the order of the help."""
app = tyro.extras.SubcommandApp()
for name, command in COMMANDS.items():
    app.command(name=name)(command)


SIGPIPE = 141
"""What a shell calls a command that nobody reads on: 128 + the number of the signal."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a mistake of the user is one line and exit code 2."""
    handler = RichHandler(console=console(stderr=True), show_path=False, show_time=False)
    logging.basicConfig(format="%(message)s", handlers=[handler])
    logging.getLogger("rfwp").setLevel(logging.INFO)  # which backend runs is said, once
    try:
        _check_command(sys.argv[1:] if arguments is None else arguments)
        app.cli(prog="rfwp", description=DESCRIPTION, args=arguments, config=(tyro.conf.OmitArgPrefixes,))
    except RFWPError as error:
        # of several processes with one mistake, one says it
        if is_first():
            print(f"rfwp: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # `rfwp presets | head`: nobody reads on; at the exit Python would write the rest, and fail once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(SIGPIPE)
    except OSError as error:
        # without a name it is none of the user's files
        if error.filename is None:
            raise
        print(f"rfwp: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("rfwp: interrupted", file=sys.stderr)
        sys.exit(130)


def _check_command(arguments: list[str]) -> None:
    """A mistyped command gets a suggestion, not a page of usage; a list that is given twice is an error."""
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        raise unknown("command", arguments[0], COMMANDS)
    # the last one would count, and the others would be lost in silence
    for flag in ("--set", "--seeds", "--models", "--games"):
        if sum(argument.partition("=")[0] == flag for argument in arguments) > 1:
            raise InvalidInput(f"{flag} is there twice; put all values behind one {flag}")


if __name__ == "__main__":
    main()
