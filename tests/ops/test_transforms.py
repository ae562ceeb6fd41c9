"""The ops under torch.func: gradients, vmap and both in each other; what kernels cannot do is refused in one line."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, jacrev, jvp, vmap

from rfwp.errors import InvalidInput
from tests.ops.cases import Case, assert_same, every_op, example
from tests.tolerances import FLOAT64

N = 3


def loss(case: Case, reset: Tensor, leaves: tuple[Tensor, ...], backend: str = "plain") -> Tensor:
    n = len(case.inputs)
    y, state = case(leaves[:n], leaves[n:], reset, backend)
    return y.square().sum() + sum((s.sin().sum() for s in state), torch.zeros(()))


def several(case: Case, T: int) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One reset mask, and N examples stacked in front."""
    examples = [example(case, T, seed=seed, grad=False) for seed in range(N)]
    return examples[0].reset, tuple(torch.stack(parts) for parts in zip(*(x.leaves() for x in examples), strict=True))


def by_autograd(case: Case, reset: Tensor, leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    leaves = tuple(x.detach().requires_grad_() for x in leaves)
    return torch.autograd.grad(loss(case, reset, leaves), leaves)


@every_op
def test_functional_gradients_are_those_of_autograd(case: Case) -> None:
    x = example(case, 9, grad=False)
    assert_same(grad(lambda leaves: loss(case, x.reset, leaves))(x.leaves()), by_autograd(case, x.reset, x.leaves()), FLOAT64)


@every_op
def test_vmap_is_one_after_another(case: Case) -> None:
    reset, leaves = several(case, 9)
    expected = torch.stack([loss(case, reset, tuple(x[i] for x in leaves)) for i in range(N)])
    assert_same(vmap(lambda leaves: loss(case, reset, leaves))(leaves), expected, FLOAT64)


@every_op
def test_vmap_and_gradients_go_into_each_other(case: Case) -> None:
    reset, leaves = several(case, 9)
    parts = zip(*(by_autograd(case, reset, tuple(x[i] for x in leaves)) for i in range(N)), strict=True)
    expected = tuple(torch.stack(part) for part in parts)
    assert_same(vmap(grad(lambda leaves: loss(case, reset, leaves)))(leaves), expected, FLOAT64)
    mapped = vmap(lambda leaves: loss(case, reset, leaves))
    assert_same(grad(lambda leaves: mapped(leaves).sum())(leaves), expected, FLOAT64)
    leaves = tuple(x.requires_grad_() for x in leaves)
    assert_same(torch.autograd.grad(mapped(leaves).sum(), leaves), expected, FLOAT64)


@every_op
def test_jacobian_of_the_kernels_is_that_of_the_reference(case: Case) -> None:
    x = example(case, 3, grad=False)
    first, *others = x.leaves()
    n = len(case.inputs)

    def run(first: Tensor, backend: str) -> Tensor:
        leaves = (first, *others)
        return case(leaves[:n], leaves[n:], x.reset, backend)[0]

    assert_same(*(jacrev(run)(first, backend) for backend in ("plain", "reference")), FLOAT64)


# PyTorch's own forward mode scripts its formulas
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@every_op
def test_forward_mode_is_refused_where_only_the_reference_has_it(case: Case) -> None:
    x = example(case, 3, grad=False)
    leaves = x.leaves()
    _, tangent = jvp(lambda leaves: loss(case, x.reset, leaves, "reference"), (leaves,), (leaves,))
    expected = sum((g * v).sum() for g, v in zip(by_autograd(case, x.reset, leaves), leaves, strict=True))
    assert_same(tangent, expected, FLOAT64)
    with pytest.raises(InvalidInput, match="no forward-mode derivatives; backend='reference' has them"):
        jvp(lambda leaves: loss(case, x.reset, leaves), (leaves,), (leaves,))
    with forward_ad.dual_level(), pytest.raises(InvalidInput, match="no forward-mode derivatives"):
        loss(case, x.reset, tuple(forward_ad.make_dual(a, a) for a in leaves))


@every_op
def test_second_derivatives_are_refused_by_name(case: Case) -> None:
    x = example(case, 3, grad=False)
    with pytest.raises(InvalidInput, match="no second derivatives; backend='reference' has them"):
        grad(lambda leaves: grad(lambda leaves: loss(case, x.reset, leaves))(leaves)[0].square().sum())(x.leaves())
