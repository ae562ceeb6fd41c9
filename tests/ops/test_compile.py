"""The ops as torch.library knows them: traced, compiled and differentiated without a graph break."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rfwp.errors import InvalidInput
from tests.ops.cases import Case, Example, assert_same, every_op, example, outputs_and_gradients
from tests.tolerances import FLOAT64


def _forward(case: Case) -> Callable[..., tuple[Tensor, ...]]:
    return getattr(torch.ops.rfwp, case.op.__name__).default


def _arguments(case: Case, x: Example, reset: Tensor | None, keep: bool) -> tuple:
    return *x.leaves(), reset, keep, *case.options.values(), "plain"


@every_op
@pytest.mark.parametrize(("T", "with_reset"), [(1, False), (33, True)], ids=["", "reset"])
def test_forward_passes_opcheck(case: Case, T: int, with_reset: bool) -> None:
    x = example(case, T)
    torch.library.opcheck(_forward(case), _arguments(case, x, x.reset if with_reset else None, True))


@every_op
def test_forward_without_checkpoints_passes_opcheck(case: Case) -> None:
    x = example(case, 33, grad=False)
    torch.library.opcheck(_forward(case), _arguments(case, x, x.reset, False))


@every_op
@pytest.mark.parametrize("sizes", [{}, {"B": 1, "H": 1, "K": 1, "V": 1}], ids=["", "all-one"])
def test_backward_passes_opcheck(case: Case, sizes: dict[str, int]) -> None:
    x = example(case, 33 if not sizes else 1, grad=False, **sizes)
    y, *rest = _forward(case)(*_arguments(case, x, x.reset, True))
    state, checkpoints = rest[: len(x.state)], rest[len(x.state) :]
    looks_at_y = [y] if len(x.state) > 1 else []
    arguments = (y, *state, *x.leaves(), x.reset, *looks_at_y, *checkpoints, *case.options.values(), "plain")
    torch.library.opcheck(getattr(torch.ops.rfwp, f"{case.op.__name__}_backward").default, arguments)


@every_op
def test_one_compilation_serves_all_lengths(case: Case) -> None:
    """All lengths with more than one checkpoint: the compiler always treats a size of 1 as a case of its own."""
    torch.compiler.reset()

    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=True)
    def run(inputs: tuple[Tensor, ...], state: tuple[Tensor, ...], reset: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        y, final = case(inputs, state, reset, "auto")
        return y * 2, final

    with torch._dynamo.config.patch(error_on_recompile=True):
        for T in (33, 70):
            x = example(case, T)
            compiled = outputs_and_gradients(lambda x=x: run(x.inputs, x.state, x.reset), x.leaves())

            def eager(x: Example = x) -> tuple[Tensor, tuple[Tensor, ...]]:
                y, final = case(x.inputs, x.state, x.reset)
                return y * 2, final

            assert_same(compiled, outputs_and_gradients(eager, x.leaves()), FLOAT64)


@every_op
def test_shapes_alone_run_on_meta(case: Case) -> None:
    x = example(case, 33)
    y, state = case(x.inputs, x.state, x.reset)
    y_meta, state_meta = case([a.to("meta") for a in x.inputs], [s.to("meta") for s in x.state], x.reset.to("meta"), "auto")
    assert y_meta.is_meta
    assert [(a.shape, a.dtype) for a in (y_meta, *state_meta)] == [(a.shape, a.dtype) for a in (y, *state)]


@every_op
def test_second_derivatives_are_refused_where_only_the_reference_has_them(case: Case) -> None:
    x = example(case, 3)
    for backend in ("reference", "plain"):
        y, _ = case(x.inputs, x.state, x.reset, backend)
        (dv,) = torch.autograd.grad(y.square().sum(), x.inputs[2], create_graph=True)
        if backend == "reference":
            assert torch.autograd.grad(dv.square().sum(), x.inputs[2])[0].isfinite().all()
        else:
            with pytest.raises(InvalidInput, match="no second derivatives; backend='reference' has them"):
                torch.autograd.grad(dv.square().sum(), x.inputs[2])
