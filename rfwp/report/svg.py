"""Small charts as SVG text: they take their colours from the page around them, so that they are right on light and dark ground.

A chart is narrow, so that its letters can be read on a phone; the legend is the page's.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 48, 18, 28, 42
DASHES = {"-": "", "--": "7 4", ":": "2 4", "-.": "8 3 2 3"}
"""As matplotlib names them."""
Point = TypeVar("Point")
MOST_POINTS = 300
"""Of a line; more than that cannot be seen."""


@dataclass(frozen=True)
class Line:
    """`look` is the class that has the colour."""

    label: str
    look: str
    dashes: str
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()
    """(x, lowest, highest)"""


@dataclass(frozen=True)
class Bar:
    look: str
    value: float


@dataclass(frozen=True)
class Axis:
    label: str
    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False

    def place(self, value: float, start: float, end: float) -> float:
        """Where a value lies between two ends in the picture."""
        low, high, value = (math.log(v) for v in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return start + (end - start) * (value - low) / (high - low)


def line_chart(identity: str, title: str, description: str, lines: Sequence[Line], x: Axis, y: Axis) -> str:
    def at(px: float, py: float) -> str:
        return f"{x.place(px, LEFT, WIDTH - RIGHT):.1f},{y.place(py, HEIGHT - BOTTOM, TOP):.1f}"

    parts = [_grid(x, y)]
    for line in lines:
        if line.band:
            band = _thinned(line.band)
            edge = [at(px, high) for px, _, high in band] + [at(px, low) for px, low, _ in reversed(band)]
            parts.append(f'<polygon class="band {line.look}" points="{" ".join(edge)}"/>')
    for line in lines:
        dashes = f' stroke-dasharray="{DASHES[line.dashes]}"' if DASHES[line.dashes] else ""
        points = " ".join(at(px, py) for px, py in _thinned(line.points))
        parts.append(f'<polyline class="line {line.look}"{dashes} points="{points}"/>')
    return _svg(identity, title, description, HEIGHT, parts)


def bar_chart(identity: str, title: str, description: str, rows: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """A row a label; beyond 100 % the scale is logarithmic, since one value may be a hundred times the others."""
    left, right, thickness, gap, top = 130.0, 66.0, 13, 7, 6
    values = [bar.value for _, bars in rows for bar in bars]
    low, high = _bent(min(-20.0, *values)), _bent(max(20.0, *values))

    def place(value: float) -> float:
        return left + (WIDTH - left - right) * (_bent(value) - low) / (high - low)

    height = top + sum(len(bars) * thickness + gap for _, bars in rows) + 22
    parts = []
    # where the scale is wide, labels at 50 would run into their neighbours
    halves = (-50, 50) if place(50) - place(0) > 50 else ()
    for tick in (-1000, -100, 0, 100, 1_000, 10_000, *halves):
        if low <= _bent(tick) <= high:
            name = "axis" if tick == 0 else "grid"
            parts.append(f'<line class="{name}" x1="{place(tick):.1f}" x2="{place(tick):.1f}" y1="{top}" y2="{height - 20}"/>')
            label = f"{tick:+,}" + (" %" if abs(tick) <= 100 else "") if tick else "0"
            parts.append(f'<text text-anchor="middle" x="{place(tick):.1f}" y="{height - 6}">{label}</text>')
    y = float(top)
    for label, bars in rows:
        middle = y + len(bars) * thickness / 2 + 4
        parts.append(f'<text text-anchor="end" x="{left - 8:.0f}" y="{middle:.1f}">{escape(label)}</text>')
        for bar in bars:
            start, end = sorted((place(0), place(bar.value)))
            kind = "bar loss" if bar.value < 0 else "bar"
            size = f'x="{start:.1f}" y="{y + 1:.1f}" width="{max(end - start, 0.5):.1f}" height="{thickness - 2}"'
            parts.append(f'<rect class="{kind} {bar.look}" {size}/>')
            parts.append(f'<text class="value" x="{max(end, place(0)) + 4:.1f}" y="{y + 10:.1f}">{round(bar.value):+,}</text>')
            y += thickness
        y += gap
    return _svg(identity, title, description, height, parts)


def linear_axis(label: str, low: float, high: float) -> Axis:
    """With ticks at round numbers."""
    if not low < high:
        low, high = low - 1, high + 1
    rough = (high - low) / 5
    step = 10 ** math.floor(math.log10(rough))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step >= rough * 0.99)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(label, low, high, [n * step for n in range(first, last + 1)])


def log_axis(label: str, values: Sequence[float], base: float = 10) -> Axis:
    """From the power of `base` below all values to the one above; ticks at powers, at most seven."""
    inside: Callable[[float], float] = lambda value: math.log(value, base)  # noqa: E731
    low, high = math.floor(inside(min(values)) + 1e-9), math.ceil(inside(max(values)) - 1e-9)
    high = max(high, low + 1)
    every = math.ceil((high - low) / 6)
    return Axis(label, base**low, base**high, [base**n for n in range(low, high + 1, every)], log=True)


def _grid(x: Axis, y: Axis) -> str:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for tick in y.ticks:
        place = y.place(tick, bottom, TOP)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{place:.1f}" y2="{place:.1f}"/>')
        parts.append(f'<text text-anchor="end" x="{LEFT - 6}" y="{place + 4:.1f}">{_short(tick)}</text>')
    for tick in x.ticks:
        place = x.place(tick, LEFT, right)
        parts.append(f'<line class="grid" x1="{place:.1f}" x2="{place:.1f}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(f'<text text-anchor="middle" x="{place:.1f}" y="{bottom + 16}">{_short(tick)}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(f'<text text-anchor="middle" x="{(LEFT + right) / 2:.0f}" y="{HEIGHT - 8}">{escape(x.label)}</text>')
    # above the axis it can be read without turning the head
    parts.append(f'<text x="4" y="14">{escape(y.label)}</text>')
    return "".join(parts)


def _svg(identity: str, title: str, description: str, height: float, parts: Sequence[str]) -> str:
    names = f'role="img" aria-labelledby="{identity}-title" aria-describedby="{identity}-desc"'
    texts = f'<title id="{identity}-title">{escape(title)}</title><desc id="{identity}-desc">{escape(description)}</desc>'
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {height:.0f}" {names}>{texts}{"".join(parts)}</svg>'


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Every n-th point, and the last."""
    step = math.ceil(len(points) / MOST_POINTS)
    found = list(points[::step])
    return found if not points or found[-1] is points[-1] else [*found, points[-1]]


def _bent(value: float) -> float:
    """Linear to 100, logarithmic beyond."""
    size = abs(value) / 100
    return math.copysign(size if size <= 1 else 1 + math.log10(size), value)


def _short(value: float) -> str:
    """`20`, `0.01`, `32,768`, `200 k`, `2 M`"""
    if value == int(value) and abs(value) < 1e5:
        return f"{value:,.0f}"
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"
