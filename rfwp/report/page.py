"""The whole report as one HTML page that needs no network and no scripts, and the same as Markdown."""

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from rfwp.atomic import write_whole
from rfwp.report import speed
from rfwp.report.atari import render_atari
from rfwp.report.deviations import deviations_text, to_html
from rfwp.report.figures import Figure, comparisons, learning_curves, returns, scaling_figures
from rfwp.report.html_tables import table_html
from rfwp.report.paper import tables
from rfwp.report.plots import COLOURS
from rfwp.report.results import Results
from rfwp.report.svg import DASHES
from rfwp.report.tables import LEGEND, Rendered, render
from rfwp.report.wiki import text_tables

TITLE = "Fast weight programmers: results beside the paper"
LEAD = (
    "Every table of “Going Beyond Linear Transformers with Recurrent Fast Weight Programmers” with the runs of this library "
    "beside the printed numbers; learning curves, speed, and where the library differs from the paper."
)
ON_DARK = {"lstm": "var(--ink)", "delta-delta-net": "#b04a80"}
"""Colours of models that would drown in a dark ground."""
NO_RUNS = "No runs yet."
FIRST_COMPARISONS = 2
"""Those of the paper's main text; the others are of its appendix."""


def write_page(results: Results, folder: Path, pictures: Sequence[Path] = ()) -> list[Path]:
    """folder/report.html and folder/report.md; the Markdown shows the `pictures`, which lie in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    problems = [problem.removeprefix(f"{folder}/") for problem in results.problems]
    files = [folder / "report.html", folder / "report.md"]
    write_whole(files[0], page(results, problems).encode())
    write_whole(files[1], markdown(results, problems, [path.relative_to(folder) for path in pictures]).encode())
    return files


def page(results: Results, problems: Sequence[str]) -> str:
    """The HTML; the same results give the same page."""
    rendered, extra = [render(table, results.runs) for table in tables().values()], _extra_tables(results)
    sections = [
        ("overview", "Overview", _overview(rendered, extra, results)),
        *([("problems", "Lines that were passed over", _list(problems))] if problems else []),
        ("tables", "The paper's tables", _tables(rendered, extra)),
        ("curves", "Learning curves", _figures([*learning_curves(results.runs), *returns(results.runs)], NO_RUNS)),
        ("improvements", "Atari: relative improvements", _improvements(results)),
        ("speed", "Speed", _speed(results)),
        ("deviations", "Deviations from the paper", to_html(deviations_text())),
    ]
    links = "".join(f'<li><a href="#{identity}">{escape(title)}</a></li>' for identity, title, _ in sections)
    body = "\n".join(
        f'<section class="card{" problems" if identity == "problems" else ""}" aria-labelledby="{identity}">'
        f'<h2 id="{identity}">{escape(title)}</h2>\n{content}\n</section>'
        for identity, title, content in sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(TITLE)}</title>
<link rel="icon" href="data:,">
<style>
{_style()}
</style>
</head>
<body>
<a class="skip" href="#tables">Skip to the tables</a>
<header>
<h1>{escape(TITLE)}</h1>
<p class="lead">{escape(LEAD)}</p>
<nav aria-label="Contents"><ul>{links}</ul></nav>
</header>
<main>
{body}
</main>
</body>
</html>
"""


def markdown(results: Results, problems: Sequence[str], pictures: Sequence[Path]) -> str:
    """The same tables and texts; figures in words, beside links to the pictures."""
    rendered, extra = [render(table, results.runs) for table in tables().values()], _extra_tables(results)
    groups = comparisons(results.runs)
    parts = [f"# {TITLE}", LEAD, "## Overview", _state(results), _coverage(rendered, extra).markdown().partition("\n\n")[2]]
    if problems:
        parts += ["## Lines that were passed over", "\n".join(f"- {problem}" for problem in problems)]
    parts += ["## The paper's tables", *(f"##{table.markdown()}" for table in (*rendered, *extra))]
    curves = [*learning_curves(results.runs), *returns(results.runs)]
    parts += ["## Learning curves", *map(_in_words, curves)] if curves else ["## Learning curves", NO_RUNS]
    parts += [f"![{path.stem}]({path.as_posix()})" for path in pictures if path.suffix == ".svg"]
    parts += ["## Atari: relative improvements", _improvement_source(groups)]
    parts += [_in_words(figure) for group in groups.values() for figure in group]
    measured = [*speed.speed_tables(results.measurements), *_scaling_tables(results)]
    parts += ["## Speed", speed.LEGEND if measured else "No measurements yet.", *(f"##{table.markdown()}" for table in measured)]
    parts += ["## Deviations from the paper", deviations_text()]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


# --- Sections ---


def _overview(rendered: Sequence[Rendered], extra: Sequence[Rendered], results: Results) -> str:
    links = {table.title: table.id for table in (*rendered, *extra)}
    return f'<p class="explain">{escape(_state(results))}</p>\n{table_html(_coverage(rendered, extra), heading="", links=links)}'


def _coverage(rendered: Sequence[Rendered], extra: Sequence[Rendered]) -> Rendered:
    """How many of the printed numbers have runs beside them."""
    rows = []
    for table in rendered:
        ours = [n for n, title in enumerate(table.header) if title.endswith(", here") and not title.startswith("parameters")]
        cells = [line[n] for line in table.rows for n in ours if line[n + 1] != "-"]
        rows.append([table.title, f"{sum(cell != '-' for cell in cells)} of {len(cells)}", str(table.runs or "-")])
    rows += [[table.title, "-", str(table.runs)] for table in extra]
    return Rendered("coverage", "Coverage", ["table", "cells with runs", "runs"], rows, [], 0, "")


def _tables(rendered: Sequence[Rendered], extra: Sequence[Rendered]) -> str:
    parts = [f'<p class="explain">{escape(LEGEND)}</p>']
    for table in (*rendered, *extra):
        legend = "" if table.legend == LEGEND else table.legend
        if table.runs:
            parts.append(table_html(table, legend=legend))
        else:
            # what is only the paper's is there to be opened
            summary = f'<summary><h3 id="{table.id}">{escape(table.title)}</h3> <span>(no runs yet)</span></summary>'
            parts.append(f"<details>{summary}{table_html(table, heading='', legend=legend)}</details>")
    return "\n".join(parts)


def _improvements(results: Results) -> str:
    groups = comparisons(results.runs)
    parts = [f'<p class="explain">{escape(_improvement_source(groups))}</p>']
    for number, figures in enumerate(groups.values()):
        if number == FIRST_COMPARISONS:
            parts.append("<details><summary>The comparisons of the paper's appendix</summary>")
        parts.append(_figures(figures, NO_RUNS))
    return "\n".join([*parts, "</details>"])


def _improvement_source(groups: dict[str, list[Figure]]) -> str:
    text = (
        "(score − score of the other model) / |score of the other model|, in %, by game; beyond 100 % the scale is logarithmic."
    )
    if any(figure.title.startswith("Here") for figures in groups.values() for figure in figures):
        return f"{text} Ours come first, at the steps that they had, then the paper's figures from its printed scores."
    return f"{text} There are no runs of ours that could be compared: these are the paper's figures, from its printed scores."


def _speed(results: Results) -> str:
    rendered = speed.speed_tables(results.measurements)
    if not rendered and not results.measurements:
        return '<p class="explain">No measurements yet; make some: <code>rfwp bench ops</code></p>'
    parts = [f'<p class="explain">{escape(speed.LEGEND)}</p>', *(table_html(table, legend=table.legend) for table in rendered)]
    if figures := scaling_figures(results.measurements):
        parts.append(_figures(figures, ""))
    parts += [table_html(table, legend=table.legend) for table in _scaling_tables(results)]
    return "\n".join(parts)


# --- Parts ---


def _extra_tables(results: Results) -> list[Rendered]:
    """Runs that are not at the paper's settings, and so in none of its tables."""
    return [table for table in (*text_tables(results.runs), render_atari(results.runs)) if table.runs]


def _scaling_tables(results: Results) -> list[Rendered]:
    return [speed.scaling_table(*key, rows) for key, rows in speed.scaling(results.measurements).items()]


def _state(results: Results) -> str:
    times = [*(run.time for run in results.runs), *(one.time for one in results.measurements)]
    days = sorted(time[:10] for time in times if time)
    counts = f"Made from {len(results.runs)} runs and {len(results.measurements)} measurements"
    return counts + (f", {' to '.join(dict.fromkeys((days[0], days[-1])))}." if days else ".")


def _figures(figures: Iterable[Figure], otherwise: str) -> str:
    drawn = [_figure(figure) for figure in figures]
    return f'<div class="figures">{"".join(drawn)}</div>' if drawn else f'<p class="explain">{escape(otherwise)}</p>'


def _figure(figure: Figure) -> str:
    keys = "".join(f"<li>{_swatch(key.look, key.dashes)}{escape(key.label)}</li>" for key in figure.keys)
    legend = f'<ul class="legend">{keys}</ul>' if keys else ""
    title = f"<h3>{escape(figure.title)}</h3>"
    words = f"<details><summary>In words</summary><p>{escape(figure.description)}</p></details>"
    return f"<figure>{title}{figure.svg}{legend}<figcaption>{escape(figure.made)}.{words}</figcaption></figure>"


def _swatch(look: str, dashes: str) -> str:
    """Of a legend; its words stand beside it."""
    if dashes == "bar":
        shape = f'<rect class="bar {look}" width="28" height="10"/>'
    else:
        pattern = f' stroke-dasharray="{DASHES[dashes]}"' if DASHES[dashes] else ""
        shape = f'<line class="line {look}"{pattern} x1="0" x2="28" y1="5" y2="5"/>'
    return f'<svg class="chart" viewBox="0 0 28 10" aria-hidden="true">{shape}</svg>'


def _in_words(figure: Figure) -> str:
    return f"**{figure.title}.** {figure.description} ({figure.made})"


def _list(lines: Sequence[str]) -> str:
    return f'<ul class="notes">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def _style() -> str:
    """The style sheet, and the colour of every model."""
    colours = [f".model-{model} {{ --model: {colour}; }}" for model, colour in COLOURS.items()]
    dark = [f"  .model-{model} {{ --model: {colour}; }}" for model, colour in ON_DARK.items()]
    sheet = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return "\n".join([sheet, *colours, "@media (prefers-color-scheme: dark) {", *dark, "}"])
