"""Where the library differs from the paper, for the report: the list of docs/paper-map.md, or what the docstrings sign."""

import ast
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
HEADING = "## Deviations"
SIGNED = re.compile(r"Differs from the paper: (.+?)(?=\n\s*\n|\s*Differs from|\s*$)", re.DOTALL)


def deviations_text(package: Path = PACKAGE) -> str:
    """Markdown. An installed package has no docs folder; it still has its docstrings."""
    doc = package.parent / "docs" / "paper-map.md"
    text = doc.read_text(encoding="utf-8") if doc.is_file() else ""
    if HEADING in text:
        return re.split(r"\n## ", text.partition(HEADING)[2])[0].strip()
    intro = "As the docstrings say it; the full list is docs/paper-map.md of the source tree."
    return "\n\n".join([intro, "\n".join(f"{n}. `{where}`: {what}" for n, (where, what) in enumerate(signed(package), 1))])


def signed(package: Path = PACKAGE) -> Iterator[tuple[str, str]]:
    """(`fwp/slow.py::Recurrent`, what is different) for every docstring that signs a deviation"""
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            name = getattr(node, "name", "")
            for part in getattr(node, "body", []) if isinstance(getattr(node, "body", []), list) else []:
                if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and isinstance(part.value.value, str):
                    for found in SIGNED.findall(part.value.value):
                        where = path.relative_to(package).as_posix() + (f"::{name}" if name else "")
                        yield where, " ".join(found.split())


def to_html(markdown: str) -> str:
    """Headings, paragraphs, numbered lists, bold and code: as much of Markdown as that section has."""
    parts: list[str] = []
    for line in markdown.splitlines():
        item = re.match(r"\d+\. (.*)", line)
        heading = re.match(r"#+ (.*)", line)
        if heading:
            parts.append(f"<h3>{_inline(heading[1])}</h3>")
        elif item:
            # a blank line between two items does not end the list
            while parts and not parts[-1]:
                parts.pop()
            if parts and parts[-1].endswith("</li></ol>"):
                parts[-1] = parts[-1].removesuffix("</ol>") + f"<li>{_inline(item[1])}</li></ol>"
            else:
                parts.append(f"<ol><li>{_inline(item[1])}</li></ol>")
        elif not line.strip():
            parts.append("")
        elif parts and parts[-1].endswith(("</li></ol>", "</p>")):
            end = "</li></ol>" if parts[-1].endswith("</li></ol>") else "</p>"
            parts[-1] = parts[-1].removesuffix(end) + f" {_inline(line.strip())}{end}"
        else:
            parts.append(f"<p>{_inline(line.strip())}</p>")
    return "\n".join(part for part in parts if part)


def _inline(text: str) -> str:
    """`code` and **bold**; of a link only its words, since where it points may not be there."""
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", escape(text, quote=False))
    text = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
