"""The sequential Triton kernels, in the interpreter, against the float64 reference."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from rfwp.ops import gpu
from rfwp.ops.gpu import recurrent_delta, steps
from tests.ops.cases import Case
from tests.ops.gpu.compare import (
    assert_equals_reference,
    cases,
    every,
    run,
    sliced,
    small,
    turned,
    unactivated,
    views_of_one,
)
from tests.tolerances import BFLOAT16, FLOAT32

OPS = ("recurrent_delta", "delta_rnn", "delta_lstm")
VERSIONS = [case for op in OPS for case in cases(op)]
NEWEST = [cases(op)[-1] for op in OPS]
RDN = cases("recurrent_delta")
ACTIVATING = cases("delta_rnn") + cases("delta_lstm")[::3]


@pytest.fixture(autouse=True)
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short sequences have several checkpoints."""
    monkeypatch.setattr(steps, "SEGMENT", 4)


@pytest.fixture(autouse=True)
def new_tensors_are_nan() -> Iterator[None]:
    """So that what a kernel forgets to write is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@every(VERSIONS)
def test_one_step(case: Case) -> None:
    assert_equals_reference(case, small(case, 1, K=8, V=8), None, FLOAT32)


@every(VERSIONS)
def test_padded_heads(case: Case) -> None:
    assert_equals_reference(case, small(case, 3, B=1, K=8, V=12), None, FLOAT32)


@every(VERSIONS)
def test_several_segments_with_resets(case: Case) -> None:
    x = small(case, 11, H=1, K=16, V=16)
    assert_equals_reference(case, x, x.reset, FLOAT32)


@every(NEWEST)
def test_reset_at_every_step(case: Case) -> None:
    x = small(case, 6, B=1, H=1, K=8, V=8)
    assert_equals_reference(case, x, torch.ones_like(x.reset), FLOAT32)


@every(NEWEST)
def test_bfloat16(case: Case) -> None:
    x = small(case, 6, torch.bfloat16, B=1, H=1, K=8, V=8)
    assert_equals_reference(case, x, x.reset, BFLOAT16)


@every(NEWEST)
def test_strides_change_nothing(case: Case) -> None:
    x = small(case, 2, B=2, H=2, K=8, V=8)
    expected = run(case, x, None)
    for same in (sliced(case, x), turned(x)):
        assert not any(a.is_contiguous() for a in same.inputs[:3])
        torch.testing.assert_close(run(case, same, None), expected, rtol=0, atol=0)


@every(ACTIVATING)
def test_keys_and_rates_before_their_activations(case: Case) -> None:
    x = unactivated(case, small(case, 6, H=1, K=12, V=12))
    assert_equals_reference(case, x, x.reset, FLOAT32, raw=True)


@every(ACTIVATING)
def test_large_keys_and_rates_before_their_activations(case: Case) -> None:
    x = unactivated(case, small(case, 2, B=1, H=1, K=8, V=8))
    z, k, v, beta = x.inputs
    assert_equals_reference(case, replace(x, inputs=(z, 64 * k, v, 64 * beta)), None, FLOAT32, raw=True)


@every(NEWEST)
def test_gradients_go_into_views_of_one_tensor(case: Case) -> None:
    x = sliced(case, small(case, 3, B=1, K=12, V=12))
    outputs, (expected, rest) = run(case, x, None), (slice(0, 4), slice(4, None))
    whole, out = views_of_one(case, x)
    _, found = run(case, x, None, out=out)
    torch.testing.assert_close(list(out), outputs[1][expected], rtol=0, atol=0)
    torch.testing.assert_close(found[rest], outputs[1][rest], rtol=0, atol=0)
    assert all(a is b for a, b in zip(found[expected], out, strict=True))
    assert whole[..., -1].isnan().all()


@every(NEWEST)
def test_nothing_is_kept_where_no_gradient_will_be_asked_for(case: Case) -> None:
    x = small(case, 5, B=1, H=1, K=8, V=8)
    kernel = gpu.OPS[case.op.__name__]
    options = case.options.values()
    plain = kernel.forward(*x.inputs, *x.state, None, False, *options)
    n = 1 + len(x.state)
    assert [a.numel() for a in plain[n:]] == [0] * len(plain[n:])
    kept = kernel.forward(*x.inputs, *x.state, None, True, *options)
    torch.testing.assert_close(plain[:n], kept[:n], rtol=0, atol=0)


@every(NEWEST)
def test_large_inputs_do_not_overflow(case: Case) -> None:
    x = small(case, 2, B=1, H=1, K=8, V=8)
    state = tuple(100 * s for s in x.state)
    assert all(
        a.isfinite().all()
        for part in run(case, replace(x, inputs=(100 * x.inputs[0], *x.inputs[1:]), state=state), None)
        for a in part
    )


@every(RDN)
def test_matrices_too_steep_for_the_shift_known_ahead(case: Case) -> None:
    """Where |R| moves exponents by more than STEEP, the softmaxes use their exact maximum."""
    x = small(case, 1, B=1, H=1, K=8, V=8)
    q, k, v, beta, R_q, R_k, R_v, R_beta = x.inputs
    x = replace(x, inputs=(q, k, v, beta, 30 * R_q, 30 * R_k, R_v, R_beta))
    assert (30 * R_q).abs().sum(-1).max() > recurrent_delta.STEEP.value
    assert_equals_reference(case, x, None, FLOAT32)


@every(RDN)
def test_gradients_of_R_as_matrix_products(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of large heads."""
    monkeypatch.setattr(recurrent_delta, "FUSED", 0)
    x = small(case, 3, B=1, K=8, V=12)
    assert_equals_reference(case, x, x.reset, FLOAT32)


@every(RDN)
def test_matrices_are_read_as_slices_of_one_parameter(case: Case) -> None:
    x = small(case, 3, B=2, K=8, V=12)
    q, k, v, beta, *R = x.inputs
    whole = torch.cat([r if r.dim() == 3 else r.unsqueeze(1) for r in R], dim=1)
    slices = (*whole.split([8, 8, 12, 1], dim=1)[:3], whole[:, -1])
    assert [a.data_ptr() for a in recurrent_delta._heads(slices)[0]] == [a.data_ptr() for a in slices]
    expected = run(case, x, None)
    same = replace(x, inputs=(q, k, v, beta, *slices))
    torch.testing.assert_close(run(case, same, None), expected, rtol=0, atol=0)
    gradient = torch.empty_like(whole)
    _, out = views_of_one(case, replace(x, inputs=x.inputs[:4] + tuple(R)))
    _, found = run(case, same, None, out=(*out, gradient))
    torch.testing.assert_close(found[4:8], expected[1][4:8], rtol=0, atol=0)
    torch.testing.assert_close(gradient[:, 16:28], expected[1][6], rtol=0, atol=0)
