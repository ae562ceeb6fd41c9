import pytest
import torch

from rfwp.errors import InvalidInput
from rfwp.layers.state import check_state, detach, flat, select

NESTED = ({"W": torch.arange(12.0).view(3, 4).requires_grad_()}, (), {"position": torch.arange(3), "core": (torch.ones(3, 1),)})


def test_detach_cuts_every_tensor_and_keeps_the_nesting():
    state = detach(NESTED)
    assert not state[0]["W"].requires_grad
    assert torch.equal(state[0]["W"], NESTED[0]["W"])
    assert state[1] == ()
    assert set(state[2]) == {"position", "core"}
    assert NESTED[0]["W"].requires_grad


@pytest.mark.parametrize("rows", [torch.tensor([2, 0]), torch.tensor([True, False, True]), slice(1, 3), [0, 1]])
def test_select_takes_rows_of_every_tensor(rows):
    state = select(NESTED, rows)
    assert torch.equal(state[0]["W"], NESTED[0]["W"][rows])
    assert torch.equal(state[2]["position"], torch.arange(3)[rows])
    assert state[2]["core"][0].shape == (2, 1)


def test_a_tuple_of_rows_is_a_list_of_rows():
    assert select(NESTED, (0, 1))[0]["W"].shape == (2, 4)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (0, "rows=0; use indices like [0, 2], a mask of the batch, or a slice"),
        ([0, 3], "rows=[0, 3] do not fit this state: index 3 is out of bounds"),
        (torch.tensor([True, False]), "do not fit this state"),
        ([0.5], "rows=[0.5]; use indices"),
    ],
)
def test_rows_that_a_state_does_not_have_are_one_line(rows, message):
    with pytest.raises(InvalidInput) as error:
        select(NESTED, rows)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_flat_lists_every_tensor_once_in_order():
    expected = [NESTED[0]["W"], NESTED[2]["position"], NESTED[2]["core"][0]]
    assert [id(tensor) for tensor in flat(NESTED)] == [id(tensor) for tensor in expected]
    assert flat(None) == []


def test_no_state_stays_no_state():
    assert detach(None) is None
    assert select(None, [0]) is None


def test_what_is_no_state_is_refused():
    with pytest.raises(InvalidInput, match="made of tensors in dicts and tuples, saw int"):
        detach({"W": 3})


def test_a_fitting_state_passes():
    like = torch.zeros(2, 5, dtype=torch.bfloat16)
    for dtype in (torch.bfloat16, torch.float32):
        check_state("FWP", {"W": torch.zeros(2, 3, dtype=dtype)}, {"W": (2, 3)}, like)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"W": 0, "R": 0, "y": 0}, "FWP: this state has W, R, y; the layer expects W; it comes from another model"),
        ({}, "this state has nothing; the layer expects W"),
        ((torch.zeros(2, 3),), "this state is a tuple; the layer expects a dict with W"),
        ({"W": 3}, "state W is a int, expected (2, 3)"),
        ({"W": torch.zeros(2, 4)}, "state W has shape (2, 4), expected (2, 3); it comes from another model or batch size"),
        ({"W": torch.zeros(2, 3).double()}, "state W is torch.float64, expected torch.float32 for inputs of torch.float32"),
        ({"W": torch.zeros(2, 3).long()}, "state W is torch.int64"),
        ({"W": torch.zeros(2, 3, device="meta")}, "state W is on meta but the input is on cpu"),
    ],
)
def test_a_foreign_state_is_named_in_one_line(state, message):
    with pytest.raises(InvalidInput) as caught:
        check_state("FWP", state, {"W": (2, 3)}, torch.zeros(2, 5))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
