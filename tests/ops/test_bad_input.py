"""One line that says what was wrong, what was seen, what to do, for every mistake at the door of an op."""

import re

import pytest
import torch

from rfwp.errors import InvalidInput, UnknownName
from rfwp.ops import delta_lstm, delta_rnn
from tests.ops.cases import CASES, OPS, Case, every_op, example

every_argument = pytest.mark.parametrize(
    ("case", "argument"), [(case, i) for case in OPS for i in range(len(case.inputs))], ids=lambda x: getattr(x, "name", x)
)
every_state = pytest.mark.parametrize(
    ("case", "part"), [(case, i) for case in OPS for i in range(len(case.state))], ids=lambda x: getattr(x, "name", x)
)


def _message(case: Case, *arguments, **options) -> str:
    """What the op says; it must be one line that begins with the op's name."""
    with pytest.raises(InvalidInput) as caught:
        case(*arguments, **options)
    message = str(caught.value)
    assert message.startswith(f"{case.op.__name__}: ")
    assert "\n" not in message
    return message


@every_argument
def test_argument_with_a_dimension_too_many_is_named(case: Case, argument: int) -> None:
    inputs = list(example(case, 7).inputs)
    inputs[argument] = inputs[argument].unsqueeze(0)
    name = list(case.inputs)[argument]
    assert f"{name} has shape {tuple(inputs[argument].shape)}, expected" in _message(case, inputs)


@every_argument
def test_argument_of_another_size_is_named(case: Case, argument: int) -> None:
    inputs = list(example(case, 7).inputs)
    inputs[argument] = torch.cat((inputs[argument], inputs[argument]))
    name = list(case.inputs)[argument]
    message = _message(case, inputs)
    assert f"{name} has shape" in message or message.endswith(f"as in {name}")


@every_argument
def test_argument_of_another_dtype_is_named(case: Case, argument: int) -> None:
    inputs = list(example(case, 7).inputs)
    inputs[argument] = inputs[argument].float()
    name, first, *_ = list(case.inputs)[argument], *list(case.inputs)
    message = _message(case, inputs)
    assert f"{name} is torch.float32" in message or f"{first} is torch.float32" in message
    assert "convert one of them" in message


@every_argument
def test_argument_on_another_device_is_named(case: Case, argument: int) -> None:
    inputs = list(example(case, 7).inputs)
    inputs[argument] = inputs[argument].to("meta")
    name = list(case.inputs)[argument]
    assert re.search(rf"\b{name} is on meta", _message(case, inputs))


@every_op
def test_integers_are_refused(case: Case) -> None:
    inputs = [x.detach().long() for x in example(case, 7).inputs]
    assert f"{next(iter(case.inputs))} is torch.int64, expected a floating dtype" in _message(case, inputs)


@every_op
def test_unsupported_floats_are_refused(case: Case) -> None:
    inputs = [x.detach().to(torch.float8_e5m2) for x in example(case, 7).inputs]
    assert "float8_e5m2 is not supported; use float32" in _message(case, inputs)


@every_op
def test_empty_sequence_is_refused(case: Case) -> None:
    inputs = [x[:, :0] if "T" in p else x for x, p in zip(example(case, 7).inputs, case.inputs.values(), strict=True)]
    assert "T=0" in _message(case, inputs)


@every_state
def test_state_of_another_shape_is_named(case: Case, part: int) -> None:
    x = example(case, 7)
    state = list(x.state)
    state[part] = torch.cat((state[part], state[part]))
    name = list(case.state)[part] if len(state) > 1 else ""
    message = _message(case, x.inputs, state)
    assert f"state {name}".strip() + f" has shape {tuple(state[part].shape)}, expected {tuple(x.state[part].shape)}" in message


@every_state
def test_state_of_another_dtype_is_named(case: Case, part: int) -> None:
    x = example(case, 7)
    state = list(x.state)
    state[part] = state[part].float()
    assert "is torch.float32, expected torch.float64 for inputs of torch.float64" in _message(case, x.inputs, state)


@every_state
def test_state_on_another_device_is_named(case: Case, part: int) -> None:
    x = example(case, 7)
    state = list(x.state)
    state[part] = state[part].to("meta")
    assert "is on meta but the input is on cpu" in _message(case, x.inputs, state)


@pytest.mark.parametrize(
    ("case", "other"),
    [(case, other) for case in OPS for other in OPS if case.state != other.state],
    ids=lambda case: case.name,
)
def test_state_of_another_op_is_refused(case: Case, other: Case) -> None:
    x, foreign = example(case, 7), example(other, 7).state
    state = foreign[0] if len(foreign) == 1 else foreign
    with pytest.raises(InvalidInput, match=rf"^{case.op.__name__}: state.* expected"):
        case.op(*x.inputs, state=state)


@every_op
@pytest.mark.parametrize("wrong", [torch.zeros(2, 8, dtype=torch.bool), torch.zeros(7, 2, dtype=torch.bool), torch.tensor(True)])
def test_reset_of_another_shape_is_refused(case: Case, wrong: torch.Tensor) -> None:
    x = example(case, 7)
    assert f"reset has shape {tuple(wrong.shape)}, expected (B, T) = (2, 7)" in _message(case, x.inputs, None, wrong)


@every_op
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
def test_reset_of_another_dtype_is_refused(case: Case, dtype: torch.dtype) -> None:
    x = example(case, 7)
    assert "expected torch.bool; try reset.bool()" in _message(case, x.inputs, None, x.reset.to(dtype))


@every_op
def test_unknown_backend_gets_a_suggestion(case: Case) -> None:
    with pytest.raises(UnknownName, match=r"^unknown backend 'plian'; did you mean 'plain'\?$"):
        case(example(case, 7).inputs, backend="plian")


@pytest.mark.parametrize("op", [delta_rnn, delta_lstm])
@pytest.mark.parametrize("version", ["E", "b", ""])
def test_unknown_version_lists_the_known_ones(op, version: str) -> None:
    case = next(c for c in CASES if c.op is op)
    known = ", ".join(c.options["version"] for c in CASES if c.op is op)
    with pytest.raises(UnknownName, match=rf"^unknown version of {op.__name__} '{version}'; known: {known}$"):
        op(*example(case, 7).inputs, version=version)
