import logging

import pytest
import torch

from rfwp.ops import backend
from tests.ops.cases import Case, every_op, example


@every_op
def test_auto_says_once_what_it_took(case: Case, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(backend, "_said", set())
    x = example(case, 7)
    with caplog.at_level(logging.INFO, logger="rfwp"):
        for _ in range(2):
            case(x.inputs, backend="auto")
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"{case.op.__name__} on cpu: backend '")


@every_op
def test_a_named_backend_says_nothing(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="rfwp"):
        case(example(case, 7).inputs, backend="plain")
    assert not caplog.messages


@pytest.mark.parametrize("grad", [False, True])
def test_checkpoints_are_kept_only_for_a_backward_pass(grad: bool) -> None:
    x = torch.zeros(1, requires_grad=grad)
    assert backend.needs_checkpoints(None, torch.zeros(1), x) == grad
    with torch.no_grad():
        assert not backend.needs_checkpoints(x)
