"""Feature maps keep their digits, whatever goes in."""

import pytest
import torch

from rfwp.fwp.maps import MAPS
from rfwp.layers.fwp import FWP

RANGES = {"usual": (-3.0, 3.0), "small": (-20.0, -10.0), "smaller": (-80.0, -60.0), "mixed": (-60.0, 60.0)}


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("low_high", RANGES.values(), ids=RANGES)
def test_float32_gives_what_float64_gives_and_so_do_gradients(name, low_high):
    torch.manual_seed(0)
    x = torch.empty(50, 4).uniform_(*low_high)
    weight = torch.randn(50, 4)

    def run(dtype):
        given = x.to(dtype, copy=True).requires_grad_()
        y = MAPS[name](given)
        (y * weight.to(dtype)).sum().backward()
        return y.detach().double(), given.grad.double()

    (y, gradient), (y64, gradient64) = run(torch.float32), run(torch.float64)
    torch.testing.assert_close(y, y64, rtol=2e-5, atol=1e-37)
    # a gradient may be the difference of two numbers of the size of φ
    torch.testing.assert_close(gradient, gradient64, rtol=2e-5, atol=2e-5 * float(y64.abs().max()))


@pytest.mark.parametrize("name", ["delta_net", "delta_rnn", "delta_lstm"])
def test_large_inputs_leave_no_nan_in_the_fast_weights(name):
    torch.manual_seed(0)
    layer = FWP(name, 16, 4)
    x = 40 * torch.randn(1, 200, 16)
    y, _ = layer(x)
    expected, _ = layer.double()(x.double())
    assert expected.isfinite().all()
    assert y.isfinite().all()
