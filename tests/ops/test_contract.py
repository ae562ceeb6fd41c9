"""What every op promises, whatever it computes."""

import pytest
import torch

from tests.ops.cases import Case, assert_same, every_backend, every_case, example, outputs_and_gradients
from tests.tolerances import BFLOAT16, FLOAT32, FLOAT64


@every_case
@pytest.mark.parametrize("T", [1, 7, 33, 70])
@pytest.mark.parametrize("with_reset", [False, True], ids=["", "reset"])
def test_plain_equals_reference(case: Case, T: int, with_reset: bool) -> None:
    x = example(case, T)
    reset = x.reset if with_reset else None
    plain = outputs_and_gradients(lambda: case(x.inputs, x.state, reset, "plain"), x.leaves())
    reference = outputs_and_gradients(lambda: case(x.inputs, x.state, reset, "reference"), x.leaves())
    assert_same(plain, reference, FLOAT64)


@every_case
def test_plain_equals_reference_in_float32(case: Case) -> None:
    x = example(case, 33, dtype=torch.float32)
    plain = outputs_and_gradients(lambda: case(x.inputs, x.state, x.reset, "plain"), x.leaves())
    reference = outputs_and_gradients(lambda: case(x.inputs, x.state, x.reset, "reference"), x.leaves())
    assert_same(plain, reference, FLOAT32)


@every_case
@every_backend
@pytest.mark.parametrize("cut", [1, 5, 32, 39])
def test_split_with_carried_state_equals_the_whole(case: Case, backend: str, cut: int) -> None:
    x = example(case, 40)

    def in_two() -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        first = [a[:, :cut] if "T" in p.split() else a for a, p in zip(x.inputs, case.inputs.values(), strict=True)]
        second = [a[:, cut:] if "T" in p.split() else a for a, p in zip(x.inputs, case.inputs.values(), strict=True)]
        y1, state = case(first, x.state, x.reset[:, :cut], backend)
        y2, state = case(second, state, x.reset[:, cut:], backend)
        return torch.cat((y1, y2), dim=1), state

    whole = outputs_and_gradients(lambda: case(x.inputs, x.state, x.reset, backend), x.leaves())
    assert_same(outputs_and_gradients(in_two, x.leaves()), whole, FLOAT64)


@every_case
@every_backend
def test_step_by_step_equals_the_whole(case: Case, backend: str) -> None:
    x = example(case, 7)

    def in_steps() -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        outputs, state = [], x.state
        for t in range(7):
            step = [a[:, t : t + 1] if "T" in p.split() else a for a, p in zip(x.inputs, case.inputs.values(), strict=True)]
            y, state = case(step, state, x.reset[:, t : t + 1], backend)
            outputs.append(y)
        return torch.cat(outputs, dim=1), state

    whole = outputs_and_gradients(lambda: case(x.inputs, x.state, x.reset, backend), x.leaves())
    assert_same(outputs_and_gradients(in_steps, x.leaves()), whole, FLOAT64)


@every_case
@every_backend
@pytest.mark.parametrize("t", [0, 3, 32, 39])
def test_reset_equals_a_fresh_start(case: Case, backend: str, t: int) -> None:
    x = example(case, 40, grad=False)
    reset = torch.zeros_like(x.reset)
    reset[:, t] = True
    rest = [a[:, t:] if "T" in p.split() else a for a, p in zip(x.inputs, case.inputs.values(), strict=True)]
    y, state = case(x.inputs, x.state, reset, backend)
    y_fresh, state_fresh = case(rest, None, None, backend)
    assert_same((y[:, t:], state), (y_fresh, state_fresh), FLOAT64)


@every_case
@every_backend
@pytest.mark.parametrize("t", [1, 20, 32])
def test_no_output_depends_on_the_future(case: Case, backend: str, t: int) -> None:
    now, other = example(case, 40, grad=False), example(case, 40, seed=1, grad=False)
    mixed = [
        torch.cat((a[:, :t], b[:, t:]), dim=1) if "T" in p.split() else a
        for a, b, p in zip(now.inputs, other.inputs, case.inputs.values(), strict=True)
    ]
    y, _ = case(now.inputs, now.state, now.reset, backend)
    y_mixed, _ = case(mixed, now.state, torch.cat((now.reset[:, :t], other.reset[:, t:]), dim=1), backend)
    assert_same(y_mixed[:, :t], y[:, :t], FLOAT64)
    assert not torch.allclose(y_mixed[:, t:], y[:, t:])


@every_case
@every_backend
def test_batch_rows_do_not_mix(case: Case, backend: str) -> None:
    x = example(case, 40, grad=False)
    y, state = case(x.inputs, x.state, x.reset, backend)
    for b in range(2):
        row = slice(b, b + 1)
        inputs = [a[row] if "B" in p.split() else a for a, p in zip(x.inputs, case.inputs.values(), strict=True)]
        alone = case(inputs, [s[row] for s in x.state], x.reset[row], backend)
        assert_same(alone, (y[row], tuple(s[row] for s in state)), FLOAT64)


@every_case
@every_backend
def test_bfloat16_input_keeps_float32_states(case: Case, backend: str) -> None:
    half = example(case, 40, dtype=torch.bfloat16)
    full = [a.detach().float().requires_grad_() for a in half.inputs]
    (y, *state), gradients = outputs_and_gradients(lambda: case(half.inputs, half.state, half.reset, backend), half.leaves())
    (y_full, *state_full), gradients_full = outputs_and_gradients(
        lambda: case(full, half.state, half.reset, backend), (*full, *half.state)
    )
    assert y.dtype == torch.bfloat16
    assert [s.dtype for s in state] == [torch.float32] * len(state)
    assert [g.dtype for g in gradients] == [x.dtype for x in half.leaves()]
    assert_same(state, state_full, FLOAT32)
    assert_same(y.float(), y_full, BFLOAT16)
    assert_same([g.float() for g in gradients], list(gradients_full), BFLOAT16)


@every_case
@every_backend
def test_autocast_does_not_reach_inside(case: Case, backend: str) -> None:
    x = example(case, 40, dtype=torch.float32)
    outside = outputs_and_gradients(lambda: case(x.inputs, x.state, x.reset, backend), x.leaves())
    with torch.autocast("cpu", torch.bfloat16):
        y, state = case(x.inputs, x.state, x.reset, backend)
    assert_same([y, *state], outside[0], FLOAT32)
    if backend == "plain":  # the backward pass of the reference is autograd's own
        with torch.autocast("cpu", torch.bfloat16):
            inside = outputs_and_gradients(lambda: case(x.inputs, x.state, x.reset, backend), x.leaves())
        assert_same(inside, outside, FLOAT32)


@every_case
@every_backend
def test_nan_in_a_forgotten_state_does_not_leak(case: Case, backend: str) -> None:
    x = example(case, 40)
    poison = [torch.full_like(s, torch.nan).requires_grad_() for s in x.state]
    reset = x.reset.clone()
    reset[:, 0] = True
    poisoned = outputs_and_gradients(lambda: case(x.inputs, poison, reset, backend), (*x.inputs, *poison))
    clean = outputs_and_gradients(lambda: case(x.inputs, x.state, reset, backend), x.leaves())
    assert_same(poisoned, clean, FLOAT64)


@every_case
def test_layout_in_memory_does_not_matter(case: Case) -> None:
    x = example(case, 33)
    strided = [a.detach().mT.contiguous().mT.requires_grad_() for a in x.leaves()]
    inputs, state = strided[: len(x.inputs)], strided[len(x.inputs) :]
    actual = outputs_and_gradients(lambda: case(inputs, state, x.reset.t().contiguous().t()), strided)
    assert_same(actual, outputs_and_gradients(lambda: case(x.inputs, x.state, x.reset), x.leaves()), FLOAT64)


@every_case
def test_no_uninitialised_memory_reaches_the_results(case: Case) -> None:
    x = example(case, 33)
    expected = outputs_and_gradients(lambda: case(x.inputs, x.state, x.reset), x.leaves())
    torch.use_deterministic_algorithms(True)  # fills every torch.empty with NaN
    try:
        actual = outputs_and_gradients(lambda: case(x.inputs, x.state, x.reset), x.leaves())
    finally:
        torch.use_deterministic_algorithms(False)
    assert_same(actual, expected, FLOAT64)


@every_case
@every_backend
def test_no_state_is_zeros(case: Case, backend: str) -> None:
    x = example(case, 7, grad=False)
    assert_same(
        case(x.inputs, None, x.reset, backend), case(x.inputs, [torch.zeros_like(s) for s in x.state], x.reset, backend), FLOAT64
    )


@every_case
@every_backend
def test_inputs_and_state_are_not_changed(case: Case, backend: str) -> None:
    x = example(case, 33)
    before = [a.detach().clone() for a in x.leaves()]
    outputs_and_gradients(lambda: case(x.inputs, x.state, x.reset, backend), x.leaves())
    assert_same([a.detach() for a in x.leaves()], before, {"rtol": 0, "atol": 0})


@every_case
def test_everything_may_have_size_one(case: Case) -> None:
    x = example(case, 1, B=1, H=1, K=1, V=1)
    expected = outputs_and_gradients(lambda: case(x.inputs, x.state, x.reset, "reference"), x.leaves())
    assert_same(outputs_and_gradients(lambda: case(x.inputs, x.state, x.reset, "auto"), x.leaves()), expected, FLOAT64)
