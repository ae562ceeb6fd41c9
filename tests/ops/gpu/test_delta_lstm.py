"""The Triton kernels of `delta_lstm`, in the interpreter, against the float64 reference."""

from dataclasses import replace

import pytest
import torch

from rfwp.ops.gpu import steps
from tests.ops.cases import Case
from tests.ops.gpu.compare import assert_equals_reference, cases, every, run, sliced, small, turned
from tests.tolerances import BFLOAT16, FLOAT32

VERSIONS = cases("delta_lstm")


@pytest.fixture(autouse=True)
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short sequences have several checkpoints."""
    monkeypatch.setattr(steps, "SEGMENT", 4)


@every(VERSIONS)
def test_one_step(case: Case) -> None:
    assert_equals_reference(case, small(case, 1, V=8), None, FLOAT32)


@every(VERSIONS)
def test_padded_heads(case: Case) -> None:
    assert_equals_reference(case, small(case, 3, B=1, V=12), None, FLOAT32)


@every(VERSIONS)
def test_several_segments_with_resets(case: Case) -> None:
    x = small(case, 11, H=1, V=16)
    assert_equals_reference(case, x, x.reset, FLOAT32)


@every(VERSIONS[-1:])
def test_reset_at_every_step(case: Case) -> None:
    x = small(case, 6, B=1, H=1, V=8)
    assert_equals_reference(case, x, torch.ones_like(x.reset), FLOAT32)


@every(VERSIONS[-1:])
def test_bfloat16(case: Case) -> None:
    x = small(case, 6, torch.bfloat16, B=1, H=1, V=8)
    assert_equals_reference(case, x, x.reset, BFLOAT16)


@every(VERSIONS[-1:])
def test_strides_change_nothing(case: Case) -> None:
    x = small(case, 2, B=2, H=2, V=8)
    expected = run(case, x, None)
    for same in (sliced(case, x), turned(x)):
        assert not any(a.is_contiguous() for a in same.inputs[:3])
        torch.testing.assert_close(run(case, same, None), expected, rtol=0, atol=0)


@every(VERSIONS[-1:])
def test_large_inputs_do_not_overflow(case: Case) -> None:
    x = small(case, 2, B=1, H=1, V=8)
    state = tuple(100 * s for s in x.state)
    assert all(
        a.isfinite().all()
        for part in run(case, replace(x, inputs=(100 * x.inputs[0], *x.inputs[1:]), state=state), None)
        for a in part
    )
