"""Kernels of the recurrent ops against the float64 reference."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rfwp.ops import gpu
from tests.ops.cases import CASES, Case, Example, assert_same, example


def cases(op: str) -> list[Case]:
    return [case for case in CASES if case.op.__name__ == op]


def every(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.name)


def small(case: Case, T: int, dtype: torch.dtype = torch.float32, **sizes: int) -> Example:
    """Keys on the simplex, as the ops that take them activated expect them; drawn so that bfloat16 holds them exactly."""
    x = example(case, T, dtype=torch.bfloat16, grad=False, **({"B": 2, "H": 2} | sizes))
    activated = case.op.__name__ != "recurrent_delta"
    inputs = [a.softmax(-1) if name == "k" and activated else a for name, a in zip(case.inputs, x.inputs, strict=True)]
    return Example(tuple(a.to(dtype) for a in inputs), x.state, x.reset)


def run(case: Case, x: Example, reset: Tensor | None) -> tuple[list[Tensor], list[Tensor]]:
    """y and the final state, and the gradients of all inputs and states, for the gradients that `arriving` draws."""
    kernel, options = gpu.OPS[case.op.__name__], case.options.values()
    y, *rest = kernel.forward(*x.inputs, *x.state, reset, True, *options)
    outputs, saved = [y, *rest[: len(x.state)]], rest[len(x.state) :]
    assert all(s.shape[1] == kernel.checkpoints(y.shape[1]) for s in saved)
    return outputs, list(kernel.backward(*arriving(outputs), *x.inputs, *x.state, reset, y, *saved, *options))


def reference(case: Case, x: Example, reset: Tensor | None) -> tuple[list[Tensor], list[Tensor]]:
    leaves = [a.double().requires_grad_() for a in x.leaves()]
    n = len(x.inputs)
    y, state = case(leaves[:n], leaves[n:], reset, "reference")
    outputs = [y, *state]
    return outputs, list(torch.autograd.grad(outputs, leaves, arriving(outputs), materialize_grads=True))


def arriving(outputs: list[Tensor]) -> list[Tensor]:
    """Gradients of the outputs, the same in every dtype."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(x.shape, generator=generator).bfloat16().to(x.dtype) for x in outputs]


def assert_equals_reference(case: Case, x: Example, reset: Tensor | None, tolerance: dict[str, float]) -> None:
    (outputs, gradients), expected = run(case, x, reset), reference(case, x, reset)
    assert [g.dtype for g in gradients] == [a.dtype for a in x.leaves()]
    assert all(a.is_contiguous() for a in (*outputs, *gradients))
    for ours, theirs in zip((*outputs, *gradients), (*expected[0], *expected[1]), strict=True):
        assert_same(ours.double(), theirs, tolerance)


def sliced(case: Case, x: Example) -> Example:
    """The same inputs as slices of one projection, as layers make them."""
    steps = [n for n, p in case.inputs.items() if "T" in p.split()]
    parts = [a if a.dim() == x.inputs[0].dim() else a.unsqueeze(-1) for a in x.inputs[: len(steps)]]
    slices = torch.cat(parts, dim=-1).split([a.shape[-1] for a in parts], dim=-1)
    views = [a.squeeze(-1) if n == "beta" else a for n, a in zip(steps, slices, strict=True)]
    return replace(x, inputs=(*views, *x.inputs[len(steps) :]))


def turned(x: Example) -> Example:
    """The same inputs with last strides that are not 1."""
    return replace(x, inputs=tuple(a.mT.contiguous().mT for a in x.inputs))
