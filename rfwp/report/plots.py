"""Figures; the only place that imports matplotlib, and only when something is drawn."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rfwp.errors import missing_extra


def plot_scaling(rows: Iterable[Any], size: str, path: Path, title: str) -> list[Path]:
    """Time, and memory where it is known, over one size (T, B or d), as PNG and SVG. Both axes are logarithmic.

    `rows` are those of a benchmark: with what, backend, dtype, sizes, ms and peak_mb.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra("a plot", "report") from None
    timed = [row for row in rows if row.ms is not None]
    with_memory = any(row.peak_mb is not None for row in timed)
    figure = Figure(figsize=(13 if with_memory else 8, 4.5), layout="constrained")
    axes = figure.subplots(1, 2 if with_memory else 1, squeeze=False)[0]
    for label, points in sorted(_lines(timed, size).items()):
        x = [value for value, _, _ in points]
        axes[0].plot(x, [ms for _, ms, _ in points], marker="o", markersize=3, label=label)
        if with_memory and all(mb for *_, mb in points):
            axes[1].plot(x, [mb for *_, mb in points], marker="o", markersize=3, label=label)
    for axis, name in zip(axes, ("ms", "peak MB beside the inputs"), strict=False):
        axis.set(yscale="log", xlabel=size, ylabel=name)
        axis.set_xscale("log", base=2)
        values = sorted({row.sizes[size] for row in timed})
        axis.set_xticks(values, [f"{value:,}" for value in values])
        axis.grid(True, alpha=0.2)
    if timed:
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7, frameon=False)
    figure.suptitle(title)
    FigureCanvasAgg(figure).print_png(str(path.with_suffix(".png")))
    FigureCanvasSVG(figure).print_svg(str(path.with_suffix(".svg")))
    return [path.with_suffix(".png"), path.with_suffix(".svg")]


def _lines(rows: list[Any], size: str) -> dict[str, list[tuple[int, float, float | None]]]:
    """Points by what they are of; where something was timed twice, the later one counts."""
    lines: dict[str, dict[int, tuple[int, float, float | None]]] = {}
    for row in rows:
        # an LSTM's name holds its sizes, which change with d
        label = f"{row.what.removesuffix(' forward + backward')} · {re.sub(r'[(].*[)]', '', row.backend)} · {row.dtype}"
        lines.setdefault(label, {})[row.sizes[size]] = (row.sizes[size], row.ms.median, row.peak_mb)
    return {label: sorted(points.values()) for label, points in lines.items()}
