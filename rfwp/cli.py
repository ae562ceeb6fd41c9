"""The command line: `rfwp --help`."""

import json
import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table
from rich.text import Text

import rfwp
from rfwp.bench.options import OpsOptions, PlotOptions, TrainOptions
from rfwp.config import (
    BlocksConfig,
    FWPConfig,
    HighwayConfig,
    LSTMConfig,
    ModelConfig,
    RunConfig,
    SequenceConfig,
    TrainConfig,
    to_dict,
)
from rfwp.errors import InvalidInput, RFWPError, unknown
from rfwp.fwp import Composition
from rfwp.presets import TASKS, Preset, find, model_config, presets, run_config
from rfwp.reproduce.options import ReproduceOptions
from rfwp.train.distributed import is_first
from rfwp.train.options import EvalOptions
from rfwp.train.options import TrainOptions as RunOptions

DESCRIPTION = """Fast weight programmers: neural nets whose slow net rewrites, at every step, the weights of a fast net.

Start here:
  rfwp presets                    every model of the paper, with its parameter count here and there
  rfwp presets code-execution-5   one table of them
  rfwp show lm/rdn                one model: its wiring, its parameters, its config
  rfwp bench train --quick        how fast a training step is here
  rfwp train listops-10/rdn       train one of them; rfwp eval RUN tests it
  rfwp reproduce table-2 --jobs 4 train what is missing of a table; rfwp report shows it beside the paper's
"""

app = tyro.extras.SubcommandApp()
COMMANDS = ("presets", "show", "bench", "train", "eval", "reproduce", "report")


@app.command(name="presets")
def list_presets(table: Annotated[str, tyro.conf.Positional] = "") -> None:
    """List the models of the paper's tables: name, systematic name, parameters here | in the paper.

    Args:
        table: Only this table, for example lm or code-execution-5; all of them if left away.
    """
    chosen = [p for p in presets().values() if not table or p.name.split("/")[0] == table]
    if not chosen:
        raise unknown("table", table, {name.split("/")[0] for name in presets()})
    listing = Table(box=None, header_style="bold", pad_edge=False)
    listing.add_column("preset", style="cyan", no_wrap=True)
    listing.add_column("systematic name", overflow="ellipsis", no_wrap=True)
    listing.add_column("parameters here", justify="right", no_wrap=True)
    listing.add_column("paper", justify="right", no_wrap=True)
    listing.add_column("variants", style="dim", overflow="ellipsis", no_wrap=True)
    for preset in chosen:
        listing.add_row(
            preset.name, systematic_name(preset.model), f"{count(preset.model):,}", preset.printed_parameters, variants(preset)
        )
    _console().print(listing)
    _console().print(
        f"\n{len(chosen)} presets. A variant goes behind a colon: rfwp show {chosen[0].name}{_example(chosen)}", style="dim"
    )


@app.command
def show(name: Annotated[str, tyro.conf.Positional]) -> None:
    """Show one preset: what it is, where its parameters are, and its config as JSON.

    Args:
        name: Preset, with or without a variant: lm/rdn, lm/delta-mlp-b:live.
    """
    config = model_config(name)
    preset = find(name.partition(":")[0])
    model = rfwp.build(config, device="meta")
    console = _console()
    console.print(f"[bold]{name}[/]  {preset.title}: {systematic_name(config)}")
    console.print(f"{count(config):,} parameters here | {preset.printed_parameters} in the paper")
    for part, module in model.named_children():
        size = sum(p.numel() for p in module.parameters())
        if size:
            console.print(f"  {part:<12} {size:>12,}")
    if preset.variants:
        console.print(f"variants: {variants(preset)}")
    console.print_json(json.dumps(to_dict(config)))


Benchmark = (
    Annotated[OpsOptions, tyro.conf.subcommand("ops")]
    | Annotated[TrainOptions, tyro.conf.subcommand("train")]
    | Annotated[PlotOptions, tyro.conf.subcommand("plot"), tyro.conf.PositionalRequiredArgs]
)


@app.command
def bench(what: Benchmark) -> None:
    """Time the ops, or whole training steps, beside PyTorch's LSTM and attention; every kernel is checked first.

    Exit code 1: something failed its check and was not timed.
    """
    # imported here because the other commands should start quickly
    from rfwp.bench.run import run_benchmark
    from rfwp.bench.table import table

    console = _console()
    outcome = run_benchmark(what, lambda line: console.print(line, style="dim"))
    console.print(table(outcome.rows))
    for text in outcome.texts:
        console.print(f"\n{text}", markup=False, highlight=False)
    for path in outcome.files:
        console.print(f"-> {path}", style="dim")
    for failure in outcome.failures:
        print(f"rfwp: check failed: {failure}", file=sys.stderr)
    if outcome.failures:
        sys.exit(1)


@app.command
def train(preset: Annotated[str, tyro.conf.Positional] = "", options: RunOptions = RunOptions()) -> None:  # noqa: B008
    """Train a preset, or a preset's model on your own sequences; stop with Ctrl-C, go on with the same command or --resume.

    The best checkpoint on the validation set is tested at the end. With several processes:
    torchrun --nproc-per-node N -m rfwp train PRESET --out RUN

    Exit code 130 or 143: stopped by Ctrl-C or SIGTERM, and saved.

    Args:
        preset: For example code-execution-3/delta-rnn; see: rfwp presets.
    """
    # imported here because the other commands should start quickly
    from rfwp.train import command
    from rfwp.train.log import ConsoleLog

    base = _base(preset, options)
    if options.resume is not None:
        plans = command.plan_resumed(base, options)
    elif base is None:
        raise InvalidInput("train needs a preset, --data FOLDER with --model PRESET, or --resume RUN; see: rfwp presets")
    else:
        name = preset if options.data is None else f"{options.data.resolve().name}-{options.model}"
        plans = command.plan_runs(base, options, name)
    results = command.train(plans, options, ConsoleLog(_console()))
    if is_first() and not command.exit_code(results):
        title = f"test, {len(results)} seeds: mean ± standard deviation" if len(results) > 1 else "test"
        _console().print(_listing((title, ""), command.summary(results)))
        for plan in plans:
            _console().print(f"-> {plan.folder}", style="dim", soft_wrap=True)
    sys.exit(command.exit_code(results))


def _base(preset: str, options: RunOptions) -> RunConfig | None:
    """The run before changes: a preset's, or that of a preset's model on files."""
    from rfwp.train.command import files_run

    if bool(options.data) != bool(options.model):
        raise InvalidInput("--data FOLDER and --model PRESET go together: what to learn, and which model learns it")
    if options.data is None:
        return run_config(preset) if preset else None
    if preset:
        raise InvalidInput(f"--data trains on your files, and {preset} has a task of its own; give one of them")
    model = model_config(options.model)
    if not isinstance(model, SequenceConfig):
        raise InvalidInput(f"the model of {options.model} does not read tokens; take one of: {', '.join(TASKS)}")
    table = options.model.partition("/")[0]
    return files_run(model, run_config(options.model).train if table in TASKS else TrainConfig(), options.data)


@app.command(name="eval")
def evaluate(run: Annotated[Path, tyro.conf.Positional], options: EvalOptions = EvalOptions()) -> None:  # noqa: B008
    """Evaluate a run's best checkpoint, or show what it says to a sequence of your own.

    Args:
        run: The folder that `rfwp train` made.
    """
    from rfwp.train import command
    from rfwp.train.log import ConsoleLog

    log = ConsoleLog(Console(stderr=True))
    if options.input is None:
        metrics = command.evaluate_run(run, options, log)
        _console().print(_listing((options.split, ""), ((name, f"{100 * value:.2f} %") for name, value in metrics.items())))
        return
    said = command.answer(run, options, log)
    rows = [(s.token, s.prediction, "?" if s.truth is None else s.truth, "wrong" if s.wrong else "") for s in said]
    _console().print(_listing(("token", "prediction", "truth", ""), rows))


@app.command
def reproduce(options: Annotated[ReproduceOptions, tyro.conf.PositionalRequiredArgs]) -> None:
    """Train what is missing of a table of the paper; the same command continues what it left unfinished.

    Exit code 1: a run failed. 130 or 143: stopped by Ctrl-C or SIGTERM, and saved.
    """
    from rfwp.reproduce.run import describe_outcome, describe_plan, make_plan
    from rfwp.reproduce.run import reproduce as run_plan

    def say(line: str) -> None:
        _console().print(line, soft_wrap=True, markup=False, highlight=False)

    plan = make_plan(options)
    for line in describe_plan(plan, options.jobs):
        say(line)
    if options.dry_run or not plan.missing:
        return
    outcome, code = run_plan(plan, options, say)
    for line in describe_outcome(outcome):
        say(line)
    sys.exit(code)


@app.command
def report(out: Path = Path("results")) -> None:
    """Write the paper's tables with our runs beside them, and the learning curves, and show the tables that have runs.

    Args:
        out: Folder with runs/*.jsonl; gets tables/*.md and figures/*.png and *.svg.
    """
    from rfwp.report.plots import write_figures
    from rfwp.report.records import read_runs
    from rfwp.report.tables import LEGEND, write_tables

    runs = read_runs(out / "runs")
    if not runs:
        raise InvalidInput(f"{out / 'runs'} has no finished runs; make some: rfwp reproduce table-2")
    console = _console()
    for table in write_tables(runs, out / "tables"):
        if table.runs:
            console.print(f"\n{table.title}", style="bold")
            # headings take several short lines, so that many columns find room
            console.print(_listing([title.replace(", ", "\n") for title in table.header], table.rows))
        for note in table.notes:
            console.print(note, style="dim", soft_wrap=True, markup=False, highlight=False)
    console.print(f"\n{LEGEND}", style="dim", soft_wrap=True)
    for path in (out / "tables", *write_figures(runs, out / "figures")):
        console.print(f"-> {path}", style="dim", soft_wrap=True)


def _listing(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    listing = Table(box=None, header_style="bold", pad_edge=False)
    for title in header:
        listing.add_column(title, no_wrap=True)
    for row in rows:
        # symbols of a task may look like markup
        listing.add_row(*(Text(cell) for cell in row), style="red" if row[-1] == "wrong" else None)
    return listing


def systematic_name(config: ModelConfig) -> str:
    """`Recurrent/Delta fast Linear Net` for fast weight programmers, a plain word for the baselines."""
    match config.core:
        case BlocksConfig(layer=FWPConfig() as layer):
            return Composition(layer.slow, layer.rule, layer.fast, layer.phi).name  # type: ignore[arg-type]
        case BlocksConfig():
            return "Softmax attention"
        case LSTMConfig(hidden=hidden):
            return f"LSTM, {hidden} units"
        case HighwayConfig():
            return "Feedforward, gated"
    return "Feedforward"


def count(config: ModelConfig) -> int:
    """Trained parameters, counted without allocating them."""
    return sum(p.numel() for p in rfwp.build(config, device="meta").parameters())


def variants(preset: Preset) -> str:
    return " ".join(f":{name}" for name in preset.variants)


def _check_command(arguments: list[str]) -> None:
    """A mistyped command gets a suggestion, not a page of usage; a list that is given twice is an error."""
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        raise unknown("command", arguments[0], COMMANDS)
    # the last one would count, and the others would be lost in silence
    for flag in ("--set", "--seeds", "--models"):
        if arguments.count(flag) > 1:
            raise InvalidInput(f"{flag} is there twice; put all values behind one {flag}")


def _example(chosen: list[Preset]) -> str:
    return next((f":{name}" for name in chosen[0].variants), "")


def _console() -> Console:
    # without a terminal, lines are as long as they need to be
    return Console(width=None if sys.stdout.isatty() else 160)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; a mistake of the user is one line and exit code 2."""
    logging.basicConfig(
        format="%(message)s", handlers=[RichHandler(console=Console(stderr=True), show_path=False, show_time=False)]
    )
    logging.getLogger("rfwp").setLevel(logging.INFO)  # which backend runs is said, once
    try:
        _check_command(sys.argv[1:] if arguments is None else arguments)
        app.cli(prog="rfwp", description=DESCRIPTION, args=arguments, config=(tyro.conf.OmitArgPrefixes,))
    except RFWPError as error:
        # of several processes with one mistake, one says it
        if is_first():
            print(f"rfwp: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        # without a name it is none of the user's files
        if error.filename is None:
            raise
        print(f"rfwp: {error.filename}: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("rfwp: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
