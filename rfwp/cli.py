"""The command line: `rfwp --help`. Each command has a file in rfwp/commands."""

import errno
import io
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn

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
from rfwp.commands.usage import Parser
from rfwp.commands.watch import watch
from rfwp.errors import InvalidInput, RFWPError, lacks_memory, reason, unknown
from rfwp.train.distributed import end_process, is_first, is_loss, joined

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
PATIENCE = 3.0
"""Seconds in which torchrun notices that the first process has ended, and ends the others."""
LESS_MEMORY = "use a smaller model or batch; rfwp train needs less with --set train.accumulate=2 or with --checkpoint-blocks"
SIGPIPE = 141
"""What a shell calls a command that nobody reads on: 128 + the number of the signal."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a mistake of the user is one line and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # words of a text that this terminal cannot show
        sys.stdout.reconfigure(errors="replace")
    handler = RichHandler(console=console(stderr=True), show_path=False, show_time=False)
    logging.basicConfig(format="%(message)s", handlers=[handler])
    logging.getLogger("rfwp").setLevel(logging.INFO)  # which backend runs is said, once
    try:
        given = sys.argv[1:] if arguments is None else arguments
        _check_command(given)
        Parser(COMMANDS).run(given, DESCRIPTION)
    except RFWPError as error:
        _fail(str(error))
    except BrokenPipeError:
        # `rfwp presets | head`: nobody reads on
        _end_output()
        sys.exit(SIGPIPE)
    except OSError as error:
        if error.filename is not None:
            _fail(f"{error.filename}: {error.strerror}")
        if error.errno != errno.ENOSPC:
            # none of the user's files
            raise
        _end_output()
        _fail(f"cannot write the output: {error.strerror}")
    except (RuntimeError, MemoryError) as error:
        if asked := lacks_memory(error):
            _fail(f"not enough memory: {asked} asked for; {LESS_MEMORY}")
        if not isinstance(error, RuntimeError) or not is_loss(error):
            raise
        _fail(f"another process is gone ({reason(error)}); torchrun --max-restarts 3 starts all again, and they go on", lost=True)
    except KeyboardInterrupt:
        print("rfwp: interrupted", file=sys.stderr)
        sys.exit(130)


def _end_output() -> None:
    """At the exit Python would write what is left, and fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, lost: bool = False) -> NoReturn:
    """One line, exit code 2. A mistake that all processes of torchrun make is said by the first, others by who makes them."""
    if not is_first():
        # if the first one has failed, too, torchrun ends this one meanwhile
        time.sleep(PATIENCE)
        message = f"process {os.environ['RANK']}: {message}"
    print(f"rfwp: {message}", file=sys.stderr)
    if lost and is_first():
        # torchrun is to see first who was lost, and ends this process then
        time.sleep(PATIENCE)
    end_process(2, at_once=joined())


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
