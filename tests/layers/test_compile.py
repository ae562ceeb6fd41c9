"""torch.compile traces a block through every op without a graph break, and gives the same numbers.

The backend is aot_eager: what is tested is the tracing, forward and backward; generating code needs a compiler.
"""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from rfwp.fwp import ZOO
from rfwp.layers import FWP, Block
from tests.tolerances import FLOAT64

OPS = {
    "sum": "linear_transformer",
    "delta": "delta_net",
    "delta + delta_rnn": "delta_rnn",
    "delta + delta_lstm": "delta_lstm",
    "recurrent_delta": "rdn",
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_every_op_is_tried():
    plans = {FWP(name, 4, 2).plan for name in ZOO}
    assert plans == set(OPS)


@pytest.mark.parametrize("name", ["delta_mlp_residual", "delta_delta_net", *OPS.values()])
def test_compiled_block_gives_the_same_outputs_and_gradients(name):
    torch.manual_seed(0)
    block = Block(FWP(name, 8, 2, dtype=torch.float64), 8, 16, dtype=torch.float64)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for steps in (9, 17):  # a second length must not break the graph either
        x = torch.randn(2, steps, 8, dtype=torch.float64, requires_grad=True)
        reset = torch.rand(2, steps) < 0.2
        state = {n: torch.rand_like(s).requires_grad_() for n, s in block.layer.initial_state(2).items()}
        results = []
        for run in (block, compiled):
            y, last = run(x, state, reset)
            total = y.square().sum() + sum(s.square().sum() for s in last.values())
            gradients = torch.autograd.grad(total, [x, *state.values(), *block.parameters()])
            results.append([y, *last.values(), *gradients])
        for ours, expected in zip(*results, strict=True):
            torch.testing.assert_close(ours, expected, **FLOAT64)


@pytest.mark.parametrize("name", OPS.values())
def test_new_lengths_do_not_recompile_for_ever(name):
    block = Block(FWP(name, 8, 2), 8, 16)
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(block, fullgraph=True, backend=graphs)
    for steps in (40, 41, 70, 100, 129):  # all longer than one chunk
        y, _ = compiled(torch.randn(2, steps, 8))
        assert y.shape == (2, steps, 8)
    assert graphs.frame_count <= 2
