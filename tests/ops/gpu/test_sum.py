import pytest
import torch
from torch import Tensor

from rfwp.fwp.maps import MAPS
from rfwp.ops.gpu import delta_chunk, sum
from rfwp.ops.sum import sum_reference
from tests.ops.gpu.delta_cases import Arguments, activated, arguments, check, expected, parts, raw


def reference(a: Arguments) -> list[Tensor]:
    return expected(sum_reference, a[:3], a)


def run(a: Arguments) -> list[Tensor]:
    q, k, v, _, W, reset, dy, dW_T = a
    y, W_T, *kept = sum.forward(q, k, v, W, reset, True)
    return [y, W_T, *sum.backward(dy, dW_T, q, k, v, W, reset, *kept)]


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(("T", "K", "V"), [(1, 8, 8), (7, 12, 1), (19, 16, 12), (40, 16, 16), (70, 8, 24)])
def test_sum_is_the_reference(T: int, K: int, V: int, reset: bool):
    a = arguments(2, T, 2, K, V, reset=reset, state=T != 7)
    check(run(a), reference(a))


@pytest.mark.parametrize("change", [{"every": 4}, {"BV": 16, "parallel": True}, {"C": 64, "BV": 16, "parallel": True}], ids=str)
def test_every_plan_is_the_reference(change: dict[str, int], monkeypatch: pytest.MonkeyPatch):
    plan = delta_chunk.Plan(16, 16, 64, 1, 1, "tf32x3")._replace(**change)
    monkeypatch.setattr(delta_chunk, "plan", lambda *shape: plan)
    a = arguments(1, 70, 1, 12, 40, reset=True)
    check(run(a), reference(a))


@pytest.mark.parametrize("phi", MAPS)
def test_raw_inputs_and_gradients_into_one_tensor(phi: str):
    a = raw(arguments(2, 19, 2, 8, 12, reset=True), phi)
    u = torch.cat([a.q, a.k, a.v, a.beta.unsqueeze(-1)], -1)
    du = torch.full_like(u, float("nan"))
    inputs, out = parts(u, 8, 12, rates=False), parts(du, 8, 12, rates=False)
    y, W_T, *kept = sum.forward(*inputs, a.W, a.reset, True, phi)
    *gradients, dW = sum.backward(a.dy, a.dW_T, *inputs, a.W, a.reset, *kept, phi, out)
    check([y, W_T, *(x.contiguous() for x in gradients), dW], expected(activated(sum_reference, phi), a[:3], a))
    assert all(x is place for x, place in zip(gradients, out, strict=True))
    assert du[..., -1].isnan().all()


def test_slices_of_one_projection():
    a = arguments(2, 19, 2, 8, 8)
    q, k, v = torch.cat([a.q, a.k, a.v], -1).chunk(3, -1)
    check(run(a._replace(q=q, k=k, v=v)), reference(a))


def test_trace_has_the_size_that_is_promised_and_only_where_a_backward_follows():
    q, k, v, _, W, reset, _, _ = arguments(1, 40, 1, 8, 8)
    *_, copies, trace = sum.forward(q, k, v, W, reset, True)
    assert trace.shape == (sum.trace_size(1, 40, 1, 8, 8, q.dtype),)
    assert copies.shape == (1, sum.checkpoints(40, 8, 8, q.dtype), 1, 8, 8)
    assert [x.numel() for x in sum.forward(q, k, v, W, reset, False)[2:]] == [0, 0]
