"""Figures; the only place that imports matplotlib, and only when something is drawn."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rfwp.errors import missing_extra
from rfwp.report.records import Run, choose, summarise

COLOURS = {
    "lstm": "#000000",
    "transformer": "#8c8c8c",
    "linear-transformer": "#e69f00",
    "delta-net": "#56b4e9",
    "delta-rnn": "#d55e00",
    "rdn": "#0072b2",
    "delta-lstm": "#009e73",
    "delta-mlp": "#cc79a7",
    "delta-delta-net": "#882255",
    "feedforward": "#999933",
}
"""One colour a model in every figure, told apart by colour-blind eyes too. Sizes and versions of a model share its colour."""
DASHES = ("-", "--", ":", "-.")
_OPS = {
    "sum": "linear-transformer",
    "delta": "delta-net",
    "delta_rnn": "delta-rnn",
    "recurrent_delta": "rdn",
    "delta_lstm": "delta-lstm",
    "LSTM": "lstm",
    "attention": "transformer",
}
"""The model whose colour an op has."""


def styles(models: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """(colour, dashes) of every label, given its model: `lstm` and `lstm-512` share their colour and differ in their dashes."""
    seen: dict[str, int] = {}
    found = {}
    for label, model in models.items():
        base = max((known for known in COLOURS if model.startswith(known)), key=len, default="")
        order = seen.setdefault(base, 0)
        seen[base] += 1
        found[label] = (COLOURS.get(base, "#444444"), DASHES[order % len(DASHES)])
    return found


def plot_curves(lines: Mapping[str, Sequence[Run]], path: Path, title: str) -> list[Path]:
    """Validation score over epochs, as PNG and SVG: a line a model, the mean over its seeds, in a band from lowest to highest."""
    figure = _figure(8, 4.5)
    axis = figure.subplots()
    style = styles({model: model for model in lines})
    for model, runs in lines.items():
        colour, dashes = style[model]
        epochs, low, mean, high = _band(runs)
        seeds = f"{len(runs)} seeds" if len(runs) > 1 else "1 seed"
        axis.plot(epochs, mean, color=colour, linestyle=dashes, linewidth=1.5, label=f"{model} ({seeds})")
        axis.fill_between(epochs, low, high, color=colour, alpha=0.15, linewidth=0)
    metrics = {"sequence accuracy" if "sequence accuracy" in run.valid else "accuracy" for runs in lines.values() for run in runs}
    axis.set(xlabel="epoch", ylabel=f"validation {' / '.join(sorted(metrics))} in %", ylim=(-2, 102))
    axis.grid(True, alpha=0.2)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    figure.suptitle(title)
    return _save(figure, path)


def write_figures(runs: Sequence[Run], folder: Path) -> list[Path]:
    """The learning curves of every table of presets that has runs at the paper's settings."""
    lines: dict[str, dict[str, list[Run]]] = {}
    for preset in dict.fromkeys(run.preset for run in runs):
        table, _, model = preset.partition("/")
        if counted := [run for run in choose(runs, preset).runs if run.curve]:
            lines.setdefault(table, {})[model] = counted
    files = []
    for table, models in sorted(lines.items()):
        folder.mkdir(parents=True, exist_ok=True)
        # the legend goes in the order of the colours
        order = sorted(models, key=lambda model: (_rank(model), model))
        files += plot_curves({model: models[model] for model in order}, folder / f"learning-curves-{table}", table)
    return files


def plot_scaling(rows: Iterable[Any], size: str, path: Path, title: str) -> list[Path]:
    """Time, and memory where it is known, over one size (T, B or d), as PNG and SVG. Both axes are logarithmic.

    `rows` are those of a benchmark: with what, backend, dtype, sizes, ms and peak_mb.
    """
    timed = [row for row in rows if row.ms is not None]
    with_memory = any(row.peak_mb is not None for row in timed)
    figure = _figure(13 if with_memory else 8, 4.5)
    axes = figure.subplots(1, 2 if with_memory else 1, squeeze=False)[0]
    lines = dict(sorted(_lines(timed, size).items()))
    style = styles({label: _OPS.get(label.split()[0], "") for label in lines})
    for label, points in lines.items():
        colour, dashes = style[label]
        x = [value for value, _, _ in points]
        look = {"color": colour, "linestyle": dashes, "marker": "o", "markersize": 3, "label": label}
        axes[0].plot(x, [ms for _, ms, _ in points], **look)
        if with_memory and all(mb for *_, mb in points):
            axes[1].plot(x, [mb for *_, mb in points], **look)
    for axis, name in zip(axes, ("ms", "peak MB beside the inputs"), strict=False):
        axis.set(yscale="log", xlabel=size, ylabel=name)
        axis.set_xscale("log", base=2)
        values = sorted({row.sizes[size] for row in timed})
        axis.set_xticks(values, [f"{value:,}" for value in values])
        axis.grid(True, alpha=0.2)
    if timed:
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7, frameon=False)
    figure.suptitle(title)
    return _save(figure, path)


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra("a plot", "report") from None
    return Figure(figsize=(width, height), layout="constrained", dpi=150)


def _save(figure: Any, path: Path) -> list[Path]:
    """PNG and SVG; the same figure gives the same files."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    png, svg = path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.svg")
    FigureCanvasAgg(figure).print_png(str(png))
    with rc_context({"svg.hashsalt": path.name}):
        FigureCanvasSVG(figure).print_svg(str(svg), metadata={"Date": None})
    return [png, svg]


def _band(runs: Sequence[Run]) -> tuple[list[float], list[float], list[float], list[float]]:
    """Epochs that all runs have, and lowest, mean and highest score in %."""
    scores = [{epoch: 100 * score for epoch, _, score in run.curve} for run in runs]
    epochs = sorted(set.intersection(*(set(run) for run in scores)))
    found = [summary for epoch in epochs if (summary := summarise(run[epoch] for run in scores))]
    return epochs, [s.lowest for s in found], [s.mean for s in found], [s.highest for s in found]


def _rank(model: str) -> int:
    return next((i for i, known in enumerate(COLOURS) if model.startswith(known)), len(COLOURS))


def _lines(rows: list[Any], size: str) -> dict[str, list[tuple[int, float, float | None]]]:
    """Points by what they are of; where something was timed twice, the later one counts."""
    lines: dict[str, dict[int, tuple[int, float, float | None]]] = {}
    for row in rows:
        # an LSTM's name holds its sizes, which change with d
        label = f"{row.what.removesuffix(' forward + backward')} · {re.sub(r'[(].*[)]', '', row.backend)} · {row.dtype}"
        lines.setdefault(label, {})[row.sizes[size]] = (row.sizes[size], row.ms.median, row.peak_mb)
    return {label: sorted(points.values()) for label, points in lines.items()}
