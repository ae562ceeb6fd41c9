"""Strides that are written down are those of the views they stand for."""

import pytest
import torch

from rfwp.ops.gpu.layout import output_strides, rate_strides, room, sizes_of, vector_strides

SLICE = torch.zeros(2, 5, 3, 25)[..., 8:16]
TENSORS = {"contiguous": torch.zeros(2, 5, 3, 8), "slice": SLICE, "heads first": torch.zeros(2, 3, 5, 8).transpose(1, 2)}
every_layout = pytest.mark.parametrize("x", TENSORS.values(), ids=TENSORS)


@every_layout
def test_vectors_without_gates_have_the_strides_of_one_gate(x):
    assert vector_strides(x) == x.unsqueeze(3).stride()


@every_layout
def test_rates_without_gates_have_the_strides_of_one_gate(x):
    assert rate_strides(x[..., 0]) == x[..., 0].unsqueeze(3).stride()


@every_layout
@pytest.mark.parametrize("G", [1, 3])
def test_outputs_have_the_strides_of_their_heads_in_two_levels(x, G):
    assert output_strides(x, G) == x.unflatten(2, (3 // G, G)).stride()


def test_gates_are_taken_as_they_are():
    u = torch.zeros(2, 5, 4, 3, 25)
    assert vector_strides(u[..., :8]) == u.stride()
    assert rate_strides(u[..., 24]) == u.stride()[:4]
    assert sizes_of(u[..., :8], u[..., :6]) == (2, 5, 12, 3, 8, 6)
    assert sizes_of(SLICE, SLICE[..., :6]) == (2, 5, 3, 1, 8, 6)


@every_layout
def test_room_is_contiguous(x):
    assert room(x).shape == x.shape
    assert room(x).is_contiguous()
