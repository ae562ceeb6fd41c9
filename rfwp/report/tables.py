"""The paper's tables with our runs beside the printed numbers, as plain rows of text and as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rfwp.atomic import write_whole
from rfwp.report.paper import Cell, Column, PaperTable, tables
from rfwp.report.records import Chosen, Run, Summary, choose, devices_and_codes, summarise

LEGEND = (
    "Here: mean ± sample standard deviation (number of seeds), - without a run. "
    "≈ within two printed standard deviations of the printed mean, + better than that, − worse."
)


@dataclass(frozen=True)
class Rendered:
    """A table as text."""

    id: str
    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str]
    """What was run where, and which runs were left out and why."""
    runs: int
    """How many runs are in it."""
    legend: str = LEGEND

    def markdown(self) -> str:
        alignment = ["---", *("---:" for _ in self.header[1:])]
        lines = ["| " + " | ".join(cells) + " |" for cells in (self.header, alignment, *self.rows)]
        parts = [f"# {self.title}", "\n".join(lines), self.legend, "\n".join(f"- {note}" for note in self.notes)]
        return "\n\n".join(part for part in parts if part) + "\n"

    def write(self, folder: Path) -> None:
        """As folder/id.md."""
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / f"{self.id}.md", self.markdown().encode())


def render(table: PaperTable, runs: Sequence[Run]) -> Rendered:
    """Two columns of text for each of the table's: here, and as printed."""
    chosen = {preset: choose(runs, preset) for preset in dict.fromkeys(c.preset for row in table.rows for c in row.cells)}
    header = [table.corner]
    for column in table.columns:
        header += [f"{column.title}, here", "paper"]
    rows = []
    for row in table.rows:
        texts = [row.title]
        for cell, column in zip(row.cells, table.columns, strict=True):
            texts += [_ours(cell, column, chosen[cell.preset].runs), _printed(cell)]
        rows.append(texts)
    counted = [run for choice in chosen.values() for run in choice.runs]
    title = f"Table {table.id.removeprefix('table-')}: {table.title}"
    return Rendered(table.id, title, header, rows, _notes(chosen, counted), len(counted))


def write_tables(runs: Sequence[Run], folder: Path) -> list[Rendered]:
    """Every table of the paper as folder/table-N.md."""
    rendered = [render(table, runs) for table in tables().values()]
    for table in rendered:
        table.write(folder)
    return rendered


def mark(cell: Cell, column: Column, summary: Summary) -> str:
    """Is our mean within two printed standard deviations of the printed mean? Rounding may add half of the last digit."""
    if cell.mean is None or cell.std is None or column.statistic != "mean":
        return ""
    distance = summary.mean * column.scale - cell.mean
    if abs(distance) <= 2 * cell.std + 0.5 * 10**-cell.digits:
        return " ≈"
    return " +" if (distance > 0) == column.higher_is_better else " −"


def _ours(cell: Cell, column: Column, runs: Sequence[Run]) -> str:
    summary = summarise(run.value(cell.metric, column.split) for run in runs)
    if summary is None:
        return "-"
    value = _number(getattr(summary, column.statistic) * column.scale, cell.digits)
    if column.statistic != "mean" or cell.metric == "parameters":
        return value
    spread = "" if summary.std is None else f" ± {_number(summary.std * column.scale, cell.digits)}"
    return f"{value}{spread} ({summary.n}){mark(cell, column, summary)}"


def _printed(cell: Cell) -> str:
    if cell.mean is None:
        return "-"
    return _number(cell.mean, cell.digits) + ("" if cell.std is None else f" ± {_number(cell.std, cell.digits)}")


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}"


def origin(runs: Sequence[Run]) -> str:
    """`3 runs on NVIDIA H200, code 37c566f`"""
    devices, codes = devices_and_codes(runs)
    return f"{len(runs)} runs on {devices}, code {codes}"


def _notes(chosen: dict[str, Chosen], counted: list[Run]) -> list[str]:
    notes = [origin(counted)] if counted else []
    left_out: dict[str, list[int]] = {}
    for preset, choice in chosen.items():
        for run, reasons in choice.left_out:
            left_out.setdefault(f"{preset} ({', '.join(reasons)})", []).append(run.seed)
    return notes + [
        f"left out, at other settings: {what}, seed {' '.join(map(str, sorted(seeds)))}" for what, seeds in left_out.items()
    ]
