"""What commands write to the terminal."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


def console(stderr: bool = False) -> Console:
    # without a terminal, lines are as long as they need to be
    return Console(stderr=stderr, width=None if (sys.stderr if stderr else sys.stdout).isatty() else 160)


def listing(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Plain columns; a row that ends with `wrong` is red."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in header:
        table.add_column(title, no_wrap=True)
    for row in rows:
        # symbols of a task may look like markup
        table.add_row(*(Text(cell) for cell in row), style="red" if row[-1] == "wrong" else None)
    return table
