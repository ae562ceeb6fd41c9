"""IMPALA's loss: policy gradient, value and entropy, summed over an unroll."""

from typing import NamedTuple

import torch
from torch import Tensor

from rfwp.config import ImpalaConfig
from rfwp.models import AgentOutput
from rfwp.rl.unroll import Unroll
from rfwp.rl.vtrace import vtrace

ROUNDING = 1e-3
"""An importance weight counts as cut only where it is above its limit by more than this: rounding alone moves weights of 1."""


class ImpalaLoss(NamedTuple):
    """Scalars. `total` = policy + value + entropy_loss, each with its weight; the others are means over all steps."""

    total: Tensor
    policy: Tensor
    value: Tensor
    entropy_loss: Tensor
    entropy: Tensor
    weight: Tensor
    cut: Tensor


def impala_loss(output: AgentOutput, unroll: Unroll, config: ImpalaConfig) -> ImpalaLoss:
    """Σ_{b,t} -A_t log π(a_t) + value_cost ½ (v_t - V_t)² + entropy_cost Σ_a π(a) log π(a)

    `output` is the agent's on all T+1 observations; the last gives only the value that v and A start from.
    Sums and not means: RMSProp's eps and the clipping of the gradient are not free of scale, so they belong together.
    """
    kept = torch.promote_types(output.value.dtype, torch.float32)
    logits, value = output.logits[:, :-1].to(kept), output.value.to(kept)
    action = unroll.action.unsqueeze(-1)
    log_policy = logits.log_softmax(-1)
    log_action = log_policy.gather(-1, action).squeeze(-1)
    log_behaviour = unroll.logits.to(kept).log_softmax(-1).gather(-1, action).squeeze(-1)
    # what action t brought comes with observation t+1
    reward = unroll.reward[:, 1:].to(kept).clamp(-config.reward_clip, config.reward_clip)
    discount = config.discount * (~unroll.done[:, 1:]).to(kept)
    log_weight = (log_action - log_behaviour).detach()
    target, advantage = vtrace(
        log_weight,
        reward,
        discount,
        value[:, :-1].detach(),
        value[:, -1].detach(),
        rho_bar=config.rho_bar,
        c_bar=config.c_bar,
        pg_rho_bar=config.pg_rho_bar,
        trace=config.trace,
    )
    policy = -(advantage * log_action).sum()
    value_loss = config.value_cost * 0.5 * (target - value[:, :-1]).square().sum()
    negative_entropy = (log_policy.exp() * log_policy).sum(-1)
    entropy_loss = config.entropy_cost * negative_entropy.sum()
    weight = log_weight.exp()
    return ImpalaLoss(
        total=policy + value_loss + entropy_loss,
        policy=policy,
        value=value_loss,
        entropy_loss=entropy_loss,
        entropy=-negative_entropy.mean(),
        weight=weight.mean(),
        cut=(weight > config.rho_bar * (1 + ROUNDING)).to(kept).mean(),
    )
