import pytest
import torch

from rfwp.ops.state import forget, state_dtype
from tests.ops.cases import Case, every_op, example


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_states_are_float32_at_least(dtype: torch.dtype) -> None:
    assert state_dtype(dtype) == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_forget_zeroes_the_rows_that_reset_names() -> None:
    state, reset = torch.full((3, 2, 2), torch.nan), torch.tensor([[False, True], [True, False], [True, True]])
    forgotten = forget(state, reset, 1)
    assert torch.equal(forgotten[[0, 2]], torch.zeros(2, 2, 2))
    assert forgotten[1].isnan().all()
    assert forget(state, None, 1) is state


@every_op
def test_a_list_serves_as_state_where_a_tuple_does(case: Case) -> None:
    x = example(case, 7, grad=False)
    given = x.state[0] if len(x.state) == 1 else list(x.state)
    y, _ = case.op(*x.inputs, state=given, **case.options)
    assert torch.equal(y, case(x.inputs, x.state, backend="auto")[0])
