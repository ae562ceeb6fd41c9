"""Tables with our runs beside the paper's."""

import pytest

from rfwp.report.paper import Cell, Column, tables
from rfwp.report.records import read_runs, summarise
from rfwp.report.tables import mark, render, write_tables
from tests.report.runs import line, write


@pytest.fixture
def runs(tmp_path):
    write(
        tmp_path,
        line(seed=1, score=0.90),
        line(seed=2, score=0.91),
        line("code-execution-3/rdn", score=0.5),
        line("listops-10/delta-net", score=0.99),
        line("code-execution-3/delta-net", score=0.1, changes={"train.epochs": 2}),
    )
    return read_runs(tmp_path)


def row(table, title):
    return next(row for row in table.rows if row[0] == title)


def test_ours_stand_beside_the_printed_numbers(runs):
    table = render(tables()["table-2"], runs)
    assert table.header[:3] == ["model", "code execution, 3 variables, here", "paper"]
    assert row(table, "Delta RNN")[:5] == ["Delta RNN", "90.5 ± 0.7 (2) ≈", "90.8 ± 1.7", "-", "85.1 ± 1.9"]
    assert row(table, "RDN")[1:3] == ["50.0 (1) −", "92.6 ± 2.2"]
    assert row(table, "Delta Net")[5:7] == ["99.0 (1) +", "85.7 ± 1.8"]


def test_a_run_at_other_settings_is_not_in_the_table_but_in_its_notes(runs):
    table = render(tables()["table-2"], runs)
    assert row(table, "Delta Net")[1] == "-"
    assert table.notes == [
        "4 runs on NVIDIA H200, code 0123456",
        "left out, at other settings: code-execution-3/delta-net (train.epochs 200 -> 2), seed 1",
    ]
    assert table.notes[1] in table.markdown()


def test_runs_of_code_that_was_not_committed_are_told_apart(tmp_path):
    write(tmp_path, line(seed=1, dirty=True), line(seed=2, dirty=False))
    assert render(tables()["table-2"], read_runs(tmp_path)).notes == ["2 runs on NVIDIA H200, code 0123456, 0123456 with changes"]


def test_validation_results_lowest_and_highest_and_parameters(tmp_path):
    five = "code-execution-5/delta-rnn"
    write(tmp_path, *(line(five, seed=seed, score=score) for seed, score in ((1, 0.8), (2, 0.9))))
    runs = read_runs(tmp_path)
    assert row(render(tables()["table-5"], runs), "Delta RNN")[3] == "99.0 ± 0.0 (2) ≈"
    assert row(render(tables()["table-6"], runs), "Delta RNN")[1::2] == ["85.0 ± 7.1 (2) ≈", "80.0", "90.0", "3.7"]


@pytest.mark.parametrize(
    ("ours", "higher", "expected"),
    [(90.0, True, " ≈"), (92.04, True, " ≈"), (92.06, True, " +"), (87.9, True, " −"), (92.06, False, " −"), (87.9, False, " +")],
)
def test_the_mark_says_within_two_printed_standard_deviations_or_on_which_side(ours, higher, expected):
    assert mark(Cell("p", "m", 90.0, 1.0), Column("c", "m", higher_is_better=higher), summarise([ours])) == expected


def test_no_mark_without_a_printed_standard_deviation():
    assert mark(Cell("p", "m", 90.0), Column("c", "m"), summarise([90.0])) == ""
    assert mark(Cell("p", "m", 90.0, 1.0), Column("c", "m", statistic="lowest"), summarise([90.0])) == ""


def test_markdown_has_as_many_cells_in_every_line(runs, tmp_path):
    written = write_tables(runs, tmp_path / "tables")
    assert len(written) == 10
    for table in written:
        text = (tmp_path / "tables" / f"{table.id}.md").read_text()
        assert text.startswith(f"# Table {table.id.split('-')[1]}: ")
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert {line.count("|") for line in rows} == {len(table.header) + 1}
        assert len(rows) == 2 + len(table.rows)
    assert (tmp_path / "tables" / "table-9.md").read_text().count("1,985 ± 90") == 1
