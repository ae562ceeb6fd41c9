"""Speed: the latest measurement of all that `rfwp bench` timed, as tables with ratios, and as lines over a growing size."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rfwp.report.records import code_name
from rfwp.report.tables import Rendered

PLAIN_SIZES = {
    "B": "batch {}",
    "T": "{} steps",
    "H": "{} heads",
    "d": "of size {}",
    "layers": "{} layers",
    "width": "of width {}",
    "heads": "{} heads",
    "ff": "feedforward {}",
    "vocabulary": "{} words",
    "N": "{} environments",
    "groups": "{} groups",
    "threads": "{} threads",
}
TRAIN, AGENT, PASSES = "train step ", "rl ", " forward + backward"
NUMBERS = ("20–80 %", "tokens a second", "peak MB")
LEGEND = (
    "Medians in ms, with the 20th to the 80th percentile; of everything the latest measurement. What others take is their time "
    "divided by the time of the row, within one run of the benchmark: above 1 the row is faster."
)


@dataclass(frozen=True)
class Measurement:
    """One line of results/bench/*.jsonl; a line may have more fields than these."""

    what: str
    shape: str
    sizes: dict[str, int]
    dtype: str
    backend: str
    ms: dict[str, float] | None
    """Median, p20, p80 and n."""
    device_ms: dict[str, float] | None = None
    """The same of the kernels alone; older lines have none."""
    tokens_per_s: float | None = None
    peak_mb: float | None = None
    floor_ratio: float | None = None
    error: float | None = None
    note: str = ""
    time: str = ""
    device: str = ""
    threads: int | None = None
    torch: str = ""
    commit: str | None = None
    dirty: bool | None = None

    @property
    def median(self) -> float | None:
        return None if self.ms is None else self.ms["median"]

    @property
    def session(self) -> tuple[str, str, str | None]:
        """Measurements of one session can be compared with each other."""
        return self.device, self.time, self.commit

    @property
    def code(self) -> str:
        return code_name(self.commit, self.dirty)

    @property
    def where(self) -> str:
        return self.device + (f", {self.threads} threads" if self.threads else "")


def read_measurements(path: Path) -> Iterator[tuple[int, Measurement | None]]:
    """Every line that is not empty, with its number; None for what is no row of a benchmark."""
    names = {f.name for f in fields(Measurement)}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = Measurement(**{name: value for name, value in json.loads(line).items() if name in names})
            yield number, found if _is_whole(found) else None
        except (ValueError, TypeError, LookupError, AttributeError):
            yield number, None


def latest(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Of every thing that was timed at one size on one device, the last timing; tiny sizes, which time nothing, are left out."""
    found: dict[tuple[Any, ...], Measurement] = {}
    for one in sorted(measurements, key=_moment):
        if one.shape not in ("quick", "lm-quick"):
            found[one.where, one.what, one.shape, *sorted(one.sizes.items()), one.dtype, one.backend] = one
    return list(found.values())


def speed_tables(measurements: Sequence[Measurement]) -> list[Rendered]:
    """Whole training steps, then ops beside their peers, then agents: a table for each shape and device."""
    groups: dict[tuple[Any, ...], list[Measurement]] = {}
    for one in latest(measurements):
        if one.shape != "scaling":
            groups.setdefault((_kind(one), one.where, one.shape, *one.sizes.items()), []).append(one)
    # GPUs come first because their ratios are what most readers look for
    order = sorted(groups, key=lambda key: (key[0], not any(one.peak_mb for one in groups[key]), *map(str, key[1:])))
    writers = (_steps, _ops, _agents)
    return [writers[key[0]](groups[key], measurements) for key in order]


def scaling(measurements: Sequence[Measurement]) -> dict[tuple[str, str, str], list[Measurement]]:
    """The measurements of a growing size, by device, name of the size, and the sizes that stayed."""
    groups: dict[tuple[str, str, str], list[Measurement]] = {}
    for one in latest(measurements):
        if one.shape == "scaling" and one.median is not None:
            for size in one.sizes:
                fixed = sizes_in_words({name: value for name, value in one.sizes.items() if name != size})
                groups.setdefault((one.where, size, fixed), []).append(one)
    return {key: group for key, group in groups.items() if len({one.sizes[key[1]] for one in group}) > 2}


def scaling_table(where: str, size: str, fixed: str, rows: Sequence[Measurement]) -> Rendered:
    """Milliseconds over a growing size, a row an op."""
    values = sorted({one.sizes[size] for one in rows})
    cells: dict[tuple[str, str, str], dict[int, str]] = {}
    for one in rows:
        if one.median is not None:
            cells.setdefault((_name(one), one.backend, one.dtype), {})[one.sizes[size]] = milliseconds(one.median)
    header = ["op", "backend", "precision", *(f"{size} = {value:,}" for value in values)]
    body = [[*names, *(found.get(value, "-") for value in values)] for names, found in cells.items()]
    legend = "Milliseconds of the forward and backward pass, medians."
    title = f"Ops as {size} grows: {fixed}; {where}"
    return Rendered(slug(f"speed scaling {size} {fixed} {where}"), title, header, body, [made(rows)], len(rows), legend)


def milliseconds(value: float) -> str:
    """Three digits or so: `0.236`, `5.75`, `19.0`, `1,204`"""
    return f"{value:,.{3 if value < 1 else 2 if value < 10 else 1 if value < 1000 else 0}f}"


def made(measurements: Iterable[Measurement]) -> str:
    """`NVIDIA H200, 2026-11-15, code d7a9759, PyTorch 2.11.0+cu130`"""
    found = list(measurements)
    wheres, days = ({one.where for one in found}, {one.time[:10] for one in found})
    codes, torches = ({one.code for one in found}, {one.torch for one in found if one.torch})
    texts = [", ".join(sorted(wheres)), ", ".join(sorted(days)), "code " + ", ".join(sorted(codes))]
    return ", ".join([*texts, *([f"PyTorch {', '.join(sorted(torches))}"] if torches else [])])


def sizes_in_words(sizes: dict[str, int]) -> str:
    """`batch 64, 450 steps, 16 heads of size 16`"""
    words = ", ".join(PLAIN_SIZES.get(name, f"{name} {{}}").format(f"{size:,}") for name, size in sizes.items())
    return words.replace(", of ", " of ")


def _steps(rows: list[Measurement], everything: Sequence[Measurement]) -> Rendered:
    header = ["model", "precision", "ms", "/ floor", "LSTM takes", *NUMBERS, "how", "code"]
    body = []
    for one in _sorted(rows):
        lstm = _ratio(one, [other for other in everything if other.what == f"{TRAIN}lstm" and other.dtype == one.dtype])
        ms, spread = _times(one)
        floor = _number(one.floor_ratio, ".2f")
        body.append([_name(one), one.dtype, ms, floor, lstm, spread, *_amounts(one), one.backend, one.code])
    legend = "/ floor: the time divided by that of the same model with the op replaced by an elementwise product."
    return _rendered("training step", rows, header, body, legend)


def _ops(rows: list[Measurement], everything: Sequence[Measurement]) -> Rendered:
    peers = ["LSTM takes", "attention takes", "fla takes"]
    header = ["op", "backend", "precision", "ms", "ms on the device", *peers, *NUMBERS, "error", "code"]
    body = []
    for one in _sorted(rows):
        others = [other for other in everything if other.dtype == one.dtype and other is not one]
        ratios = [
            _ratio(one, [other for other in others if other.what == f"LSTM{PASSES}"]),
            _ratio(one, [other for other in others if other.what == f"attention{PASSES}"]),
            _ratio(one, [other for other in others if other.backend.startswith("fla") and other.what == one.what]),
        ]
        ms, spread = _times(one)
        alone = "-" if one.device_ms is None else milliseconds(one.device_ms["median"])
        numbers = [ms, alone, *ratios, spread, *_amounts(one), _number(one.error, ".0e")]
        body.append([_name(one), one.backend, one.dtype, *numbers, one.code])
    legend = (
        "Forward and backward pass, as called from Python, and on the device without the time that Python takes. "
        "The error is the worst relative one against the float64 reference."
    )
    return _rendered("ops", rows, header, body, legend)


def _agents(rows: list[Measurement], everything: Sequence[Measurement]) -> Rendered:
    header = ["what", "precision", "how", "agent steps a second", "ms", "note", "code"]
    body = [
        [_name(one), one.dtype, one.backend, _number(one.tokens_per_s, ",.0f"), _times(one)[0], one.note or "-", one.code]
        for one in rows
    ]
    return _rendered("agents", rows, header, body, "", with_notes=False)


def _rendered(
    what: str, rows: list[Measurement], header: list[str], body: list[list[str]], legend: str, with_notes: bool = True
) -> Rendered:
    """Without the columns that have nothing, and with what the rows note below the table."""
    kept = [n for n in range(len(header)) if any(texts[n] != "-" for texts in body)]
    first = rows[0]
    title = f"{what[0].upper()}{what[1:]}, {first.shape}: {sizes_in_words(first.sizes)}; {first.where}"
    notes = [made(rows)]
    for note in dict.fromkeys(one.note for one in rows if one.note and with_notes):
        notes.append(f"{', '.join(dict.fromkeys(_name(one) for one in rows if one.note == note))}: {note}")
    texts = [[line[n] for n in kept] for line in body]
    identity = slug(f"speed {what} {first.shape} {'x'.join(map(str, first.sizes.values()))} {first.where}")
    return Rendered(identity, title, [header[n] for n in kept], texts, notes, len(rows), legend)


def _ratio(one: Measurement, others: Iterable[Measurement]) -> str:
    """The time of the fastest of the others that ran at the same size in the same session, divided by this one's."""
    beside = [o.median for o in others if (o.session, o.shape, o.sizes) == (one.session, one.shape, one.sizes) and o.median]
    return f"{min(beside) / one.median:.2f} ×" if beside and one.median else "-"


def _sorted(rows: Iterable[Measurement]) -> list[Measurement]:
    return sorted(rows, key=lambda one: (one.dtype, math.inf if one.median is None else one.median))


def _times(one: Measurement) -> tuple[str, str]:
    if one.ms is None:
        return "-", "-"
    return milliseconds(one.ms["median"]), f"{milliseconds(one.ms['p20'])}–{milliseconds(one.ms['p80'])}"


def _amounts(one: Measurement) -> tuple[str, str]:
    return _number(one.tokens_per_s, ",.0f"), _number(one.peak_mb, ",.0f")


def _name(one: Measurement) -> str:
    return one.what.removeprefix(TRAIN).removeprefix(AGENT).removesuffix(PASSES)


def slug(text: str) -> str:
    """`speed-ops-code-nvidia-h200`: fit for the id of an element."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _kind(one: Measurement) -> int:
    return 0 if one.what.startswith(TRAIN) else 2 if one.what.startswith(AGENT) else 1


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _moment(one: Measurement) -> datetime:
    found = datetime.fromisoformat(one.time) if one.time else datetime.min
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _is_whole(one: Measurement) -> bool:
    texts = (one.what, one.shape, one.dtype, one.backend, one.note, one.time, one.device, one.torch or "", one.commit or "")
    optional = (one.tokens_per_s, one.peak_mb, one.floor_ratio, one.error)
    numbers = [value for value in optional if value is not None]
    numbers += [ms[name] for ms in (one.ms, one.device_ms) if ms is not None for name in ("median", "p20", "p80")]
    _moment(one)
    return (
        all(isinstance(text, str) for text in texts)
        and all(type(size) is int for size in one.sizes.values())
        and all(type(number) in (int, float) and math.isfinite(number) for number in numbers)
    )
