import numpy as np
import pytest
from numba import njit

from rfwp.ops.cpu.lanes import LANES, exp, load, sigmoid, store, tanh


@njit
def maps(x, e, s, t):
    for i in range(x.shape[0]):
        store(e, i, exp(load(x, i)))
        store(s, i, sigmoid(load(x, i)))
        store(t, i, tanh(load(x, i)))


def run(x: np.ndarray) -> list[np.ndarray]:
    found = [np.full_like(x, np.nan) for _ in range(3)]
    maps(x, *found)
    return found


@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 3e-7), (np.float64, 1e-15)])
def test_exponential_sigmoid_and_tanh_are_exact_to_the_last_bits(dtype, error):
    """Near zero too, where tanh x = x."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.standard_normal((500, LANES)) * scale for scale in (1e-6, 1e-3, 0.1, 1, 10)]).astype(dtype)
    wide = x.astype(np.longdouble)
    for found, expected in zip(run(x), (np.exp(wide), 1 / (1 + np.exp(-wide)), np.tanh(wide)), strict=True):
        assert np.max(np.abs(found / expected - 1)) <= error


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_extremes_saturate_and_nan_stays_nan(dtype):
    x = np.array([[np.nan, np.inf, -np.inf, 1e30, -1e30, 0, -0.0, 200]], dtype)
    e, s, t = (found[0] for found in run(x))
    assert np.isnan([e[0], s[0], t[0]]).all()
    assert (e[[2, 4]] < 1e-37).all()
    assert (e[[1, 3]] > 1e38).all()
    np.testing.assert_array_equal(s[[1, 3, 5]], [1, 1, 0.5])
    assert (s[[2, 4]] < 1e-37).all()
    np.testing.assert_array_equal(t[1:7], [1, -1, 1, -1, 0, 0])
