import torch

from rfwp.ops import sum
from tests.ops.cases import CASES, assert_same, every_backend, example
from tests.tolerances import FLOAT64


@every_backend
def test_sum_is_causal_linear_attention(backend: str) -> None:
    """y_t = Σ_{j ≤ t} (q_t · k_j) v_j"""
    q, k, v = example(CASES[0], 70, grad=False).inputs
    y, W = sum(q, k, v, backend=backend)
    scores = torch.einsum("bthk,bjhk->bhtj", q, k).tril()
    assert_same(y, torch.einsum("bhtj,bjhv->bthv", scores, v), FLOAT64)
    assert_same(W, torch.einsum("bjhv,bjhk->bhvk", v, k), FLOAT64)


@every_backend
def test_sum_over_packed_sequences_is_attention_within_each(backend: str) -> None:
    x = example(CASES[0], 70, grad=False)
    q, k, v = x.inputs
    y, _ = sum(q, k, v, reset=x.reset, backend=backend)
    sequence = x.reset.cumsum(1)
    together = (sequence.unsqueeze(1) == sequence.unsqueeze(2)).unsqueeze(1)  # B 1 T T
    scores = (torch.einsum("bthk,bjhk->bhtj", q, k) * together).tril()
    assert_same(y, torch.einsum("bhtj,bjhv->bthv", scores, v), FLOAT64)
