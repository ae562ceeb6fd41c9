import pytest
import torch

from rfwp.ops import delta_lstm
from tests.ops.cases import CASES, assert_same, every_backend, example
from tests.tolerances import FLOAT64

CASE = next(case for case in CASES if case.op is delta_lstm)


def _without_recurrence(version: str, backend: str) -> tuple[torch.Tensor, torch.Tensor]:
    """z and y where the recurrent matrices stay zero."""
    z, k, v, beta = example(CASE, 40, grad=False).inputs
    y, (R, _, _) = delta_lstm(z, k, v, torch.zeros_like(beta), version=version, backend=backend)
    assert torch.equal(R, torch.zeros_like(R))
    return z, y


@every_backend
@pytest.mark.parametrize("version", ["A", "B", "C", "D"])
def test_zero_learning_rate_leaves_a_gated_average_of_the_feedforward_part(backend: str, version: str) -> None:
    z, y = _without_recurrence(version, backend)
    c = torch.zeros_like(y[:, 0])
    for t in range(z.shape[1]):
        u, f, o = z[:, t, :, 0], z[:, t, :, 1].sigmoid(), z[:, t, :, 2].sigmoid()
        c = f * c + (1 - f) * (u if version == "D" else u.sigmoid())
        expected = {"A": (o * c).softmax(-1), "B": o * c, "C": o * c + u, "D": o * c}[version]
        assert_same(y[:, t], expected, FLOAT64)


@every_backend
def test_versions_A_and_C_without_recurrence_are_B_with_another_output(backend: str) -> None:
    z, y_B = _without_recurrence("B", backend)
    assert_same(_without_recurrence("A", backend)[1], y_B.softmax(-1), FLOAT64)
    assert_same(_without_recurrence("C", backend)[1], y_B + z[..., 0, :], FLOAT64)


@every_backend
def test_an_open_forget_gate_keeps_the_cell(backend: str) -> None:
    """f = 1 and o = 1: nothing is written, y = c_0 for ever."""
    x = example(CASE, 40, grad=False)
    z, k, v, beta = x.inputs
    z = torch.cat((z[..., :1, :], torch.full_like(z[..., 1:, :], 100.0)), dim=-2)
    R, y0, c0 = x.state
    y, (_, _, c) = delta_lstm(z, k, v, beta * 0, state=(R * 0, y0, c0), backend=backend)
    assert_same(c, c0, FLOAT64)
    assert_same(y, c0.unsqueeze(1).expand_as(y), FLOAT64)
