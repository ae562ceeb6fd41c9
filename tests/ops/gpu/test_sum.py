import pytest
import torch
from torch import Tensor

from rfwp.ops.gpu import delta_chunk, sum
from rfwp.ops.sum import sum_reference
from tests.ops.gpu.delta_cases import Arguments, arguments, check, expected


def reference(a: Arguments) -> list[Tensor]:
    return expected(sum_reference, a[:3], a)


def run(a: Arguments) -> list[Tensor]:
    q, k, v, _, W, reset, dy, dW_T = a
    y, W_T, starts = sum.forward(q, k, v, W, reset, True)
    return [y, W_T, *sum.backward(dy, dW_T, q, k, v, W, reset, starts)]


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(("T", "K", "V"), [(1, 8, 8), (7, 12, 1), (19, 16, 12), (40, 16, 16), (70, 8, 24)])
def test_sum_is_the_reference(T: int, K: int, V: int, reset: bool):
    a = arguments(2, T, 2, K, V, reset=reset, state=T != 7)
    check(run(a), reference(a))


@pytest.mark.parametrize("parallel", [False, True])
def test_values_split_over_programs_give_the_same_gradients(parallel: bool, monkeypatch: pytest.MonkeyPatch):
    plan = delta_chunk.plan(1, 40, 1, 12, 40, torch.float32)._replace(BV=16, parallel=parallel)
    monkeypatch.setattr(delta_chunk, "plan", lambda *shape, **direction: plan)
    a = arguments(1, 40, 1, 12, 40, reset=True)
    check(run(a), reference(a))


def test_slices_of_one_projection():
    a = arguments(2, 19, 2, 8, 8)
    q, k, v = torch.cat([a.q, a.k, a.v], -1).chunk(3, -1)
    check(run(a._replace(q=q, k=k, v=v)), reference(a))


def test_no_checkpoints_where_no_backward_follows():
    q, k, v, _, W, reset, _, _ = arguments(1, 40, 1, 8, 8)
    assert sum.forward(q, k, v, W, reset, False)[2].shape == (1, 0, 1, 8, 8)
    assert sum.checkpoints(70) == 2
