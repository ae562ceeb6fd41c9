"""The attention layer with the kernel inside, against PyTorch's attention."""

import copy
from unittest.mock import patch

import pytest
import torch

from rfwp.layers import Attention
from rfwp.ops import attention as op
from tests.tolerances import FLOAT32

B, T, WIDTH, HEADS = 3, 11, 12, 3


def layer_and_input(**options):
    torch.manual_seed(0)
    return Attention(WIDTH, HEADS, **options), torch.randn(B, T, WIDTH)


def results(layer, x):
    """y, the state, and the gradients of the input and the weights, some of them through the state."""
    x = x.detach().requires_grad_()
    y, state = layer(x)
    loss = y.square().sum() + state["k"].sum() + state["v"].square().sum()
    return [y, state["k"], state["v"], *torch.autograd.grad(loss, [x, *layer.parameters()])]


@pytest.mark.parametrize("window", [None, T])
def test_the_kernel_is_the_same_attention(window):
    layer, x = layer_and_input(window=window, bias=True, backend="gpu")
    truth = copy.deepcopy(layer)
    truth.backend = "torch"
    with patch.object(op, "attention", wraps=op.attention) as kernel:
        ours = results(layer, x)
    for a, b in zip(ours, results(truth, x), strict=True):
        torch.testing.assert_close(a, b, **FLOAT32)
    assert kernel.call_count == 1


def test_the_kernel_drops_in_training_only():
    layer, x = layer_and_input(backend="gpu", dropout=0.5)
    plain = copy.deepcopy(layer).eval()
    assert not torch.equal(layer(x)[0], layer(x)[0])
    assert torch.equal(plain(x)[0], plain(x)[0])


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_the_kernel_is_compiled_in_one_graph_for_several_lengths(dropout):
    layer, _ = layer_and_input(backend="gpu", dropout=dropout)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for steps in (9, 17):
        x, found = torch.randn(B, steps, WIDTH), []
        for module in (layer, compiled):
            torch.manual_seed(1)
            found.append(results(module, x))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, **FLOAT32)
