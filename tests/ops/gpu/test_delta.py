from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

from rfwp.errors import InvalidInput
from rfwp.ops.delta import delta_reference
from rfwp.ops.gpu import delta, delta_chunk, delta_sequential
from tests.ops.gpu.delta_cases import Arguments, arguments, check, expected
from tests.tolerances import BFLOAT16

SIZES = [(1, 8, 8), (7, 12, 16), (19, 16, 12), (40, 16, 16)]  # T K V


def reference(a: Arguments) -> list[Tensor]:
    return expected(delta_reference, a[:4], a)


def run(form: ModuleType, a: Arguments, *plan: delta_chunk.Plan) -> list[Tensor]:
    q, k, v, beta, W, reset, dy, dW_T = a
    y, W_T, starts = form.forward(q, k, v, beta, W, reset, True, *plan)
    return [y, W_T, *form.backward(dy, dW_T, q, k, v, beta, reset, starts, *plan)]


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(("T", "K", "V"), SIZES)
@pytest.mark.parametrize("form", delta.FORMS)
def test_each_form_is_the_reference(form: str, T: int, K: int, V: int, reset: bool):
    # every step of the sequential form costs milliseconds in the interpreter
    H = 2 if form == "chunk" or T < 19 else 1
    a = arguments(2, T, H, K, V, reset=reset, state=T != 7)
    check(run(delta.FORMS[form], a), reference(a))


@pytest.mark.parametrize(
    "change", [{"C": 32}, {"C": 64}, {"ready": False}, {"parallel": True}, {"C": 64, "parallel": True}], ids=str
)
def test_every_plan_of_the_chunk_form_is_the_reference(change: dict[str, int]):
    a = arguments(1, 70, 2, 8, 24, reset=True)
    plan = delta_chunk.plan(1, 70, 2, 8, 24, torch.float32)._replace(parallel=False)
    assert plan.BV == 16
    check(run(delta_chunk, a, plan._replace(**change)), reference(a))


@pytest.mark.parametrize("form", delta.FORMS)
def test_values_split_over_programs_give_the_same_gradients(form: str, monkeypatch: pytest.MonkeyPatch):
    a = arguments(1, 19, 1, 12, 40, reset=True)
    monkeypatch.setattr(delta_sequential, "_blocks", lambda K, V: (16, 16, 1))
    plan = (delta_chunk.plan(1, 19, 1, 12, 40, torch.float32)._replace(BV=16),) if form == "chunk" else ()
    check(run(delta.FORMS[form], a, *plan), reference(a))


@pytest.mark.parametrize("form", delta.FORMS)
def test_repeated_keys_and_full_learning_rate_stay_exact(form: str):
    # (I + L) is then full of ones: powers of L would grow like binomial coefficients
    a = arguments(1, 40, 1, 8, 8)
    one = torch.zeros_like(a.k)
    one[..., 0] = 1.0
    a = a._replace(k=one, beta=torch.ones_like(a.beta))
    check(run(delta.FORMS[form], a), reference(a))


@pytest.mark.parametrize("form", delta.FORMS)
@pytest.mark.parametrize("layout", ["slices of a projection", "features apart", "expanded"])
def test_any_strides(form: str, layout: str):
    a = arguments(2, 19 if form == "chunk" else 5, 2, 8, 12, reset=True)
    check(run(delta.FORMS[form], _strided(layout, a)), reference(a if layout != "expanded" else _strided(layout, a)))


def _strided(layout: str, a: Arguments) -> Arguments:
    if layout == "slices of a projection":
        q, k, v, beta = torch.cat([a.q, a.k, a.v, a.beta.unsqueeze(-1)], -1).split([8, 8, 12, 1], -1)
        return a._replace(q=q, k=k, v=v, beta=beta.squeeze(-1))
    if layout == "features apart":
        apart: Callable[[Tensor], Tensor] = lambda x: x.transpose(1, -1).contiguous().transpose(1, -1)  # noqa: E731
        return a._replace(**{name: apart(getattr(a, name)) for name in ("q", "k", "v", "beta", "W", "dy", "dW_T")})
    return a._replace(dy=a.dy[:1, :1].expand_as(a.dy), W=a.W[:1].expand_as(a.W))


def test_forms_leave_the_same_checkpoints():
    q, k, v, beta, W, reset, _, _ = arguments(1, 70, 1, 16, 16, reset=True)
    one, other = (form.forward(q, k, v, beta, W, reset, True)[2] for form in delta.FORMS.values())
    assert one.shape == (1, 2, 1, 16, 16)
    torch.testing.assert_close(one, other)


def test_no_checkpoints_where_no_backward_follows():
    q, k, v, beta, W, reset, _, _ = arguments(1, 40, 1, 8, 8)
    assert delta.forward(q, k, v, beta, W, reset, False)[2].shape == (1, 0, 1, 8, 8)
    assert [delta.checkpoints(T) for T in (1, 64, 65)] == [1, 1, 2]


@pytest.mark.parametrize(("T", "K", "V"), [(5, 16, 16), (19, 16, 16), (70, 12, 64)])
def test_bfloat16_inputs_keep_their_dtype_and_a_float32_state(T: int, K: int, V: int):
    a = arguments(1, T, 1, K, V, reset=True)
    a = a._replace(**{name: getattr(a, name).bfloat16() for name in ("q", "k", "v", "beta", "dy")})
    q, k, v, beta, W, reset, dy, dW_T = a
    y, W_T, starts = delta.forward(q, k, v, beta, W, reset, True)
    gradients = delta.backward(dy, dW_T, q, k, v, beta, W, reset, starts)
    assert [x.dtype for x in (y, W_T, starts)] == [torch.bfloat16, torch.float32, torch.float32]
    assert [x.dtype for x in gradients] == [torch.bfloat16] * 4 + [torch.float32]
    for one, other in zip([y, W_T, *gradients], reference(a), strict=True):
        assert (one.double() - other).norm() <= BFLOAT16["rtol"] * other.norm()


def test_two_runs_are_identical():
    a = arguments(2, 19, 2, 16, 16, reset=True)
    for one, other in zip(run(delta_chunk, a), run(delta_chunk, a), strict=True):
        assert torch.equal(one, other)


def test_too_many_keys_are_refused_with_the_backend_that_takes_them():
    with pytest.raises(InvalidInput, match=r"up to 512.*use backend='plain'"):
        delta_chunk.plan(1, 16, 1, 513, 16, torch.float32)
