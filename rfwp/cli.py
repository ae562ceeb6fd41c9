"""The command line: `rfwp --help`."""

import json
import logging
import sys
from typing import Annotated

import tyro
from rich.console import Console
from rich.logging import RichHandler
from rich.table import Table

import rfwp
from rfwp.bench.options import OpsOptions, PlotOptions, TrainOptions
from rfwp.config import BlocksConfig, FWPConfig, HighwayConfig, LSTMConfig, ModelConfig, to_dict
from rfwp.errors import RFWPError, unknown
from rfwp.fwp import Composition
from rfwp.presets import Preset, find, model_config, presets

DESCRIPTION = """Fast weight programmers: neural nets whose slow net rewrites, at every step, the weights of a fast net.

Start here:
  rfwp presets                    every model of the paper, with its parameter count here and there
  rfwp presets code-execution-5   one table of them
  rfwp show lm/rdn                one model: its wiring, its parameters, its config
  rfwp bench train --quick        how fast a training step is here
"""

app = tyro.extras.SubcommandApp()
COMMANDS = ("presets", "show", "bench")


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
    """A mistyped command gets a suggestion, not a page of usage."""
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        raise unknown("command", arguments[0], COMMANDS)


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
        print(f"rfwp: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
