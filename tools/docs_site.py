"""What mkdocs asks while it builds the site: files of the repository that a page links to become part of the site.

In the repository a page links to `../examples/recurrent_ppo.py`, which works wherever its files can be browsed. A site has only
what lies in docs/, so such a file gets a page of its own and the link leads there.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
DERIVATIONS = "rfwp/ops/README.md"
LINK = re.compile(r"\]\((?P<path>(?:\.\./)+[^)#\s]+)(?P<anchor>#[^)]*)?\)")


def place(path: str) -> str:
    """Where a file of the repository stands in the site; a program is shown on a page."""
    if path == DERIVATIONS:
        return "derivations.md"
    return f"source/{path}.md" if path.endswith(".py") else f"source/{path}"


def target(page: str, link: str) -> str | None:
    """The file of the repository, outside of docs/, that a page in docs/ links to; None: there is no such file."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    outside = not path.startswith(("docs/", ".."))
    return path if outside and (ROOT / path).is_file() else None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add all files that pages link to, and the derivations of the ops."""
    found = {DERIVATIONS}
    for page in files.documentation_pages():
        found |= {path for link in LINK.finditer(page.content_string) if (path := target(page.src_uri, link["path"]))}
    for path in sorted(found):
        if path.endswith(".py"):
            text = f"# {path}\n\n```python\n{(ROOT / path).read_text(encoding='utf-8')}```\n"
            files.append(File.generated(config, place(path), content=text))
        else:
            files.append(File.generated(config, place(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links that leave docs/ lead to the copies in the site. One that leads nowhere stays, and mkdocs says so."""

    def moved(link: re.Match[str]) -> str:
        path = target(page.file.src_uri, link["path"])
        if path is None:
            return link[0]
        return f"]({posixpath.relpath(place(path), posixpath.dirname(page.file.src_uri) or '.')}{link['anchor'] or ''})"

    return LINK.sub(moved, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """The theme's search is a dialog without a name, which screen readers miss."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
