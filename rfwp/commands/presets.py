"""`rfwp presets` and `rfwp show`: the models of the paper."""

import json
from typing import Annotated

import tyro
from rich.table import Table

import rfwp
from rfwp.commands.console import console
from rfwp.config import BlocksConfig, FWPConfig, HighwayConfig, LSTMConfig, ModelConfig, to_dict
from rfwp.errors import unknown
from rfwp.fwp import Composition
from rfwp.presets import Preset, find, model_config, presets


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
    console().print(listing)
    example = next(
        (f". A variant goes behind a colon: rfwp show {p.name}:{next(iter(p.variants))}" for p in chosen if p.variants), ""
    )
    console().print(f"\n{len(chosen)} preset{'s' * (len(chosen) > 1)}{example}", style="dim")


def show(name: Annotated[str, tyro.conf.Positional]) -> None:
    """Show one preset: what it is, where its parameters are, and its config as JSON.

    Args:
        name: Preset, with or without a variant: lm/rdn, lm/delta-mlp-b:live.
    """
    config = model_config(name)
    preset = find(name.partition(":")[0])
    model = rfwp.build(config, device="meta")
    screen = console()
    screen.print(f"[bold]{name}[/]  {preset.title}: {systematic_name(config)}")
    screen.print(f"{count(config):,} parameters here | {preset.printed_parameters} in the paper")
    for part, module in model.named_children():
        size = sum(p.numel() for p in module.parameters())
        if size:
            screen.print(f"  {part:<12} {size:>12,}")
    if preset.variants:
        screen.print(f"variants: {variants(preset)}")
    screen.print_json(json.dumps(to_dict(config)))


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
