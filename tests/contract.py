"""The contract of every layer, core and model, as claims about `y, state = module(*inputs, state, reset)`.

Inputs are tensors (B, T, ...); everything is compared in float64.
"""

import torch
from torch import Tensor

from rfwp.layers.state import detach, map_state, select
from tests.tolerances import FLOAT64


def leaves(nested) -> list[Tensor]:
    """The tensors of outputs or states, in order."""
    if isinstance(nested, Tensor):
        return [nested]
    parts = [nested[name] for name in sorted(nested)] if isinstance(nested, dict) else list(nested)
    return [leaf for part in parts for leaf in leaves(part)]


def assert_same(one, other) -> None:
    assert len(leaves(one)) == len(leaves(other))
    for a, b in zip(leaves(one), leaves(other), strict=True):
        torch.testing.assert_close(a, b, **FLOAT64)


def some_resets(B: int, T: int) -> Tensor:
    """Row 0 resets at its first step, row 1 in the middle and at the end, row 2 never."""
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[0, 0] = reset[1, T // 2] = reset[1, T - 1] = True
    return reset


def part(inputs, start, end=None):
    return [x[:, start:end] for x in inputs]


def check_split(module, inputs) -> None:
    """A sequence split anywhere with carried state equals the whole, resets included; nothing given is changed."""
    B, T = inputs[0].shape[:2]
    for reset in (None, some_resets(B, T)):
        whole, final = module(*inputs, None, reset)
        for t in (1, T // 2, T // 2 + 1, T - 1):
            cut = (None, None) if reset is None else (reset[:, :t], reset[:, t:])
            first, state = module(*part(inputs, 0, t), None, cut[0])
            copy = map_state(torch.clone, state)
            second, last = module(*part(inputs, t), state, cut[1])
            both = [torch.cat(pair, dim=1) for pair in zip(leaves(first), leaves(second), strict=True)]
            assert_same(both, leaves(whole))
            assert_same(last, final)
            assert all(torch.equal(a, b) for a, b in zip(leaves(state), leaves(copy), strict=True))


def check_step(module, inputs) -> None:
    """Step by step equals the whole, resets included."""
    B, T = inputs[0].shape[:2]
    for reset in (None, some_resets(B, T)):
        whole, final = module(*inputs, None, reset)
        state, steps = None, []
        for t in range(T):
            y, state = module.step(*[x[:, t] for x in inputs], state, None if reset is None else reset[:, t])
            steps.append(leaves(y))
        assert_same([torch.stack(column, dim=1) for column in zip(*steps, strict=True)], leaves(whole))
        assert_same(state, final)


def check_reset(module, inputs) -> None:
    """A reset at t equals a fresh start at t, for the rows that reset and only for them."""
    B, T = inputs[0].shape[:2]
    plain, _ = module(*inputs)
    for t in (0, T // 2, T - 1):
        reset = torch.zeros(B, T, dtype=torch.bool)
        reset[1, t] = True
        y, _ = module(*inputs, None, reset)
        fresh, _ = module(*part(inputs, t))
        for a, b, c in zip(leaves(y), leaves(plain), leaves(fresh), strict=True):
            torch.testing.assert_close(a[[0, 2]], b[[0, 2]], **FLOAT64)
            torch.testing.assert_close(a[1, :t], b[1, :t], **FLOAT64)
            torch.testing.assert_close(a[1, t:], c[1], **FLOAT64)


def check_causal(module, inputs) -> None:
    """What comes later changes nothing earlier."""
    T = inputs[0].shape[1]
    y, _ = module(*inputs)
    for t in (1, T // 2, T - 1):
        changed = [torch.cat((x[:, :t], x[:, t:].flip(0)), dim=1) for x in inputs]
        z, _ = module(*changed)
        for a, b in zip(leaves(y), leaves(z), strict=True):
            torch.testing.assert_close(a[:, :t], b[:, :t], **FLOAT64)
            assert not torch.allclose(a[:, t:], b[:, t:])


def check_rows(module, inputs) -> None:
    """Batch rows do not mix, in outputs or in states."""
    rows = torch.tensor([2, 0])
    T = inputs[0].shape[1]
    y, state = module(*part(inputs, 0, T // 2))
    z, _ = module(*part(inputs, T // 2), state)
    some, some_state = module(*[x[rows] for x in part(inputs, 0, T // 2)])
    assert_same(some_state, select(state, rows))
    assert_same(some, [leaf[rows] for leaf in leaves(y)])
    later, _ = module(*[x[rows] for x in part(inputs, T // 2)], select(state, rows))
    assert_same(later, [leaf[rows] for leaf in leaves(z)])


def check_gradients(module, inputs) -> None:
    """Split with carried state gives the gradients of the whole; so they pass through both ends of the state."""
    T = inputs[0].shape[1]
    parameters = list(module.parameters())
    torch.manual_seed(3)
    whole, _ = module(*inputs)
    weights = [torch.randn_like(leaf[:, T // 2 :]) for leaf in leaves(whole)]

    def gradients(later):
        total = sum((w * leaf).sum() for w, leaf in zip(weights, later, strict=True))
        return torch.autograd.grad(total, parameters, allow_unused=True, materialize_grads=True)

    _, state = module(*part(inputs, 0, T // 2))
    split, _ = module(*part(inputs, T // 2), state)
    assert_same(gradients(leaves(split)), gradients([leaf[:, T // 2 :] for leaf in leaves(whole)]))


def check_gradient_of_state(module, inputs) -> None:
    """Gradients reach every floating tensor of the initial state."""
    T = inputs[0].shape[1]
    _, state = module(*part(inputs, 0, T // 2))
    state = map_state(lambda s: s.requires_grad_() if s.is_floating_point() else s, detach(state))
    y, _ = module(*part(inputs, T // 2), state)
    floating = [s for s in leaves(state) if s.is_floating_point()]
    assert floating
    for gradient in torch.autograd.grad(sum(leaf.square().sum() for leaf in leaves(y)), floating):
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0


STATEFUL = [check_split, check_step, check_reset, check_causal, check_rows, check_gradients, check_gradient_of_state]
STATELESS = [check_split, check_step, check_reset, check_causal, check_rows]
