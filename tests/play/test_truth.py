"""What is true at every token agrees with the tasks."""

import pytest

from rfwp.config import CodeExecutionConfig, ListOpsConfig
from rfwp.play.truth import Nesting, nesting, variables
from rfwp.tasks import CodeExecution, ListOps
from tests.play.small import LIST, PAPER


def programs(semantics):
    task = CodeExecution(CodeExecutionConfig(5, 40, semantics, train=30, valid=1, test=1))
    split = task.generate("train")
    for tokens, length in zip(split.tokens, split.lengths, strict=True):
        yield task, task.source.decode(tokens[:length])


@pytest.mark.parametrize("semantics", ["authors", "true"])
def test_variables_have_what_every_print_shows(semantics):
    prints = 0
    for task, symbols in programs(semantics):
        truth, values = task.truth(" ".join(symbols)), variables(symbols, semantics)
        assert len(values) == len(symbols)
        for step, said in enumerate(truth):
            if said != "_":
                prints += 1
                assert values[step][symbols[step - 1]] == int(said)
    assert prints > 100


def test_the_semantics_differ_where_they_should():
    symbols = ["x", "=", "3", ";", "if", "x", ">", "1", ":", "x", "=", "5", ";"]
    assert variables(symbols, "authors")[-1] == {"x": 3}
    assert variables(symbols, "true")[-1] == {"x": 5}


def test_a_statement_counts_from_its_end_on():
    values = variables(PAPER.split(), "true")
    assert values[2] == {}
    assert values[3] == {"x": 3}
    assert values[9] == {"x": 3, "y": 7}
    assert values[10] == {"x": 4, "y": 7}


def test_nesting_of_a_list():
    places = nesting(LIST.split())
    assert [place.depth for place in places] == [1, 1, 1, 2, 2, 2, 2, 1, 2, 2, 2, 2, 2, 1]
    assert places[6] == Nesting(2, opened=3, value=2)
    assert places[12] == Nesting(2, opened=8, value=1)
    assert places[13] == Nesting(1, opened=0, value=6)


def test_last_value_of_every_list_is_the_tasks():
    task = ListOps(ListOpsConfig(depth=5, train=50, valid=1, test=1))
    split = task.generate("train")
    for tokens, length in zip(split.tokens, split.lengths, strict=True):
        symbols = task.source.decode(tokens[:length])
        places = nesting(symbols)
        assert str(places[-1].value) == task.truth(" ".join(symbols))[-1]
        assert max(place.depth for place in places) == 5
