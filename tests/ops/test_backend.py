import logging

import pytest
import torch

from rfwp.errors import InvalidInput
from rfwp.ops import backend, sum
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


def test_a_backend_that_cannot_run_says_why_and_what_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET")
    x = torch.zeros(1, 1, 1, 4)
    with pytest.raises(InvalidInput) as error:
        sum(x, x, x, backend="gpu")
    assert str(error.value) == (
        "sum: backend 'gpu' cannot run: it runs on CUDA devices and the inputs are on cpu; backend='plain' would work"
    )


@pytest.mark.parametrize(
    ("op", "x", "d", "reason"),
    [
        ("delta", torch.zeros(1, dtype=torch.float64), 16, "it has no float64; float32, bfloat16 and float16 are supported"),
        ("recurrent_delta", torch.zeros(1), 129, "head sizes up to 128 are supported, saw K=129, V=129"),
        ("delta", torch.zeros(1), 512, None),
    ],
)
def test_the_gpu_backend_names_its_limits(op: str, x: torch.Tensor, d: int, reason: str | None) -> None:
    assert backend.unsupported(op, "gpu", x, d, d) == reason


def test_without_triton_the_gpu_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend.gpu, "INSTALLED", False)
    assert "triton is not installed" in str(backend.unsupported("sum", "gpu", torch.zeros(1), 8, 8))


def test_auto_falls_back_with_its_reason(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(backend, "_said", set())
    monkeypatch.setattr(backend.cpu, "INSTALLED", False)
    with caplog.at_level(logging.INFO, logger="rfwp"):
        assert backend.resolve("sum", "auto", torch.zeros(1), 8, 8) == "plain"
    assert "not 'cpu': numba is not installed" in caplog.text
