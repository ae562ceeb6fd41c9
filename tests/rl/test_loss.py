import math
from dataclasses import replace

import pytest
import torch

from rfwp.config import ImpalaConfig
from rfwp.models import AgentOutput
from rfwp.rl import Unroll, impala_loss, vtrace
from tests.tolerances import FLOAT64

B, T, A = 2, 6, 3


def some_unroll(seed=0):
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    done = torch.rand(B, T + 1, generator=generator) < 0.3
    action = torch.randint(0, A, (B, T), generator=generator)
    unroll = Unroll(torch.zeros(B, T + 1), 3 * noise(B, T + 1), done, action, noise(B, T, A), ())
    return AgentOutput(noise(B, T + 1, A).requires_grad_(), noise(B, T + 1).requires_grad_()), unroll


def test_equals_the_sum_written_out_with_the_authors_weights():
    output, unroll = some_unroll()
    found = impala_loss(output, unroll, ImpalaConfig())
    log_policy, log_behaviour = output.logits.log_softmax(-1).tolist(), unroll.logits.log_softmax(-1).tolist()
    policy = value = entropy = 0.0
    for b in range(B):
        actions = unroll.action[b].tolist()
        log_action = [log_policy[b][t][a] for t, a in enumerate(actions)]
        log_weight = [log_action[t] - log_behaviour[b][t][a] for t, a in enumerate(actions)]
        rewards = [max(-1.0, min(1.0, r)) for r in unroll.reward[b, 1:].tolist()]
        discounts = [0.0 if d else 0.99 for d in unroll.done[b, 1:].tolist()]
        V = output.value[b].tolist()
        rows = [torch.tensor([x], dtype=torch.float64) for x in (log_weight, rewards, discounts, V[:-1])]
        target, advantage = (x[0].tolist() for x in vtrace(*rows, torch.tensor(V[-1:], dtype=torch.float64)))
        policy -= sum(a * log for a, log in zip(advantage, log_action, strict=True))
        value += sum(0.5 * (0.5 * (target[t] - V[t]) ** 2) for t in range(T))
        entropy += 0.01 * sum(math.exp(log) * log for row in log_policy[b][:-1] for log in row)
    expected = {"policy": policy, "value": value, "entropy_loss": entropy, "total": policy + value + entropy}
    expected["entropy"] = -entropy / 0.01 / (B * T)
    for name, number in expected.items():
        torch.testing.assert_close(getattr(found, name).item(), number, **FLOAT64)


def test_gradient_treats_targets_and_advantages_as_numbers():
    output, unroll = some_unroll()
    config = ImpalaConfig(entropy_cost=0.0)
    logits, value = torch.autograd.grad(impala_loss(output, unroll, config).total, output)
    # the last observation gives only the value to start from
    assert not logits[:, -1].any()
    assert not value[:, -1].any()
    chosen = torch.nn.functional.one_hot(unroll.action, A)
    policy = output.logits[:, :-1].softmax(-1)
    # d log π(a) / d logits = onehot(a) - π; so the gradient over that is -A, whichever the action
    advantage = -(logits[:, :-1] / (chosen - policy)).detach()
    torch.testing.assert_close(advantage, advantage[..., :1].expand(B, T, A), **FLOAT64)
    without = torch.autograd.grad(impala_loss(output, unroll, replace(config, value_cost=0.0)).total, output)
    torch.testing.assert_close(without[0], logits, **FLOAT64)
    assert not without[1].any()


def test_a_batch_twice_has_twice_the_loss():
    output, unroll = some_unroll()
    once = impala_loss(output, unroll, ImpalaConfig())
    double = Unroll(
        *(torch.cat((x, x)) for x in (unroll.observation, unroll.reward, unroll.done, unroll.action, unroll.logits)), ()
    )
    twice = impala_loss(AgentOutput(*(torch.cat((x, x)) for x in output)), double, ImpalaConfig())
    torch.testing.assert_close(twice.total, 2 * once.total, **FLOAT64)
    torch.testing.assert_close(twice.entropy, once.entropy, **FLOAT64)


def test_weights_above_their_limit_are_counted():
    output, unroll = some_unroll()
    same = replace(unroll, logits=output.logits[:, :-1].detach())
    found = impala_loss(output, same, ImpalaConfig())
    assert found.weight.item() == pytest.approx(1)
    assert found.cut == 0
    # an actor that all but never took these actions
    rare = unroll.logits.scatter(-1, unroll.action.unsqueeze(-1), -30.0)
    assert impala_loss(output, replace(unroll, logits=rare), ImpalaConfig()).cut == 1
