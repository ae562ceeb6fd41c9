"""The printed numbers: every preset has its place, and facts that the paper states elsewhere hold in the tables."""

import pytest

from rfwp.presets import presets
from rfwp.report.paper import tables


def cells(name):
    table = tables()[name]
    pairs = ((row.title, column.title, cell) for row in table.rows for cell, column in zip(row.cells, table.columns, strict=True))
    return {(row, column): cell for row, column, cell in pairs}


def printed(name, row, column):
    cell = cells(name)[row, column]
    return cell.mean, cell.std


def test_there_are_ten_tables():
    assert list(tables()) == [f"table-{n}" for n in range(1, 11)]


def test_every_preset_has_a_row_and_every_row_is_a_preset():
    used = {cell.preset for table in tables().values() for row in table.rows for cell in row.cells}
    assert used == set(presets())


@pytest.mark.parametrize(
    ("name", "row", "column", "expected"),
    [
        ("table-1", "Delta LSTM", "test", (33.8, None)),
        ("table-1", "RDN + full context", "valid", (32.5, None)),
        ("table-1", "Delta LSTM", "parameters, M", (47.3, None)),
        # "the benefits become more apparent (76.3 vs. 61.4 %)", "the Delta RNN gives the best performance (85.1 %)"
        ("table-2", "RDN", "code execution, 5 variables", (76.3, 17.6)),
        ("table-2", "Delta Net", "code execution, 5 variables", (61.4, 20.0)),
        ("table-2", "Delta RNN", "code execution, 5 variables", (85.1, 1.9)),
        ("table-3", "RDN larger", "Battlezone", (28_273, 5_333)),
        ("table-5", "Transformer", "5 variables", (75.5, 31.0)),
        ("table-6", "LSTM 512", "lowest", (96.1, None)),
        ("table-6", "Delta Net, 8 thin layers", "highest", (97.3, None)),
        ("table-6", "Transformer, 8 thin layers", "mean", (None, None)),
        ("table-7", "LSTM 4096", "accuracy", (72.2, 1.6)),
        ("table-8", "LSTM", "parameters, M", (1.5, None)),
        ("table-9", "James Bond", "Delta RNN", (2929.3, 408)),
        ("table-10", "Q*bert", "RDN", (987_275, 0)),
        ("table-10", "Zaxxon", "Delta Net", (10_523, 568)),
    ],
)
def test_printed_numbers(name, row, column, expected):
    assert printed(name, row, column) == expected


def test_numbers_that_are_printed_twice_agree():
    twice = [
        (("table-1", "Delta RNN", "valid"), ("table-4", "Delta RNN B", "valid")),
        (("table-1", "Delta MLP", "test"), ("table-4", "Delta MLP B", "test")),
        (("table-2", "LSTM", "code execution, 5 variables"), ("table-6", "LSTM", "mean")),
        (("table-2", "LSTM", "ListOps, depth 15"), ("table-7", "LSTM", "accuracy")),
        (("table-3", "LSTM", "Gopher"), ("table-10", "Gopher", "LSTM")),
        (("table-8", "Feedforward", "Space Invaders"), ("table-10", "Space Invaders", "Feedforward")),
    ]
    for one, other in twice:
        assert printed(*one) == printed(*other)


def test_a_mean_lies_between_the_lowest_and_the_highest():
    for row in tables()["table-6"].rows:
        mean, lowest, highest, _ = (cell.mean for cell in row.cells)
        assert mean is None or lowest <= mean <= highest


def test_every_game_is_in_both_atari_tables():
    at_50, at_200 = ([row.title for row in tables()[name].rows] for name in ("table-9", "table-10"))
    assert at_50 == at_200
    assert len(set(at_50)) == 20
