"""The form for heads of 65 to 128 keys, in the interpreter, against the float64 reference."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rfwp.fwp.maps import MAPS
from rfwp.ops.delta import delta_reference
from rfwp.ops.gpu import delta, delta_chunk, delta_large, sum
from rfwp.ops.gpu.delta_chunk import Plan
from rfwp.ops.gpu.layout import sizes_of, vector_strides
from rfwp.ops.sum import sum_reference
from tests.ops.gpu.delta_cases import Arguments, activated, arguments, expected, parts, raw
from tests.tolerances import BFLOAT16, FLOAT32

REFERENCES = {"delta": delta_reference, "sum": sum_reference}
DTYPES = {"tf32": torch.float32, "bf16": torch.bfloat16}
TOLERANCES = {"tf32": FLOAT32["rtol"], "bf16": BFLOAT16["rtol"]}
SIZES = [(1, 65, 16), (8, 128, 49), (63, 96, 64), (70, 72, 200), (130, 128, 40)]  # T K V


@pytest.fixture(autouse=True)
def new_tensors_are_nan() -> Iterator[None]:
    """So that what a kernel forgets to write is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def plan(a: Arguments) -> Plan:
    """The plan where TF32 is allowed; precision is the interpreter's float32 all the same."""
    p = delta_chunk.plan(a.q.shape[-1], a.v.shape[-1], a.q.dtype, strict=False)
    assert p.large
    return p


def run(rule: str, a: Arguments, phi: str = "identity") -> list[Tensor]:
    q, k, v, beta, W, reset, dy, dW_T = a
    rate, sigmoid = (beta, phi != "identity") if rule == "delta" else (None, False)
    y, W_T, *kept = delta_chunk.forward(q, k, v, rate, W, reset, True, phi, sigmoid, plan(a))
    dq, dk, dv, dbeta, dW = delta_chunk.backward(dy, dW_T, q, k, v, rate, reset, *kept, phi, sigmoid, p=plan(a))
    return [y, W_T, dq, dk, dv, *([dbeta] if rule == "delta" else []), dW]


def reference(rule: str, a: Arguments, phi: str = "identity") -> list[Tensor]:
    f = REFERENCES[rule] if phi == "identity" else activated(REFERENCES[rule], phi)
    return expected(f, a[:4] if rule == "delta" else a[:3], a)


def rounded(a: Arguments, precision: str) -> Arguments:
    return a._replace(**{name: getattr(a, name).to(DTYPES[precision]) for name in ("q", "k", "v", "beta", "dy")})


def compare(precision: str, actual: list[Tensor], wanted: list[Tensor]) -> None:
    for one, other in zip(actual, wanted, strict=True):
        assert one.is_contiguous()
        assert (one.double() - other).norm() <= TOLERANCES[precision] * other.norm()


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize(("T", "K", "V"), SIZES)
@pytest.mark.parametrize("rule", REFERENCES)
def test_odd_shapes_are_the_reference(rule: str, T: int, K: int, V: int, precision: str):
    a = rounded(arguments(1, T, 1, K, V, reset=T % 2 == 0, state=T != 63), precision)
    compare(precision, run(rule, a), reference(rule, a))


@pytest.mark.parametrize("precision", DTYPES)
def test_rows_and_heads_with_resets(precision: str):
    a = rounded(arguments(2, 66, 2, 80, 48, reset=True), precision)
    compare(precision, run("delta", a), reference("delta", a))


@pytest.mark.parametrize("rule", REFERENCES)
@pytest.mark.parametrize("phi", [phi for phi in MAPS if phi != "identity"])
def test_raw_inputs_give_raw_gradients(phi: str, rule: str):
    a = raw(arguments(1, 20, 1, 72, 40, reset=True), phi)
    compare("tf32", run(rule, a, phi), reference(rule, a, phi))


@pytest.mark.parametrize("phi", ["softmax", "elu_sum"])
def test_raw_inputs_in_bfloat16(phi: str):
    a = rounded(raw(arguments(1, 70, 1, 72, 40), phi), "bf16")
    compare("bf16", run("delta", a, phi), reference("delta", a, phi))


@pytest.mark.parametrize("precision", DTYPES)
def test_three_gates_of_one_projection_and_gradients_into_its_gradient(precision: str):
    B, T, H, G, K, V = 1, 66, 1, 3, 66, 33
    a = rounded(raw(arguments(B, T, H * G, K, V, reset=True), "elu_sum"), precision)
    u = torch.cat([a.q, a.k, a.v, a.beta.unsqueeze(-1)], -1)
    u = u.unflatten(2, (H, G)).transpose(1, 3).contiguous().transpose(1, 3)
    du = torch.full_like(u, float("nan"))
    q, k, v, beta = parts(u, K, V)
    p, options = plan(a), {"phi": "elu_sum", "sigmoid": True}
    y, W_T, *kept = delta_chunk.forward(q, k, v, beta, a.W, a.reset, True, **options, p=p)
    *_, dW = delta_chunk.backward(a.dy, a.dW_T, q, k, v, beta, a.reset, *kept, **options, out=parts(du, K, V), p=p)
    gradients = (x.contiguous() for x in parts(du.reshape(B, T, H * G, -1), K, V))
    compare(precision, [y, W_T, *gradients, dW], reference("delta", a, "elu_sum"))


@pytest.mark.parametrize("rule", REFERENCES)
@pytest.mark.parametrize("layout", ["slices", "features apart", "expanded"])
def test_any_strides(layout: str, rule: str):
    a = arguments(1, 9, 2, 80, 48)
    if layout == "slices":
        q, k, v, beta = torch.cat([a.q, a.k, a.v, a.beta.unsqueeze(-1)], -1).split([80, 80, 48, 1], -1)
        a = a._replace(q=q, k=k, v=v, beta=beta.squeeze(-1))
    elif layout == "features apart":
        names = ("q", "k", "v", "beta", "W", "dy", "dW_T")
        a = a._replace(**{name: getattr(a, name).transpose(1, -1).contiguous().transpose(1, -1) for name in names})
    else:
        a = a._replace(dy=a.dy[:, :1].expand_as(a.dy), q=a.q[:, :, :1].expand_as(a.q))
    compare("tf32", run(rule, a), reference(rule, a))


@pytest.mark.parametrize("precision", DTYPES)
def test_only_rows_of_whole_words_are_read_without_a_copy(precision: str):
    x = torch.zeros(1, 8, 2, 97, dtype=DTYPES[precision])
    wide = x[..., :96].contiguous()
    assert delta_large._ready(wide, vector_strides(wide), sizes_of(wide, wide), precision) == (wide, vector_strides(wide))
    for other in (x[..., :96], x[..., 1:], wide.mT.contiguous().mT):
        copy, strides = delta_large._ready(other, vector_strides(other), sizes_of(other, other), precision)
        assert copy is not other
        assert delta_large._wide(copy, strides)


@pytest.mark.parametrize("precision", DTYPES)
def test_rows_of_tiles_are_never_shorter_than_128_bytes(precision: str):
    # shorter ones beside others are where the compiler's fault is (docs/log.md)
    each = 2 if precision == "bf16" else 4
    for V in range(33 if precision == "bf16" else 1, 513):
        for launch in (*delta_large.LAUNCHES[precision].values(), *delta_large.MASKED[precision].values()):
            assert delta_large.padded(V) >= V
            assert min(launch.BV, delta_large.padded(V)) * each >= 128
            assert delta_large.padded(V) % min(launch.BV, delta_large.padded(V)) == 0


def test_a_rate_of_zero_has_a_gradient_and_repeated_keys_stay_exact():
    a = arguments(1, 70, 1, 72, 40)
    one = torch.zeros_like(a.k)
    one[..., 0] = 1.0
    a = a._replace(k=one, beta=torch.where(torch.arange(70).view(1, -1, 1) % 3 == 0, 0.0, 1.0))
    compare("tf32", run("delta", a), reference("delta", a))


@pytest.mark.parametrize("rule", REFERENCES)
def test_a_nan_in_a_forgotten_state_does_not_come_back(rule: str):
    a = arguments(1, 70, 1, 65, 33, reset=True)
    assert a.reset is not None
    assert a.reset[0, 0]
    for one, other in zip(run(rule, a), run(rule, a._replace(W=torch.full_like(a.W, float("nan")))), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("T", [7, 8, 65])
def test_traces_have_the_size_that_is_promised_and_only_where_a_backward_follows(T: int, precision: str):
    a = rounded(arguments(1, T, 2, 65, 33), precision)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        for module, inputs in ((delta, a[:4]), (sum, a[:3])):
            *_, copies, trace = module.forward(*inputs, a.W, None, True)
            assert trace.shape == (module.trace_size(1, T, 2, 65, 33, a.q.dtype),)
            assert copies.shape == (1, module.checkpoints(T, 65, 33, a.q.dtype), 2, 33, 65)
            # the large form leaves no copies; before half a chunk is full, `delta` has another form
            assert copies.shape[1] == (module is delta and T < delta.SHORTEST)
            assert [x.numel() for x in module.forward(*inputs, a.W, None, False)[2:]] == [0, 0]
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("changed", [("high", "highest"), ("highest", "high")], ids=str)
def test_precision_changed_between_forward_and_backward(changed: tuple[str, str]):
    q, k, v, beta, W, reset, dy, dW_T = a = arguments(1, 40, 1, 66, 128)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(changed[0])
        y, W_T, *kept = delta_chunk.forward(q, k, v, beta, W, reset, True)
        torch.set_float32_matmul_precision(changed[1])
        gradients = delta_chunk.backward(dy, dW_T, q, k, v, beta, reset, *kept)
        compare("tf32", [y, W_T, *gradients], reference("delta", a))
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("table", ["LAUNCHES", "MASKED"])
def test_every_block_of_values_gives_the_same(table: str, precision: str, monkeypatch: pytest.MonkeyPatch):
    a = rounded(arguments(1, 66, 1, 72, 100, reset=True), precision)
    before = run("delta", a)
    launches = getattr(delta_large, table)
    half = {name: launch._replace(BV=launch.BV // 2) for name, launch in launches[precision].items()}
    monkeypatch.setitem(launches, precision, half)
    for one, other in zip(run("delta", a), before, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
