"""`rfwp reproduce`: all runs of a table of the paper."""

import sys
from typing import Annotated

import tyro

from rfwp.commands.console import console
from rfwp.reproduce.options import ReproduceOptions


def reproduce(options: Annotated[ReproduceOptions, tyro.conf.PositionalRequiredArgs]) -> None:
    """Train what is missing of a table of the paper; the same command continues what it left unfinished.

    Exit code 1: a run failed. 130 or 143: stopped by Ctrl-C or SIGTERM, and saved.
    """
    from rfwp.reproduce.run import describe_outcome, describe_plan, make_plan
    from rfwp.reproduce.run import reproduce as run_plan
    from rfwp.train.log import ConsoleLog

    # where nobody listens any more, what is trained goes on
    say = ConsoleLog(console()).say
    plan = make_plan(options)
    for line in describe_plan(plan, options.jobs):
        say(line)
    if options.dry_run or not plan.missing:
        return
    outcome, code = run_plan(plan, options, say)
    for line in describe_outcome(outcome):
        say(line)
    sys.exit(code)
