"""Docstrings as the API reference shows them: examples and aligned equations keep their lines."""

import re
from typing import Any

import griffe

ALIGNED = re.compile(r"\S {2,}\S")
# what Markdown would take for links, tags or emphasis; in backticks it takes nothing
SPECIAL = re.compile(r"(`[^`]*`)|([\[\]<*])")


def as_markdown(text: str) -> str:
    """Paragraphs with `>>>` are code, and so are those whose words are aligned by several spaces; all others are plain words."""
    return "\n\n".join(_paragraph(paragraph) for paragraph in text.split("\n\n"))


def _paragraph(text: str) -> str:
    if text.startswith(">>>"):
        return f"```pycon\n{text}\n```"
    if ALIGNED.search(text):
        return f"```text\n{text}\n```"
    return SPECIAL.sub(lambda found: found[1] or f"\\{found[2]}", text)


class Docstrings(griffe.Extension):
    """Changes docstrings while the sources are read; the sources stay as they are."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
