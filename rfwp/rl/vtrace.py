"""V-trace: values and advantages of one policy from the actions of another (IMPALA, Espeholt et al. 2018)."""

from typing import NamedTuple

import torch
from torch import Tensor


class VTrace(NamedTuple):
    target: Tensor  # B T: v_t, what the value is to become
    advantage: Tensor  # B T: the weight of the policy gradient at t, importance weight included


@torch.no_grad()
def vtrace(
    log_weight: Tensor,
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    bootstrap: Tensor,
    *,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
    trace: float = 1.0,
) -> VTrace:
    """v_t = V_t + δ_t + γ_t c_t (v_{t+1} - V_{t+1}),  δ_t = ρ_t (r_t + γ_t V_{t+1} - V_t)

    A_t = min(pg_ρ̄, w_t) (r_t + γ_t v_{t+1} - V_t)

    with w = π/μ = exp(log_weight), ρ = min(ρ̄, w), c = trace min(c̄, w). All are (B, T), bootstrap is V_T = v_T (B,).
    r_t is what action t earned and γ_t is 0 where it ended the episode: nothing then passes from t+1 to t.
    No limit: float("inf"). Gradients do not pass.
    """
    weight = log_weight.exp()
    next_value = torch.cat((value[:, 1:], bootstrap.unsqueeze(1)), dim=1)
    delta = weight.clamp(max=rho_bar) * (reward + discount * next_value - value)
    carry = discount * trace * weight.clamp(max=c_bar)
    correction, corrections = torch.zeros_like(bootstrap), []
    for delta_t, carry_t in zip(reversed(delta.unbind(1)), reversed(carry.unbind(1)), strict=True):
        correction = torch.addcmul(delta_t, carry_t, correction)
        corrections.append(correction)
    target = value + torch.stack(corrections[::-1], dim=1)
    next_target = torch.cat((target[:, 1:], bootstrap.unsqueeze(1)), dim=1)
    advantage = weight.clamp(max=pg_rho_bar) * (reward + discount * next_target - value)
    return VTrace(target, advantage)
