"""The head that the page looks at: it keeps the variables that are printed."""

import pytest
import torch
from starlette.testclient import TestClient

from rfwp.errors import InvalidInput
from rfwp.fwp import ZOO
from rfwp.play import server
from rfwp.play.shown import load_all
from rfwp.play.telling import find_head, statements_behind
from rfwp.play.traces import Kept, Traces
from rfwp.trace import LayerTrace, MatrixTrace, Trace
from tests.play.small import LIST, PAPER, save

PROGRAM = "x = 3 ; y = 7 ; x ++ ; print x ; x = 5 ; print x ; print y ;"


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    return load_all(["code-execution-5", save(tmp_path_factory.mktemp("models") / "lists", "listops-10/rdn")])


@pytest.mark.parametrize(
    ("program", "semantics", "behind"),
    [
        ("x = 3 ; print x ;", "authors", "x = 3 ;"),
        ("x = 3 ; y = 7 ; x ++ ; print x ;", "authors", "x = 3 ; x ++ ;"),
        ("x = 3 ; x ++ ; x = 5 ; y = 1 ; print x ;", "authors", "x = 5 ;"),
        ("x = 3 ; x = 3 ; print x ;", "authors", "x = 3 ;"),
        ("x = 3 ; if x < 5 : x = 4 ; print x ;", "authors", "x = 3 ;"),
        ("x = 3 ; if x < 5 : x = 4 ; print x ;", "true", "if x < 5 : x = 4 ;"),
        ("x = 3 ; if x > 5 : x ++ ; if x < 5 : x -- ; print x ;", "true", "x = 3 ; if x < 5 : x -- ;"),
    ],
)
def test_value_comes_from_the_last_assignment_and_what_counted_on(program, semantics, behind):
    symbols = program.split()
    steps = statements_behind(symbols, len(symbols) - 1, semantics)
    assert " ".join(symbols[step] for step in steps) == behind


def test_head_that_writes_and_reads_the_variable_is_found(shown):
    """Head 0 always writes, head 1 reads the variable but writes elsewhere, head 2 keeps it, head 3 reads another one."""
    symbols = ["x", "=", "3", ";", "y", "=", "7", ";", "print", "x", ";"]
    steps = len(symbols)
    keys = torch.eye(steps).unsqueeze(1).expand(steps, 4, steps)
    betas = torch.full((steps, 4), 0.5)
    betas[:4, 1], betas[4:, 1] = 0.1, 0.9
    betas[:4, 2:], betas[4:, 2:] = 0.9, 0.1
    read_at = torch.tensor([2, 2, 2, 6])
    queries = torch.eye(steps)[read_at].expand(steps, 4, steps)
    # each token has a key of its own, so what it writes stays
    weights = (betas.unsqueeze(-1) * keys).cumsum(0).unsqueeze(-2)
    reads = (weights * queries.unsqueeze(-2)).sum(-1)
    values, start, restarts = torch.ones(steps, 4, 1), torch.zeros(1, 4, 1, steps), torch.zeros(steps, dtype=torch.bool)
    matrix = MatrixTrace(weights, keys, values, queries, reads, betas, start, restarts)
    layer = LayerTrace(ZOO["delta_net"], {"W": matrix}, reads)
    kept = Kept(
        shown["code-execution-5"],
        Trace(torch.zeros(steps), torch.zeros(steps, 26), (layer,)),
        symbols,
        ["_"] * (steps - 1) + ["3"],
        0,
    )
    found = find_head(kept, 0)
    assert (found["layer"], found["matrix"], found["head"], found["t"]) == (0, 0, 2, steps - 1)
    assert (found["variable"], found["share"], found["steps"]) == ("x", 1.0, [0, 1, 2, 3])


def test_packaged_model_reads_each_variable_from_the_statements_that_made_it(shown):
    _, kept = Traces(shown).add("code-execution-5", PROGRAM)
    for t, variable in ((0, "x"), (20, "x"), (23, "y")):
        found = find_head(kept, t)
        assert found["variable"] == variable
        assert found["share"] > 0.8


def test_head_is_found_at_the_print_that_comes_next(shown):
    client = TestClient(server.make_app(shown), base_url="http://127.0.0.1:8753")
    key = client.post("/api/trace", json={"model": "code-execution-5", "text": PAPER}).json()["id"]
    assert client.get(f"/api/trace/{key}/telling?t=3").json()["t"] == 21


def test_what_has_no_print_is_said_in_a_line(shown):
    with pytest.raises(InvalidInput, match="nothing is printed in this program; add a print"):
        find_head(Traces(shown).add("code-execution-5", "x = 3 ;")[1], 0)
    with pytest.raises(InvalidInput, match="lists reads no programs"):
        find_head(Traces(shown).add("lists", LIST)[1], 0)
