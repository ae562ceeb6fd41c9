"""`rfwp bench`: how fast ops and training steps are here."""

import sys
from typing import Annotated

import tyro

from rfwp.bench.options import OpsOptions, PlotOptions, RLOptions, TrainOptions
from rfwp.commands.console import console, show_written

Benchmark = (
    Annotated[OpsOptions, tyro.conf.subcommand("ops")]
    | Annotated[TrainOptions, tyro.conf.subcommand("train")]
    | Annotated[RLOptions, tyro.conf.subcommand("rl")]
    | Annotated[PlotOptions, tyro.conf.subcommand("plot"), tyro.conf.PositionalRequiredArgs]
)


def bench(what: Benchmark) -> None:
    """Time the ops, or whole training steps, beside PyTorch's LSTM and attention; every kernel is checked first.

    Exit code 1: something failed its check and was not timed.
    """
    # imported here because the other commands should start quickly
    from rfwp.bench.run import run_benchmark
    from rfwp.bench.table import table

    screen = console()
    outcome = run_benchmark(what, lambda line: screen.print(line, style="dim"))
    screen.print(table(outcome.rows))
    for text in outcome.texts:
        screen.print(f"\n{text}", markup=False, highlight=False)
    for path in outcome.files:
        show_written(screen, path)
    for failure in outcome.failures:
        print(f"rfwp: check failed: {failure}", file=sys.stderr)
    if outcome.failures:
        sys.exit(1)
