"""Every compiled kernel against its float64 reference: outputs, final states and every gradient."""

import pytest
import torch

from rfwp.ops import cpu
from tests.ops.cases import CASES, Case, Example, every_case, every_op, example
from tests.ops.cpu.kernels import arriving_gradients, assert_close, run, truth
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT64

SHAPES = [  # T, B, H, K, V: lanes not full, several groups, sizes that are not multiples of a block of rows
    (1, 1, 1, 3, 3),
    (7, 9, 2, 8, 3),
    (33, 3, 3, 3, 8),
    (70, 2, 2, 16, 16),
]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "T{}-B{}-H{}-K{}-V{}".format(*s))


def draw(case: Case, shape: tuple[int, ...], dtype: torch.dtype) -> Example:
    T, B, H, K, V = shape
    return example(case, T, dtype=dtype, grad=False, B=B, H=H, K=K, V=V)


@every_shape
@every_case
def test_float64_kernel_is_the_reference(case, shape):
    given = draw(case, shape, torch.float64)
    arriving = arriving_gradients(case, given)
    for reset in (None, given.reset):
        assert_close(run(case, given, reset, arriving), truth(case, given, reset, arriving), FLOAT64)


@every_shape
@every_case
def test_float32_kernel_is_the_reference(case, shape):
    given = draw(case, shape, torch.float32)
    arriving = arriving_gradients(case, given)
    found = run(case, given, given.reset, arriving)
    assert all(x.dtype == torch.float32 and x.is_contiguous() for x in found)
    assert_close(found, truth(case, given, given.reset, arriving), FLOAT32)


@every_op
def test_bfloat16_is_computed_in_float32(case):
    """Only inputs and outputs are rounded; states and their gradients stay float32."""
    given = draw(case, (33, 2, 2, 8, 8), torch.bfloat16)
    arriving = arriving_gradients(case, given)
    found = run(case, given, given.reset, arriving)
    single = Example(tuple(x.float() for x in given.inputs), given.state, given.reset)
    expected = run(case, single, given.reset, [g.float() for g in arriving])
    n = 1 + len(given.state)
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        is_state = 0 < i < n or i >= len(found) - len(given.state)
        assert a.dtype == (torch.float32 if is_state else torch.bfloat16)
        if is_state:
            assert torch.equal(a, b)
        else:
            torch.testing.assert_close(a.float(), b, **BFLOAT16)


@every_op
def test_inputs_with_any_strides_give_the_same_bits(case):
    given = draw(case, (7, 3, 2, 5, 4), torch.float32)
    arriving = arriving_gradients(case, given)

    def strided(x, how):
        if how == "slice":
            return torch.cat((x, x), dim=-1)[..., : x.shape[-1]]
        return x.transpose(0, -1).contiguous().transpose(0, -1)

    expected = run(case, given, given.reset, arriving)
    for how in ("slice", "last"):
        inputs = tuple(strided(x, how) for x in given.inputs)
        moved = Example(inputs, tuple(strided(x, how) for x in given.state), given.reset)
        found = run(case, moved, strided(given.reset, how), [strided(g, how) for g in arriving])
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    # a sum's gradient is one number seen everywhere
    ones = [torch.ones(()).expand(g.shape) for g in arriving]
    for a, b in zip(run(case, given, None, ones), run(case, given, None, [g.clone() for g in ones]), strict=True):
        assert torch.equal(a, b)


@every_case
def test_nothing_that_was_given_is_changed(case):
    given = draw(case, (7, 2, 2, 4, 4), torch.float32)
    arriving = arriving_gradients(case, given)
    before = [x.clone() for x in (*given.leaves(), given.reset, *arriving)]
    run(case, given, given.reset, arriving)
    assert all(torch.equal(a, b) for a, b in zip((*given.leaves(), given.reset, *arriving), before, strict=True))


@every_op
def test_a_reset_forgets_even_nan(case):
    given = draw(case, (7, 2, 2, 4, 4), torch.float32)
    broken = Example(given.inputs, tuple(torch.full_like(s, torch.nan) for s in given.state), given.reset)
    reset = torch.zeros(2, 7, dtype=torch.bool)
    reset[:, 0] = True
    for a, b in zip(
        run(case, broken, reset, arriving_gradients(case, given)),
        run(case, given, reset, arriving_gradients(case, given)),
        strict=True,
    ):
        assert torch.equal(a, b)


@every_op
def test_nan_in_one_row_stays_in_that_row(case):
    given = draw(case, (7, 9, 2, 4, 4), torch.float32)
    value = list(case.inputs).index("v")
    inputs = [x.clone() for x in given.inputs]
    inputs[value][0, 3] = torch.nan
    name, options = case.op.__name__, list(case.options.values())
    y = cpu.OPS[name].forward(*inputs, *given.state, None, False, *options)[0]
    clean = cpu.OPS[name].forward(*given.inputs, *given.state, None, False, *options)[0]
    assert y[0, 3].isnan().any()
    assert torch.equal(y[1:], clean[1:])
    assert torch.equal(y[0, :3], clean[0, :3])


@every_op
def test_without_a_backward_pass_nothing_is_kept(case):
    given = draw(case, (33, 2, 1, 4, 4), torch.float32)
    name, options = case.op.__name__, list(case.options.values())
    module, n = cpu.OPS[name], 1 + len(given.state)
    for keep in (False, True):
        kept = module.forward(*given.inputs, *given.state, None, keep, *options)[n:]
        for starts, state in zip(kept, given.state, strict=True):
            count = module.checkpoints(33) if keep else 0
            assert starts.shape == (2, count, *state.shape[1:])


def test_every_op_has_a_kernel():
    assert set(cpu.OPS) == {case.op.__name__ for case in CASES}
