"""`rfwp report`: tables, figures and a page of the finished runs."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rfwp.commands.console import console, listing, show_written
from rfwp.errors import InvalidInput, MissingExtra

if TYPE_CHECKING:
    from rfwp.report.records import Run


def report(out: Path = Path("results")) -> None:
    """Write the paper's tables with our runs beside them, learning curves and speed, as one page; show the tables that have runs.

    Args:
        out: Folder with runs/*.jsonl and bench/*.jsonl; gets report.html, report.md, tables/*.md and figures/*.png and *.svg.
    """
    from rfwp.report.atari import write_atari
    from rfwp.report.page import write_page
    from rfwp.report.results import read_results
    from rfwp.report.tables import LEGEND, write_tables
    from rfwp.report.wiki import write_text_tables

    results = read_results(out)
    for problem in results.problems:
        print(f"rfwp: {problem}; it was passed over", file=sys.stderr)
    if not results.runs and not results.measurements:
        where = "" if out == Path("results") else f" --out {shlex.quote(str(out / 'runs'))}"
        raise InvalidInput(f"{out / 'runs'} has no finished runs; make some: rfwp reproduce table-2{where}")
    screen, runs = console(), results.runs
    agents = write_atari(runs, out / "tables")
    for table in (*write_tables(runs, out / "tables"), *write_text_tables(runs, out / "tables"), agents):
        if table.runs:
            screen.print(f"\n{table.title}", style="bold")
            # headings take several short lines, so that many columns find room
            screen.print(listing([title.replace(", ", "\n") for title in table.header], table.rows))
        for note in table.notes:
            screen.print(note, style="dim", soft_wrap=True, markup=False, highlight=False)
    screen.print(f"\n{LEGEND}", style="dim", soft_wrap=True)
    pictures = _draw(runs, out / "figures", with_agents=agents.runs > 0)
    for path in (out / "tables", *pictures, *write_page(results, out, pictures)):
        show_written(screen, path)


def _draw(runs: "Sequence[Run]", folder: Path, with_agents: bool) -> list[Path]:
    """PNG and SVG files, for papers and slides; without matplotlib there are none, and that is said."""
    from rfwp.report.plots import write_figures, write_improvements, write_returns

    writers = (write_figures, write_improvements, write_returns) if with_agents else (write_figures,)
    try:
        return [path for write in writers for path in write(runs, folder)]
    except MissingExtra as error:
        # the page draws by itself
        print(f"rfwp: {error}", file=sys.stderr)
        return []
