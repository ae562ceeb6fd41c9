"""The rows of a benchmark as a table for the terminal."""

from rich.table import Table

from rfwp.bench.records import Row


def table(rows: list[Row]) -> Table:
    listing = Table(box=None, header_style="bold", pad_edge=False)
    listing.add_column("what", style="cyan", no_wrap=True)
    listing.add_column("shape", no_wrap=True)
    listing.add_column("dtype")
    listing.add_column("backend", no_wrap=True)
    for name in ("ms", "p20", "p80", "n", "device ms", "tokens/s", "peak MB", "/ floor", "error"):
        listing.add_column(name, justify="right", no_wrap=True)
    listing.add_column("note", style="dim")
    for row in rows:
        listing.add_row(*_cells(row))
    return listing


def _cells(row: Row) -> list[str]:
    ms = ["-"] * 4
    if row.ms is not None:
        ms = [f"{row.ms.median:.3f}", f"{row.ms.p20:.3f}", f"{row.ms.p80:.3f}", str(row.ms.n)]
    alone = "-" if row.device_ms is None else f"{row.device_ms.median:.3f}"
    shape = f"{row.shape} {'x'.join(str(size) for size in row.sizes.values())}"
    numbers = [
        _number(row.tokens_per_s, ",.0f"),
        _number(row.peak_mb, ",.0f"),
        _number(row.floor_ratio, ".2f"),
        _number(row.error, ".0e"),
    ]
    return [row.what, shape, row.dtype, row.backend, *ms, alone, *numbers, row.note]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
