"""What the compiler is told about the outputs of an op on the GPU is what the kernels give."""

import pytest
import torch
from torch._subclasses import FakeTensorMode

from rfwp.bench.contenders import example
from rfwp.bench.shapes import OpShape

LENGTHS = (5, 9, 33)


def assert_promised(op, arguments):
    with FakeTensorMode() as mode:
        promised = op(*(mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in arguments))
    given = op(*arguments)
    assert [(x.shape, x.dtype, x.stride()) for x in promised] == [(x.shape, x.dtype, x.stride()) for x in given]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("T", LENGTHS)
@pytest.mark.parametrize("name", ["sum", "delta"])
def test_ops_give_the_shapes_that_the_compiler_was_promised(name, T, keep):
    leaves, (state,) = example(name, OpShape(1, T, 1, 8), torch.float32, torch.device("cpu"))
    with torch.no_grad():
        assert_promised(getattr(torch.ops.rfwp, name).default, (*leaves, state, None, keep, "gpu"))


@pytest.mark.parametrize("T", LENGTHS[:2])
@pytest.mark.parametrize("name", ["sum", "delta"])
def test_large_heads_give_the_shapes_that_the_compiler_was_promised(name, T):
    leaves, (state,) = example(name, OpShape(1, T, 1, 66), torch.bfloat16, torch.device("cpu"))
    with torch.no_grad():
        assert_promised(getattr(torch.ops.rfwp, name).default, (*leaves, state, None, True, "gpu"))


@pytest.mark.parametrize("T", LENGTHS[1:])
@pytest.mark.parametrize(("name", "features"), [("linear", 3 * 8 + 1), ("rnn", 5 * 8 + 2), ("lstm", 15 * 8 + 6)])
def test_layers_give_the_shapes_that_the_compiler_was_promised(name, features, T):
    gates = (3,) if name == "lstm" else ()
    u, W, R = torch.randn(1, T, 1, features), torch.zeros(1, 1, *gates, 8, 8), torch.zeros(1, 1, *gates, 8, 8)
    y = torch.zeros(1, 1, 8)
    states = {"linear": (W,), "rnn": (W, R, y), "lstm": (W, R, y, y.clone())}[name]
    options = {"linear": ("delta", "softmax"), "rnn": ("softmax", "B"), "lstm": ("softmax", "D")}[name]
    assert_promised(getattr(torch.ops.rfwp, f"programmed_{name}").default, (u, *states, None, True, *options))
