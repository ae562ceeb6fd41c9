"""Layers whose kernels read the slow net's output as it is, against the step-by-step definition in float64."""

import copy

import pytest
import torch

from rfwp import FWP
from rfwp.fwp import ZOO, Composition
from rfwp.ops import programmed
from tests.tolerances import FLOAT32

LAYERS = {name: ZOO[name] for name in ("linear_transformer", "delta_net", "delta_rnn", "delta_lstm", "rdn")}
LAYERS |= {f"sum {phi}": Composition("feedforward", "sum", "linear", phi) for phi in programmed.MAPS}
# keys that are not normalised let the delta rule diverge
LAYERS |= {f"delta {phi}": Composition("feedforward", "delta", "linear", phi) for phi in ("softmax", "elu_sum", "elu_sum_eps")}
VERSIONS = ("rnn_a", "lstm_a", "lstm_b", "lstm_c")
LAYERS |= {fast: Composition("feedforward", "delta", fast, "softmax") for fast in VERSIONS}


def layers(composition, heads):
    torch.manual_seed(0)
    layer = FWP(composition, 10 * heads, heads, backend="gpu")
    truth = copy.deepcopy(layer).double()
    truth.backend = "reference"
    return layer, truth


def run(layer, x, state, reset):
    """y, the final state, and the gradients of the input, the first state and the weights."""
    x = x.to(layer.out.weight.dtype).requires_grad_()
    state = {name: value.to(layer.out.weight.dtype).requires_grad_() for name, value in state.items()}
    y, last = layer(x, state, reset)
    outputs = [y, *(last[name] for name in sorted(last))]
    generator = torch.Generator().manual_seed(1)
    arriving = [torch.randn(o.shape, generator=generator, dtype=torch.double).to(o.dtype) for o in outputs]
    leaves = [x, *(state[name] for name in sorted(state)), *layer.parameters()]
    return outputs, torch.autograd.grad(outputs, leaves, arriving)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_run_from_its_program_is_the_definition(name):
    # versions differ in a step alone: one head of one row shows it, and the interpreter is slow
    n = 1 if name in VERSIONS else 2
    layer, truth = layers(LAYERS[name], heads=n)
    x, reset = torch.randn(n, 19, 10 * n), torch.rand(n, 19) < 0.1
    state = {name: 0.3 * torch.randn_like(value) for name, value in layer.initial_state(n).items()}
    assert layer._as_programmed(layer.plan, layer.slow(x, state, reset)[0])
    for ours, theirs in zip(run(layer, x, state, reset), run(truth, x, state, reset), strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert (a - b).norm() <= FLOAT32["rtol"] * b.norm()
