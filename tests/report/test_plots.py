"""Figures of learning curves."""

import sys

import pytest

from rfwp.errors import MissingExtra
from rfwp.presets import presets
from rfwp.report.plots import COLOURS, plot_curves, styles, write_figures
from rfwp.report.records import read_runs
from tests.report.runs import line, write


@pytest.fixture
def runs(tmp_path):
    write(
        tmp_path,
        line(seed=1, score=0.9),
        line(seed=2, score=0.3),
        line("code-execution-3/lstm"),
        line("listops-10/rdn", score=0.8),
        line("listops-15/rdn", changes={"train.epochs": 3}),
    )
    return read_runs(tmp_path)


def test_one_figure_a_table_of_presets_as_png_and_svg_with_a_legend(runs, tmp_path):
    files = write_figures(runs, tmp_path / "figures")
    names = ["learning-curves-code-execution-3", "learning-curves-listops-10"]
    assert [file.name for file in files] == [f"{name}.{kind}" for name in names for kind in ("png", "svg")]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    svg = files[1].read_text()
    for colour in (COLOURS["delta-rnn"], COLOURS["lstm"]):
        assert colour in svg
    assert COLOURS["rdn"] not in svg


def test_the_same_runs_draw_the_same_files(runs, tmp_path):
    first, second = (write_figures(runs, tmp_path / name) for name in ("one", "two"))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in second]


def test_every_model_of_the_paper_has_a_colour_and_no_two_models_share_one():
    assert len(set(COLOURS.values())) == len(COLOURS)
    for preset in presets():
        model = preset.split("/")[1]
        assert any(model.startswith(known) for known in COLOURS), model


def test_sizes_of_a_model_share_its_colour_and_differ_in_dashes():
    found = styles(
        {name: name for name in ("lstm", "lstm-512", "delta-net", "delta-delta-net", "transformer", "linear-transformer")}
    )
    assert found["lstm"] == (COLOURS["lstm"], "-")
    assert found["lstm-512"] == (COLOURS["lstm"], "--")
    assert len({colour for colour, _ in found.values()}) == 5


def test_without_matplotlib_the_extra_is_named(runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtra, match=r"rfwp\[report\]"):
        plot_curves({"rdn": runs[:1]}, tmp_path / "x", "title")
