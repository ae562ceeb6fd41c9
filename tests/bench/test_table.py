"""The table of a benchmark in the terminal."""

from rfwp.bench.records import Row, Timing
from rfwp.bench.table import table

OP = Row("delta forward", "code", {"B": 1, "T": 2}, "fp32", "plain", ms=Timing(1.0, 0.9, 1.2, 5), tokens_per_s=2000.0)
AGENT = Row("rl end to end rdn", "pong", {"N": 96}, "tf32", "deep stem", tokens_per_s=17231.0, note="busy 87%")


def shown(*rows):
    """Every column by its name."""
    return {str(column.header): list(column.cells) for column in table(list(rows)).columns}


def test_numbers_that_no_row_has_get_no_column():
    assert list(shown(OP)) == ["what", "shape", "dtype", "backend", "ms", "p20", "p80", "n", "tokens/s", "note"]
    assert list(shown()) == ["what", "shape", "dtype", "backend", "note"]


def test_a_number_that_some_row_has_is_a_dash_in_the_others():
    columns = shown(OP, Row("delta forward", "code", {"B": 1, "T": 2}, "fp32", "reference", error=2e-7))
    assert columns["ms"] == ["1.000", "-"]
    assert columns["error"] == ["-", "2e-07"]
    assert columns["shape"] == ["code 1x2"] * 2


def test_an_agents_steps_are_not_called_tokens():
    assert shown(AGENT)["steps/s"] == ["17,231"]
    assert "steps/s" not in shown(AGENT, OP)
