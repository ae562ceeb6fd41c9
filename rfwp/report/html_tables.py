"""A rendered table as HTML: it scrolls inside its own box, and `here` and `paper` stand below one heading."""

from collections.abc import Mapping
from html import escape

from rfwp.report.tables import Rendered

HERE = ", here"
MARKS = {"+": "better", "−": "worse"}


def table_html(table: Rendered, heading: str = "h3", legend: str = "", links: Mapping[str, str] | None = None) -> str:
    """`heading`: its tag, none where the title stands elsewhere. `links`: rows that lead somewhere, by their name."""
    title = f'<{heading} id="{table.id}">{escape(table.title)}</{heading}>' if heading else ""
    ours = [n for n, name in enumerate(table.header) if name.endswith(HERE) and table.header[n + 1 : n + 2] == ["paper"]]
    words = set() if ours else {n for line in table.rows for n, text in enumerate(line) if text[:1].isalpha()}
    rows = "\n".join(_row(line, ours, words, links or {}) for line in table.rows)
    box = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}">'
    body = f"{box}<table>{_head(table.header, ours, words)}<tbody>\n{rows}\n</tbody></table></div>"
    notes = "".join(f"<li>{escape(note)}</li>" for note in table.notes)
    below = [f'<p class="explain">{escape(legend)}</p>' if legend else "", f'<ul class="notes">{notes}</ul>' if notes else ""]
    return "\n".join(part for part in (title, body, *below) if part)


def _head(header: list[str], ours: list[int], words: set[int]) -> str:
    if not ours:
        kinds = [' class="words"' if n in words else "" for n in range(len(header))]
        cells = "".join(f'<th scope="col"{kinds[n]}>{escape(name)}</th>' for n, name in enumerate(header) if n)
        return f'<thead><tr><th class="first" scope="col">{escape(header[0])}</th>{cells}</tr></thead>'
    above, below, n = [f'<th class="first" scope="col" rowspan="2">{escape(header[0])}</th>'], [], 1
    while n < len(header):
        if n in ours:
            above.append(f'<th scope="colgroup" colspan="2">{escape(header[n].removesuffix(HERE))}</th>')
            below += ['<th scope="col">here</th>', '<th scope="col">paper</th>']
            n += 2
        else:
            above.append(f'<th scope="col" rowspan="2">{escape(header[n])}</th>')
            n += 1
    return f"<thead><tr>{''.join(above)}</tr><tr>{''.join(below)}</tr></thead>"


def _row(line: list[str], ours: list[int], words: set[int], links: Mapping[str, str]) -> str:
    name, *cells = line
    first = f'<a href="#{links[name]}">{escape(name)}</a>' if name in links else escape(name)
    other = "printed" if ours else ""
    kinds = ["ours" if n in ours else "words" if n in words else other for n in range(len(line))]
    texts = "".join(_cell(text, kind) for text, kind in zip(cells, kinds[1:], strict=True))
    return f'<tr><th scope="row">{first}</th>{texts}</tr>'


def _cell(text: str, kind: str) -> str:
    if text == "-":
        return '<td class="none">-</td>'
    value, _, mark = text.rpartition(" ")
    if kind == "ours" and mark in MARKS:
        return f'<td class="{kind}">{escape(value)} <span class="{MARKS[mark]}">{mark}</span></td>'
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"
