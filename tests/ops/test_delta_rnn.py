import pytest
import torch

from rfwp.ops import delta_rnn
from tests.ops.cases import CASES, assert_same, every_backend, example
from tests.tolerances import FLOAT64

CASE = next(case for case in CASES if case.op is delta_rnn)


@every_backend
@pytest.mark.parametrize("version", ["A", "B"])
def test_zero_learning_rate_leaves_the_feedforward_part(backend: str, version: str) -> None:
    z, k, v, beta = example(CASE, 40, grad=False).inputs
    y, (R, last) = delta_rnn(z, k, v, torch.zeros_like(beta), version=version, backend=backend)
    expected = z if version == "B" else z.softmax(-1)
    assert_same(y, expected, FLOAT64)
    assert_same(last, expected[:, -1], FLOAT64)
    assert torch.equal(R, torch.zeros_like(R))


@every_backend
def test_first_recurrent_query_is_uniform_in_version_B_and_zero_in_version_A(backend: str) -> None:
    """softmax(0) reads the mean of R's columns; 0 reads nothing."""
    z, k, v, beta = example(CASE, 1, grad=False).inputs
    y_B, (R, _) = delta_rnn(z, k, v, beta, version="B", backend=backend)
    y_A, _ = delta_rnn(z, k, v, beta, version="A", backend=backend)
    assert_same(y_B[:, 0], z[:, 0] + R.mean(-1), FLOAT64)
    assert_same(y_A, z.softmax(-1), FLOAT64)


@every_backend
def test_version_A_yields_distributions(backend: str) -> None:
    x = example(CASE, 40, grad=False)
    y, _ = delta_rnn(*x.inputs, version="A", state=x.state, backend=backend)
    assert (y >= 0).all()
    assert_same(y.sum(-1), torch.ones(2, 40, 3, dtype=torch.float64), FLOAT64)
