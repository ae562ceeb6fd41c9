"""What the pages for readers contain that can be run, Python programs and command lines; and the site that they make."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
)
BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", flags=re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(rfwp [^`]+)`")


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def python_blocks(page: str) -> list[str]:
    return [text for language, text in BLOCK.findall(read(page)) if language == "python"]


def run_page(page: str) -> dict:
    """Its Python blocks in order, as one program; what that has defined."""
    names: dict = {"__name__": "page"}
    for block in python_blocks(page):
        exec(compile(block, page, "exec"), names)
    return names


def command_lines(page: str) -> list[str]:
    """What follows `rfwp` in the blocks that are no Python, and in the text where it is more than the name of a command."""
    text = read(page)
    shell = "\n".join(block for language, block in BLOCK.findall(text) if language != "python").replace("\\\n", " ")
    found = [rest for line in shell.splitlines() if (rest := _arguments(line))]
    return found + [rest for line in INLINE.findall(BLOCK.sub("", text)) if " " in (rest := _arguments(line))]


def _arguments(line: str) -> str:
    """`rfwp train lm/rdn` and `torchrun ... -m rfwp train lm/rdn` -> `train lm/rdn`"""
    before, name, rest = line.partition("rfwp ")
    return rest.strip() if name and (not before.strip() or before.endswith(" -m ")) else ""


def words(line: str) -> list[str]:
    """As the shell would pass them on: without comments, redirections, and the brackets around what may be left away."""
    plain = re.sub(r"\[(--[^\]]*)\]", r"\1", line.partition(" < ")[0])
    # N steps, S seconds
    return ["1" if word in ("N", "S") else word for word in shlex.split(plain, comments=True)]


def build_site(out: Path) -> None:
    """As `make docs` does; a warning is an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
