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


def unactivated(case: Case, x: Example) -> Example:
    """Keys and learning rates of any size, as they come before softmax and sigmoid."""
    generator = torch.Generator().manual_seed(2)
    names = list(case.inputs)
    drawn = [torch.randn(a.shape, generator=generator).bfloat16().to(a.dtype) for a in x.inputs]
    inputs = [d if name in ("k", "beta") else a for name, d, a in zip(names, drawn, x.inputs, strict=True)]
    return replace(x, inputs=tuple(inputs))


def run(
    case: Case, x: Example, reset: Tensor | None, out: tuple[Tensor, ...] | None = None, **raw: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """y and the final state, and the gradients of all inputs and states, for the gradients that `arriving` draws.

    raw=True: k and beta come before their activations. out: where the gradients of the inputs go.
    """
    kernel, options = gpu.OPS[case.op.__name__], case.options.values()
    y, *rest = kernel.forward(*x.inputs, *x.state, reset, True, *options, **raw)
    outputs, saved = [y, *rest[: len(x.state)]], rest[len(x.state) :]
    assert all(s.shape[1] == kernel.checkpoints(y.shape[1]) for s in saved[:-1])
    sizes = (*y.shape[:3], *x.state[0].shape[:1:-1]) if case.op.__name__ == "recurrent_delta" else y.shape
    assert saved[-1].shape == (kernel.trace_size(*sizes, *options),)
    return outputs, list(kernel.backward(*arriving(outputs), *x.inputs, *x.state, reset, y, *saved, *options, **raw, out=out))


def reference(case: Case, x: Example, reset: Tensor | None, raw: bool = False) -> tuple[list[Tensor], list[Tensor]]:
    leaves = [a.double().requires_grad_() for a in x.leaves()]
    n = len(x.inputs)
    inputs = leaves[:n]
    if raw:
        z, k, v, beta = inputs
        inputs = [z, k.softmax(-1), v, beta.sigmoid()]
    y, state = case(inputs, leaves[n:], reset, "reference")
    outputs = [y, *state]
    return outputs, list(torch.autograd.grad(outputs, leaves, arriving(outputs), materialize_grads=True))


def arriving(outputs: list[Tensor]) -> list[Tensor]:
    """Gradients of the outputs, the same in every dtype."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(x.shape, generator=generator).bfloat16().to(x.dtype) for x in outputs]


def assert_equals_reference(case: Case, x: Example, reset: Tensor | None, tolerance: dict[str, float], **raw: bool) -> None:
    (outputs, gradients), expected = run(case, x, reset, **raw), reference(case, x, reset, **raw)
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


def views_of_one(case: Case, x: Example) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A tensor full of NaN with room for the gradients of the program and one column more, and the views that they go to."""
    steps = [a for a, p in zip(x.inputs, case.inputs.values(), strict=True) if "T" in p.split()]
    widths = [a.shape[-1] if a.dim() == steps[0].dim() else 1 for a in steps]
    whole = steps[0].new_full((*steps[0].shape[:-1], sum(widths) + 1), float("nan"))
    *vectors, beta, _ = whole.split([*widths, 1], dim=-1)
    return whole, (*vectors, beta.squeeze(-1))


def turned(x: Example) -> Example:
    """The same inputs with last strides that are not 1."""
    return replace(x, inputs=tuple(a.mT.contiguous().mT for a in x.inputs))
