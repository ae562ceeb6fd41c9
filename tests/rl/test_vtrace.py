import math

import pytest
import torch

from rfwp.rl import vtrace
from tests.tolerances import FLOAT64

B, T = 3, 9


def some_numbers(seed=0):
    generator = torch.Generator().manual_seed(seed)
    log_weight, reward, value = torch.randn(3, B, T, generator=generator, dtype=torch.float64)
    done = torch.rand(B, T, generator=generator) < 0.2
    bootstrap = torch.randn(B, generator=generator, dtype=torch.float64)
    return log_weight, reward, 0.9 * (~done).double(), value, bootstrap


def double_sum(log_weight, reward, discount, value, bootstrap, rho_bar, c_bar, pg_rho_bar, trace):
    """v_s = V_s + Σ_{t≥s} (Π_{s≤i<t} γ_i c_i) ρ_t (r_t + γ_t V_{t+1} - V_t), one number at a time."""
    w = [math.exp(x) for x in log_weight]
    V, v = [*value, bootstrap], []
    for s in range(T):
        total = V[s]
        for t in range(s, T):
            before = math.prod(discount[i] * trace * min(c_bar, w[i]) for i in range(s, t))
            total += before * min(rho_bar, w[t]) * (reward[t] + discount[t] * V[t + 1] - V[t])
        v.append(total)
    v.append(bootstrap)
    return v[:T], [min(pg_rho_bar, w[t]) * (reward[t] + discount[t] * v[t + 1] - V[t]) for t in range(T)]


@pytest.mark.parametrize("limits", [(1, 1, 1, 1), (1.5, 0.8, 2, 0.9), (math.inf, math.inf, math.inf, 1), (0.7, 1.2, 0.3, 0)])
def test_equals_the_double_sum_of_the_definition(limits):
    numbers = some_numbers()
    names = dict(zip(("rho_bar", "c_bar", "pg_rho_bar", "trace"), limits, strict=True))
    found = vtrace(*numbers, **names)
    for b in range(B):
        target, advantage = double_sum(*(x[b].tolist() for x in numbers), **names)
        torch.testing.assert_close(found.target[b], torch.tensor(target, dtype=torch.float64), **FLOAT64)
        torch.testing.assert_close(found.advantage[b], torch.tensor(advantage, dtype=torch.float64), **FLOAT64)


def test_with_weights_of_one_the_target_is_the_discounted_return():
    _, reward, discount, value, bootstrap = some_numbers()
    expected, following = [], bootstrap
    for t in reversed(range(T)):
        following = reward[:, t] + discount[:, t] * following
        expected.insert(0, following)
    found = vtrace(torch.zeros_like(reward), reward, discount, value, bootstrap)
    torch.testing.assert_close(found.target, torch.stack(expected, dim=1), **FLOAT64)
    torch.testing.assert_close(found.advantage, found.target - value, **FLOAT64)


def test_nothing_passes_back_over_the_end_of_an_episode():
    log_weight, reward, discount, value, bootstrap = some_numbers()
    discount[:, 4] = 0
    before = vtrace(log_weight, reward, discount, value, bootstrap)
    changed = value.clone()
    changed[:, 5:] += 10
    after = vtrace(log_weight, reward, discount, changed, bootstrap - 7)
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one[:, :5], other[:, :5], **FLOAT64)
        assert not torch.isclose(one[:, -1], other[:, -1]).any()


def test_gradients_do_not_pass():
    numbers = [x.requires_grad_() for x in some_numbers()]
    assert not any(x.requires_grad for x in vtrace(*numbers))
