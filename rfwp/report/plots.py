"""Figures; the only place that imports matplotlib, and only when something is drawn."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rfwp.atomic import whole_file
from rfwp.errors import missing_extra
from rfwp.presets import find, is_language
from rfwp.report.atari import COMPARISONS, PAPER_TABLES, improvements, is_atari, our_scores, paper_name, paper_scores
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
_COMPARISON_COLOURS = {
    ("rdn", "linear-transformer"): "#0072b2",
    ("rdn", "lstm"): "#882255",
    ("feedforward", "lstm"): "#e69f00",
    ("rdn", "delta-net"): "#56b4e9",
    ("delta-rnn", "lstm"): "#009e73",
    ("rdn", "delta-rnn"): "#8c8c8c",
}
"""The last four as the paper's text names them: orange, sky blue, green, grey."""
_SHADES = ("#444444", "#bbbbbb", "#888888")
DASHES = ("-", "--", ":", "-.")
OPS = {
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
        # a perplexity is no share of anything
        if is_language(preset):
            continue
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
    style = styles({label: OPS.get(label.split()[0], "") for label in lines})
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


def plot_positions(lines: Mapping[str, Sequence[float]], path: Path, title: str) -> list[Path]:
    """Mean loss at each position of a segment, as PNG and SVG: what a word's context within it, and before it, is worth."""
    figure = _figure(7, 4.5)
    axis = figure.subplots()
    for (label, values), colour in zip(lines.items(), (COLOURS["delta-rnn"], COLOURS["rdn"]), strict=False):
        axis.plot(range(1, len(values) + 1), values, color=colour, linewidth=1.2, label=label)
    axis.set(xlabel="position in the segment", ylabel="-log p a word, in nats")
    axis.grid(True, alpha=0.2)
    axis.legend(fontsize=8, frameon=False)
    figure.suptitle(title)
    return _save(figure, path)


def plot_improvements(
    panels: Mapping[str, Mapping[str, float]], path: Path, title: str, colour: str, together: bool = False
) -> list[Path]:
    """Bars of relative improvements in %, a bar a game, as PNG and SVG; above 100 % the axis is logarithmic.

    A panel for each of `panels`, in the order of its own bars; or `together`: one panel in which the first gives the order.
    """
    games = {game: None for panel in panels.values() for game in panel}
    figure = _figure(max(8.0, 0.45 * len(games) * (1 if together else len(panels))), 4.5)
    if together:
        axis = figure.subplots()
        width = 0.8 / len(panels)
        for n, (label, bars) in enumerate(panels.items()):
            places = [place + (n - (len(panels) - 1) / 2) * width for place, game in enumerate(games) if game in bars]
            heights = [bars[game] for game in games if game in bars]
            drawn = axis.bar(places, heights, width, color=colour if n == 0 else _SHADES[n % len(_SHADES)], label=label)
            axis.bar_label(drawn, [f"{height:+.0f}" for height in heights], fontsize=6, padding=1)
        _improvement_axis(axis, list(games), [bar for bars in panels.values() for bar in bars.values()])
        figure.legend(loc="outside lower center", ncols=len(panels), fontsize=8, frameon=False)
    else:
        for axis, (label, bars) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
            drawn = axis.bar(range(len(bars)), list(bars.values()), color=colour)
            axis.bar_label(drawn, [f"{bar:+.0f}" for bar in bars.values()], fontsize=6, padding=1)
            _improvement_axis(axis, list(bars), list(bars.values()))
            axis.set_title(label, fontsize=9)
    figure.suptitle(title, fontsize=10)
    return _save(figure, path)


def write_improvements(runs: Sequence[Run], folder: Path) -> list[Path]:
    """The paper's figures of improvements from its own scores; and ours, where both models have runs at the same setting."""
    files = []
    printed = {title: paper_scores(table) for title, table in PAPER_TABLES.items()}
    ours = our_scores(runs)
    for model, baseline in COMPARISONS:
        name = f"atari-{model}-over-{baseline}"
        what = f"{find(f'atari/{model}').title} over {find(f'atari/{baseline}').title}"
        colour = _COMPARISON_COLOURS[model, baseline]
        panels = {f"after {title}": improvements(scores, model, baseline) for title, scores in printed.items()}
        folder.mkdir(parents=True, exist_ok=True)
        files += plot_improvements(panels, folder / f"{name}-paper", f"The paper: {what}, improvement of the score in %", colour)
        for setting, scores in sorted(ours.items()):
            if not (mine := improvements(scores, model, baseline)):
                continue
            beside = {
                f"paper, {title}": {game: bar for game, bar in improvements(paper, model, baseline).items() if game in mine}
                for title, paper in printed.items()
            }
            slug = re.sub(r"[^A-Za-z0-9_.]+", "-", f"{setting.steps} {setting.how}")
            where = folder / f"{name}-{slug}"
            title = f"{what} after {setting}, improvement of the score in %"
            files += plot_improvements({f"here, {setting}": mine, **beside}, where, title, colour, together=True)
    return files


def write_returns(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Returns of training episodes over agent steps, a figure a game, a line a run."""
    games: dict[str, list[Run]] = {}
    for run in runs:
        if is_atari(run) and run.curve:
            games.setdefault(run.config["environment"]["game"], []).append(run)
    files = []
    for game, mine in sorted(games.items()):
        folder.mkdir(parents=True, exist_ok=True)
        labels = [f"{run.preset}, {run.config['environment']['protocol']}, seed {run.seed}" for run in mine]
        style = styles({label: run.preset.partition("/")[2] for label, run in zip(labels, mine, strict=True)})
        figure = _figure(8, 4.5)
        axis = figure.subplots()
        for label, run in zip(labels, mine, strict=True):
            colour, dashes = style[label]
            x, y = [point[0] / 1e6 for point in run.curve], [point[1] for point in run.curve]
            axis.plot(x, y, color=colour, linestyle=dashes, linewidth=1.5, label=label)
        axis.set(xlabel="million agent steps", ylabel="return of training episodes")
        axis.grid(True, alpha=0.2)
        figure.legend(loc="outside right upper", fontsize=8, frameon=False)
        figure.suptitle(paper_name(game))
        files += _save(figure, folder / f"atari-returns-{game}")
    return files


def _improvement_axis(axis: Any, games: list[str], heights: Sequence[float]) -> None:
    axis.axhline(0, color="black", linewidth=0.8)
    # one game gains a hundred times its score, most gain a part of it
    axis.set_yscale("symlog", linthresh=100)
    low, high = min(*heights, 0.0), max(*heights, 0.0)
    axis.set_ylim(1.3 * min(low, -20.0), 1.3 * max(high, 20.0))
    axis.set_yticks(
        ticks := [tick for tick in (-100, -50, 0, 50, 100, 1_000, 10_000) if 1.3 * low <= tick <= 1.3 * high or tick == 0]
    )
    axis.set_yticklabels([f"{tick:+,} %" if tick else "0" for tick in ticks])
    axis.minorticks_off()
    axis.set_xticks(range(len(games)), games, rotation=60, ha="right", fontsize=7)
    axis.grid(True, axis="y", alpha=0.2)


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
    with whole_file(png) as file:
        FigureCanvasAgg(figure).print_png(file)
    with whole_file(svg) as file, rc_context({"svg.hashsalt": path.name}):
        FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None})
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
