"""docs/paper-map.md names files and functions: they exist."""

import ast
import re
from pathlib import Path

import pytest

from rfwp.presets import presets
from rfwp.report.deviations import signed

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "paper-map.md").read_text()
TARGETS = sorted(set(re.findall(r"`(\S+\.py)::(\w+)`", TEXT)))


def test_the_map_has_targets():
    assert len(TARGETS) > 30


@pytest.mark.parametrize(("path", "name"), TARGETS)
def test_target_exists(path, name):
    tree = ast.parse((ROOT / path).read_text())
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert name in defined


def test_every_table_of_presets_is_on_the_map():
    for table in {name.split("/")[0] for name in presets()}:
        assert f"`{table}/…`" in TEXT


def test_every_file_that_signs_a_deviation_is_on_the_map():
    files = {where.partition("::")[0] for where, _ in signed()}
    assert len(files) > 5
    for path in files:
        assert f"`rfwp/{path}::" in TEXT, path
