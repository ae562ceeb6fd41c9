"""What commands write to the terminal."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rfwp.train.log import Screen


def console(stderr: bool = False) -> Screen:
    output = sys.stderr if stderr else sys.stdout
    # without a terminal, lines are as long as they need to be; a closed output is None
    return Screen(stderr=stderr, width=None if output is not None and output.isatty() else 160)


def show_written(screen: Console, path: object) -> None:
    """`-> runs/mine`: what a command has left behind, in one piece, whatever characters it has."""
    screen.print(Text(f"-> {path}", style="dim"), soft_wrap=True)


def listing(header: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Plain columns; a row that ends with `wrong` is red."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in header:
        table.add_column(title, no_wrap=True)
    for row in rows:
        # symbols of a task may look like markup
        table.add_row(*(Text(cell) for cell in row), style="red" if row[-1] == "wrong" else None)
    return table
