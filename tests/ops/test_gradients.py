"""Gradients against finite differences, initial states and resets included."""

import torch

from tests.ops.cases import Case, assert_same, every_backend, every_case, example
from tests.tolerances import FLOAT64


@every_case
@every_backend
def test_gradcheck(case: Case, backend: str) -> None:
    x = example(case, 3, H=1, K=3, V=2)

    def run(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, state = case(leaves[: len(x.inputs)], leaves[len(x.inputs) :], x.reset, backend)
        return y, *state

    assert torch.autograd.gradcheck(run, x.leaves())


@every_case
def test_gradient_for_a_part_of_the_outputs(case: Case) -> None:
    """The last state alone, y alone: what is not used counts as a gradient of zero."""
    x = example(case, 33)
    for pick in (lambda y, state: y, *[lambda y, state, i=i: state[i] for i in range(len(case.state))]):
        plain, reference = (pick(*case(x.inputs, x.state, x.reset, backend)).square().sum() for backend in ("plain", "reference"))
        actual = torch.autograd.grad(plain, x.leaves())
        expected = torch.autograd.grad(reference, x.leaves(), materialize_grads=True)
        assert_same(actual, expected, FLOAT64)
