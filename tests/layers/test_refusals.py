"""What a layer refuses: bad construction, bad input, and mistakes in fast nets and feature maps of one's own."""

import logging

import pytest
import torch
from torch import nn

from rfwp.errors import InvalidInput, RFWPError, UnknownName
from rfwp.fwp import Composition, FastMatrix
from rfwp.fwp.fast import Linear
from rfwp.layers.fwp import FWP
from rfwp.ops import backend as ops_backend
from tests.layers.test_fwp import HEADS, WIDTH, B, T


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: FWP("delta_rn", 6, 2), UnknownName, "did you mean 'delta_rnn'?"),
        (lambda: FWP("rdn", 256, 7), InvalidInput, "heads=7 does not divide width=256; try heads=8"),
        (lambda: FWP("rdn", 6, 0), InvalidInput, "heads=0 must both be at least 1"),
        (lambda: FWP("rdn", 6.0, 2), InvalidInput, "width=6.0 and heads=2 must both be whole numbers"),
        (lambda: FWP("rdn", 6, 2, output_dropout=2), InvalidInput, "output_dropout=2 is not a probability"),
        (lambda: FWP("rdn", 6, 2, backend="plian"), UnknownName, "did you mean 'plain'?"),
        (lambda: FWP(None, 6, 2), InvalidInput, "a model is a name or a rfwp.Composition, saw None"),
    ],
)
def test_bad_construction_is_one_clear_line(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def call(layer, x=None, state=None, reset=None):
    return layer(torch.randn(B, T, WIDTH) if x is None else x, state, reset)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda: {"x": torch.randn(B, WIDTH)}, "x has shape (3, 6), expected 3 dimensions"),
        (lambda: {"x": torch.randn(B, T, WIDTH + 1)}, "x has shape (3, 11, 7), expected (B, T, 6)"),
        (lambda: {"x": torch.randn(B, 0, WIDTH)}, "T=0"),
        (lambda: {"x": torch.zeros(B, T, WIDTH, dtype=torch.long)}, "x is torch.int64, expected a floating dtype"),
        (lambda: {"reset": torch.zeros(T, B, dtype=torch.bool)}, "reset has shape (11, 3), expected (B, T) = (3, 11)"),
        (lambda: {"reset": [[False] * T] * B}, "reset is a list, expected a tensor"),
        (lambda: {"x": [[1.0]]}, "x is a list, expected a tensor"),
        (
            lambda: {"x": nn.utils.rnn.pack_padded_sequence(torch.randn(B, T, WIDTH), [11, 5, 2], batch_first=True)},
            "x is a PackedSequence; pad it to (B, T, 6)",
        ),
        (lambda: {"x": torch.randn(B, T, WIDTH).to_sparse()}, "x is not strided; pad it"),
        (lambda: {"reset": torch.zeros(B, T)}, "reset is torch.float32, expected torch.bool"),
        (lambda: {"reset": torch.zeros(B, T, dtype=torch.bool, device="meta")}, "reset is on meta but the input is on cpu"),
        (lambda: {"state": FWP("delta_net", WIDTH, HEADS).initial_state(B)}, "this state has W; the layer expects W, R, y"),
        (
            lambda: {"state": FWP("delta_rnn", WIDTH, HEADS).initial_state(B + 1)},
            "state W has shape (4, 2, 3, 3), expected (3, 2, 3, 3)",
        ),
        (lambda: {"state": FWP("delta_rnn", WIDTH, HEADS, dtype=torch.float64).initial_state(B)}, "state W is torch.float64"),
        (lambda: {"state": (torch.zeros(1),)}, "this state is a tuple"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message):
    with pytest.raises(InvalidInput) as error:
        call(FWP("delta_rnn", WIDTH, HEADS), **arguments())
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", [torch.long, torch.float64])
def test_what_autocast_does_not_convert_is_refused(dtype):
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(InvalidInput, match=r"autocast does not convert; try x\.float"),
    ):
        call(FWP("delta_rnn", WIDTH, HEADS), torch.ones(B, T, WIDTH, dtype=dtype))


@pytest.mark.parametrize(
    ("reset", "message"),
    [
        ([True] * B, "FWP.step: reset is a list, expected a tensor"),
        (torch.zeros(B, 1, dtype=torch.bool), "FWP.step: reset has shape (3, 1), expected 1 dimensions (B)"),
        (torch.zeros(B), "reset is torch.float32, expected torch.bool"),
    ],
)
def test_a_bad_reset_of_a_step_is_one_clear_line(reset, message):
    with pytest.raises(InvalidInput) as error:
        FWP("delta_rnn", WIDTH, HEADS).step(torch.randn(B, WIDTH), None, reset)
    assert message in str(error.value)


def fast_net(step, matrices=(), **attributes):
    """A fast net with a mistake in it: W and what else is asked for."""
    declared = {"title": "Mine", "matrices": lambda self, d: (FastMatrix("W", d, d), *matrices), "step": step}
    return type("Mine", (Linear,), declared | attributes)()


def looks_back(self, cell):
    return cell.read("W", cell.query("W")) + cell.previous("y")


def keeps(self, cell):
    cell.keep("m", cell.query("W"))
    return cell.read("W", cell.query("W"))


@pytest.mark.parametrize("slow", ["feedforward", "recurrent"])
@pytest.mark.parametrize(
    ("fast", "message"),
    [
        (lambda: fast_net(lambda self, cell: cell.read("V", cell.query("W"))), "unknown fast matrix of Mine 'V'; known: W"),
        (
            lambda: fast_net(
                lambda self, cell: cell.read("W", cell.query("W")) * cell.read("G", cell.query("G")),
                [FastMatrix("G", 3, 3, query=False)],
            ),
            "the slow net writes no query for 'G' of Mine; declare it with query=True",
        ),
        (
            lambda: fast_net(lambda self, cell: torch.cat([cell.read("W", cell.query("W"))] * 2, dim=-1)),
            "Mine: step gives vectors of size 6, expected the head size 3",
        ),
        (lambda: fast_net(lambda self, cell: cell.read("W", cell.query("W")).mean(0)), "Mine: step gives a tensor ("),
        (
            lambda: fast_net(lambda self, cell: cell.read("W", cell.query("W")).sum()),
            "Mine: step gives a tensor (), expected (3, ",
        ),
        (lambda: fast_net(lambda self, cell: None), "Mine: step gives a NoneType, expected a tensor"),
        (lambda: fast_net(lambda self, cell: cell.program("Z").value), "unknown fast matrix of Mine 'Z'; known: W"),
        (lambda: fast_net(lambda self, cell: cell.parameter("g")), "unknown parameter of Mine 'g'"),
    ],
)
def test_a_mistake_in_a_fast_net_is_one_clear_line(fast, message, slow):
    with pytest.raises(RFWPError) as error:
        call(FWP(Composition(slow=slow, fast=fast()), WIDTH, HEADS))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("fast", "message"),
    [
        (lambda: fast_net(looks_back), "Mine looks back at 'y'; say so with recurrent = True"),
        (lambda: fast_net(keeps), "Mine keeps 'm'; say so with recurrent = True"),
        (lambda: fast_net(looks_back, recurrent=True), "Mine keeps no 'y' from step to step; name it in vectors(d)"),
        (lambda: fast_net(keeps, recurrent=True), "Mine keeps no 'm' from step to step; name it in vectors(d)"),
        (
            lambda: fast_net(keeps, recurrent=True, vectors=lambda self, d: {"m": 2 * d}),
            "Mine keeps 'm' of shape (3, 2, 3), expected (3, 2, 6); see vectors(d)",
        ),
    ],
)
def test_a_fast_net_that_does_not_declare_its_memory_is_told_how(fast, message):
    with pytest.raises(InvalidInput) as error:
        call(FWP(Composition(fast=fast()), WIDTH, HEADS))
    assert message in str(error.value)


@pytest.mark.parametrize("slow", ["feedforward", "recurrent"])
def test_a_feature_map_that_changes_the_size_is_named(slow):
    layer = FWP(Composition(slow=slow, phi=lambda x: torch.cat((x, -x), dim=-1).relu()), WIDTH, HEADS)
    with pytest.raises(InvalidInput, match="the feature map makes keys of size 6 from 3; it must keep their size"):
        call(layer)


@pytest.mark.parametrize("backend", ["plain", "cpu", "gpu"])
def test_a_composition_without_kernels_refuses_a_backend_of_kernels(backend):
    layer = FWP(Composition("recurrent", "delta", "rnn"), WIDTH, HEADS, backend=backend)
    with pytest.raises(InvalidInput, match=f"backend '{backend}' cannot run: no kernels for it"):
        layer(torch.zeros(B, T, WIDTH))


def test_a_composition_without_kernels_says_once_that_it_is_a_loop(monkeypatch, caplog):
    monkeypatch.setattr(ops_backend, "_said", set())
    layer = FWP(Composition("recurrent", "delta", "rnn"), WIDTH, HEADS)
    with caplog.at_level(logging.INFO, logger="rfwp"):
        layer(torch.zeros(B, T, WIDTH))
        layer(torch.zeros(B, T, WIDTH))
    (message,) = caplog.messages
    assert "on cpu: backend 'reference'" in message
