"""The sequential Triton kernels, in the interpreter, against the float64 reference."""

from dataclasses import replace

import pytest
import torch

from rfwp.ops.gpu import recurrent_delta, steps
from tests.ops.cases import Case
from tests.ops.gpu.compare import assert_equals_reference, cases, every, run, sliced, small, turned
from tests.tolerances import BFLOAT16, FLOAT32

OPS = ("recurrent_delta", "delta_rnn", "delta_lstm")
VERSIONS = [case for op in OPS for case in cases(op)]
NEWEST = [cases(op)[-1] for op in OPS]
RDN = cases("recurrent_delta")


@pytest.fixture(autouse=True)
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short sequences have several checkpoints."""
    monkeypatch.setattr(steps, "SEGMENT", 4)


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
