"""The rows of a benchmark as a table for the terminal."""

from rich.table import Table

from rfwp.bench.records import Row

NUMBERS = ("ms", "p20", "p80", "n", "device ms", "tokens/s", "peak MB", "/ floor", "error")
NONE = "-"


def table(rows: list[Row]) -> Table:
    """Numbers that no row has get no column."""
    listing = Table(box=None, header_style="bold", pad_edge=False)
    listing.add_column("what", style="cyan", no_wrap=True)
    listing.add_column("shape", no_wrap=True)
    listing.add_column("dtype")
    listing.add_column("backend", no_wrap=True)
    numbers = [_numbers(row) for row in rows]
    known = [place for place in range(len(NUMBERS)) if any(of_row[place] != NONE for of_row in numbers)]
    # an agent's steps are not a text's
    agents = bool(rows) and all(row.what.startswith("rl ") for row in rows)
    for place in known:
        name = NUMBERS[place].replace("tokens/s", "steps/s") if agents else NUMBERS[place]
        listing.add_column(name, justify="right", no_wrap=True)
    listing.add_column("note", style="dim")
    for row, of_row in zip(rows, numbers, strict=True):
        shape = f"{row.shape} {'x'.join(str(size) for size in row.sizes.values())}"
        listing.add_row(row.what, shape, row.dtype, row.backend, *(of_row[place] for place in known), row.note)
    return listing


def _numbers(row: Row) -> list[str]:
    ms = [NONE] * 4
    if row.ms is not None:
        ms = [f"{row.ms.median:.3f}", f"{row.ms.p20:.3f}", f"{row.ms.p80:.3f}", str(row.ms.n)]
    alone = NONE if row.device_ms is None else f"{row.device_ms.median:.3f}"
    return [
        *ms,
        alone,
        _number(row.tokens_per_s, ",.0f"),
        _number(row.peak_mb, ",.0f"),
        _number(row.floor_ratio, ".2f"),
        _number(row.error, ".0e"),
    ]


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)
