import torch

from rfwp.ops import delta, sum
from tests.ops.cases import CASES, assert_same, every_backend, example
from tests.tolerances import FLOAT64


def _orthonormal(B: int, T: int, H: int) -> torch.Tensor:
    """Keys (B, T, H, T) that are orthonormal over time."""
    random = torch.randn(B, H, T, T, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return torch.linalg.qr(random).Q.transpose(1, 2).contiguous()


@every_backend
def test_orthonormal_keys_are_recalled_exactly(backend: str) -> None:
    """Write with beta = 1, then ask for every value."""
    k = _orthonormal(2, 33, 3)
    v = torch.randn(2, 33, 3, 4, dtype=torch.float64)
    one = torch.ones(2, 33, 3, dtype=torch.float64)
    _, W = delta(k, k, v, one, backend=backend)
    recalled, _ = delta(k, k, v, torch.zeros_like(one), state=W, backend=backend)
    assert_same(recalled, v, FLOAT64)


@every_backend
def test_a_key_written_again_holds_the_last_value(backend: str) -> None:
    k = _orthonormal(2, 33, 3)
    first, second = torch.randn(2, 2, 33, 3, 4, dtype=torch.float64)
    one = torch.ones(2, 66, 3, dtype=torch.float64)
    twice = torch.cat((k, k), dim=1)
    y, W = delta(twice, twice, torch.cat((first, second), dim=1), one, backend=backend)
    assert_same(y, torch.cat((first, second), dim=1), FLOAT64)
    assert_same(W, torch.einsum("bthv,bthk->bhvk", second, k), FLOAT64)


@every_backend
def test_orthonormal_keys_and_no_state_make_delta_the_sum_rule(backend: str) -> None:
    k = _orthonormal(2, 33, 3)
    q, v = torch.randn(2, 33, 3, 33, dtype=torch.float64), torch.randn(2, 33, 3, 4, dtype=torch.float64)
    beta = torch.rand(2, 33, 3, dtype=torch.float64)
    expected = sum(q, k, beta.unsqueeze(-1) * v, backend=backend)
    assert_same(delta(q, k, v, beta, backend=backend), expected, FLOAT64)


@every_backend
def test_zero_learning_rate_leaves_the_weights(backend: str) -> None:
    x = example(CASES[1], 33, grad=False)
    q, k, v, beta = x.inputs
    y, W = delta(q, k, v, torch.zeros_like(beta), state=x.state[0], backend=backend)
    assert_same(W, x.state[0], FLOAT64)
    assert_same(y, torch.einsum("bhvk,bthk->bthv", W, q), FLOAT64)
