"""Kernels called as the ops call them, and the truth: autograd through the float64 reference."""

from collections.abc import Sequence

import torch
from torch import Tensor

from rfwp.ops import cpu
from tests.ops.cases import Case, Example


def run(case: Case, example: Example, reset: Tensor | None, arriving: Sequence[Tensor]) -> list[Tensor]:
    """y, final states and all gradients of the compiled kernel."""
    name, options = case.op.__name__, list(case.options.values())
    inputs, state = ([x.detach() for x in xs] for xs in (example.inputs, example.state))
    n = 1 + len(state)
    found = cpu.OPS[name].forward(*inputs, *state, reset, True, *options)
    kept = found[n:] if name in ("sum", "delta") else (found[0], *found[n:])
    return [*found[:n], *cpu.OPS[name].backward(*arriving, *inputs, *state, reset, *kept, *options)]


def truth(case: Case, example: Example, reset: Tensor | None, arriving: Sequence[Tensor]) -> list[Tensor]:
    leaves = [x.detach().double().requires_grad_() for x in example.leaves()]
    n = len(example.inputs)
    y, final = case(leaves[:n], leaves[n:], reset, backend="reference")
    outputs = [y, *final]
    gradients = torch.autograd.grad(outputs, leaves, [g.double() for g in arriving])
    return [x.detach() for x in (*outputs, *gradients)]


def arriving_gradients(case: Case, example: Example) -> list[Tensor]:
    y, final = case([x.detach() for x in example.inputs], [x.detach() for x in example.state], backend="reference")
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(x.shape, generator=generator).bfloat16().to(x.dtype) for x in (y, *final)]


def assert_close(actual: Sequence[Tensor], expected: Sequence[Tensor], tolerance: dict[str, float]) -> None:
    """Relative to the largest number of each tensor: a sum of large terms cannot be closer where it happens to be small."""
    for a, b in zip(actual, expected, strict=True):
        scale = b.abs().max().clamp(min=1)
        torch.testing.assert_close(a.double() / scale, b / scale, **tolerance)
