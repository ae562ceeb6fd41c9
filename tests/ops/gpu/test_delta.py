from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from rfwp.errors import InvalidInput
from rfwp.fwp.maps import MAPS
from rfwp.ops.delta import delta_reference
from rfwp.ops.gpu import delta, delta_chunk, delta_sequential
from tests.ops.gpu.delta_cases import Arguments, activated, arguments, check, expected, parts, raw
from tests.tolerances import BFLOAT16, FLOAT32

SIZES = [(1, 8, 8), (7, 12, 16), (19, 16, 12), (40, 16, 16)]  # T K V


def reference(a: Arguments) -> list[Tensor]:
    return expected(delta_reference, a[:4], a)


def run(form: ModuleType, a: Arguments, **options: Any) -> list[Tensor]:
    q, k, v, beta, W, reset, dy, dW_T = a
    y, W_T, *kept = form.forward(q, k, v, beta, W, reset, True, **options)
    return [y, W_T, *form.backward(dy, dW_T, q, k, v, beta, reset, *kept, **options)]


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(("T", "K", "V"), SIZES)
@pytest.mark.parametrize("form", delta.FORMS)
def test_each_form_is_the_reference(form: str, T: int, K: int, V: int, reset: bool):
    # every step of the sequential form costs milliseconds in the interpreter
    H = 2 if form == "chunk" or T < 19 else 1
    a = arguments(2, T, H, K, V, reset=reset, state=T != 7)
    check(run(delta.FORMS[form], a), reference(a))


@pytest.mark.parametrize(
    "change",
    [{"parallel": False}, {"parallel": False, "ready": True}, {"parallel": False, "every": 4}, {"BV": 16, "ready": True}]
    + [{"C": C, "BV": BV, "ready": True} for C in (32, 64) for BV in (16, 32)],
    ids=str,
)
def test_every_plan_of_the_chunk_form_is_the_reference(change: dict[str, int]):
    a = arguments(1, 70, 2, 8, 24, reset=True)
    plan = delta_chunk.Plan(16, 16, 32, 1, 1, "tf32x3", ready=False, parallel=True)
    check(run(delta_chunk, a, p=plan._replace(**change)), reference(a))


@pytest.mark.parametrize("form", delta.FORMS)
def test_values_split_over_programs_give_the_same_gradients(form: str, monkeypatch: pytest.MonkeyPatch):
    a = arguments(1, 19, 1, 12, 40, reset=True)
    monkeypatch.setattr(delta_sequential, "_blocks", lambda K, V: (16, 16, 1))
    assert delta_chunk.plan(12, 40, torch.float32).BV == 16
    check(run(delta.FORMS[form], a), reference(a))


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


@pytest.mark.parametrize("form", delta.FORMS)
@pytest.mark.parametrize("phi", [phi for phi in MAPS if phi != "identity"])
def test_raw_inputs_give_raw_gradients(form: str, phi: str):
    a = raw(arguments(2, 19 if form == "chunk" else 5, 2, 12, 8, reset=True), phi)
    options = {"phi": phi, "sigmoid": True}
    check(run(delta.FORMS[form], a, **options), expected(activated(delta_reference, phi), a[:4], a))


@pytest.mark.parametrize(
    "change", [{}, {"ready": True}, {"every": 4}, {"BV": 16, "ready": True, "parallel": True}, {"C": 64}], ids=str
)
def test_every_plan_takes_raw_inputs(change: dict[str, int]):
    a = raw(arguments(1, 70, 1, 12, 24, reset=True), "elu_sum")
    plan = delta_chunk.Plan(16, 16, 32, 1, 1, "tf32x3", ready=False)._replace(**change)
    plan = plan._replace(ready=True, parallel=True) if plan.C > 16 else plan
    check(run(delta_chunk, a, p=plan, phi="elu_sum", sigmoid=True), expected(activated(delta_reference, "elu_sum"), a[:4], a))


@pytest.mark.parametrize("phi", ["softmax", "elu_sum", "elu_sum_eps"])
def test_large_raw_inputs_stay_finite(phi: str):
    a = raw(arguments(1, 19, 1, 8, 8), phi, size=1000.0)
    a = a._replace(beta=100 * a.beta)
    for one, other in zip(
        run(delta_chunk, a, phi=phi, sigmoid=True), expected(activated(delta_reference, phi), a[:4], a), strict=True
    ):
        torch.testing.assert_close(one.double(), other, **FLOAT32)


def test_a_rate_of_zero_has_a_gradient():
    a = arguments(1, 19, 1, 8, 8)
    a = a._replace(beta=torch.where(torch.arange(19).view(1, -1, 1) % 3 == 0, 0.0, a.beta))
    check(run(delta_chunk, a), reference(a))


@pytest.mark.parametrize("form", delta.FORMS)
@pytest.mark.parametrize("G", [1, 3])
def test_gates_of_one_projection_and_gradients_into_its_gradient(form: str, G: int):
    B, T, H, K, V = 2, 19 if form == "chunk" else 5, 2, 8, 12
    a = raw(arguments(B, T, H * G, K, V, reset=True), "elu_sum")
    u = torch.cat([a.q, a.k, a.v, a.beta.unsqueeze(-1)], -1)
    # gates lie behind the features of all of them: strides of H and G do not follow from each other
    u = u.unflatten(2, (H, G)).transpose(1, 3).contiguous().transpose(1, 3)
    du = torch.full_like(u, float("nan"))
    if G == 1:
        u, du = u.squeeze(3), du.squeeze(3)
    inputs, out = parts(u, K, V), parts(du, K, V)
    module, options = delta.FORMS[form], {"phi": "elu_sum", "sigmoid": True}
    y, W_T, *kept = module.forward(*inputs, a.W, a.reset, True, **options)
    *gradients, dW = module.backward(a.dy, a.dW_T, *inputs, a.reset, *kept, out=out, **options)
    assert all(one is other for one, other in zip(gradients, out, strict=True))
    dq, dk, dv, dbeta = parts(du.reshape(B, T, H * G, -1), K, V)
    want = expected(activated(delta_reference, "elu_sum"), a[:4], a)
    check([y, W_T, *(x.contiguous() for x in (dq, dk, dv, dbeta)), dW], want)


@pytest.mark.parametrize("form", delta.FORMS)
def test_a_nan_in_a_forgotten_state_does_not_come_back(form: str):
    a = arguments(1, 19 if form == "chunk" else 5, 1, 8, 8, reset=True)
    assert a.reset is not None
    assert a.reset[0, 0]
    clean, bad = run(delta.FORMS[form], a), run(delta.FORMS[form], a._replace(W=torch.full_like(a.W, float("nan"))))
    for one, other in zip(clean, bad, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("T", "K", "V"), [(1, 8, 8), (7, 16, 16), (8, 16, 16), (70, 16, 16), (70, 40, 33), (9, 130, 4)])
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_trace_has_the_size_that_is_promised_and_only_where_a_backward_follows(precision: str, T: int, K: int, V: int):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        q, k, v, beta, W, reset, _, _ = arguments(1, T, 2, K, V)
        *_, copies, trace = delta.forward(q, k, v, beta, W, reset, True)
        assert trace.shape == (delta.trace_size(1, T, 2, K, V, q.dtype),)
        assert copies.shape == (1, delta.checkpoints(T, K, V, q.dtype), 2, V, K)
        assert [x.numel() for x in delta.forward(q, k, v, beta, W, reset, False)[2:]] == [0, 0]
    finally:
        torch.set_float32_matmul_precision(before)


def test_precision_changed_between_forward_and_backward():
    a = arguments(1, 19, 1, 40, 8)
    q, k, v, beta, W, reset, dy, dW_T = a
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        y, W_T, *kept = delta_chunk.forward(q, k, v, beta, W, reset, True)
        torch.set_float32_matmul_precision("high")
        check([y, W_T, *delta_chunk.backward(dy, dW_T, q, k, v, beta, reset, *kept)], reference(a))
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("T", "K", "V"), [(5, 16, 16), (19, 16, 16), (70, 12, 64)])
def test_bfloat16_inputs_keep_their_dtype_and_a_float32_state(T: int, K: int, V: int):
    a = arguments(1, T, 1, K, V, reset=True)
    a = a._replace(**{name: getattr(a, name).bfloat16() for name in ("q", "k", "v", "beta", "dy")})
    q, k, v, beta, W, reset, dy, dW_T = a
    y, W_T, *kept = delta.forward(q, k, v, beta, W, reset, True)
    gradients = delta.backward(dy, dW_T, q, k, v, beta, W, reset, *kept)
    assert [x.dtype for x in (y, W_T, *kept)] == [torch.bfloat16, torch.float32, torch.float32, torch.float32]
    assert [x.dtype for x in gradients] == [torch.bfloat16] * 4 + [torch.float32]
    for one, other in zip([y, W_T, *gradients], reference(a), strict=True):
        assert (one.double() - other).norm() <= BFLOAT16["rtol"] * other.norm()


def test_two_runs_are_identical():
    a = arguments(2, 19, 2, 16, 16, reset=True)
    for one, other in zip(run(delta_chunk, a), run(delta_chunk, a), strict=True):
        assert torch.equal(one, other)


def test_too_many_keys_are_refused_with_the_backend_that_takes_them():
    with pytest.raises(InvalidInput, match=r"up to 512.*use backend='plain'"):
        delta_chunk.plan(513, 16, torch.float32)
