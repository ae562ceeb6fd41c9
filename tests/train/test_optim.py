"""The optimiser's state, to and from tensors with names."""

import copy

import pytest
import torch

from rfwp.train.optim import optimiser_tensors, restore_optimiser

IMAGES = torch.linspace(-1, 1, 2 * 3 * 5 * 5).view(2, 3, 5, 5)
OPTIMISERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1, fused=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.1, momentum=0.5),
}


def step(model, optimiser):
    optimiser.zero_grad()
    model(IMAGES).square().mean().backward()
    optimiser.step()


@pytest.mark.parametrize("make", OPTIMISERS.values(), ids=OPTIMISERS.keys())
def test_restored_state_lies_in_memory_as_its_weights_do(make):
    torch.manual_seed(0)
    model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimiser = make(model.parameters())
    step(model, optimiser)
    resumed = copy.deepcopy(model)
    other = make(resumed.parameters())
    # as they come from a file
    saved = {
        name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in optimiser_tensors(model, optimiser).items()
    }
    restore_optimiser(resumed, other, saved)

    images = [value for value in other.state[resumed.weight].values() if value.dim() == 4]
    assert len(images) == 2
    assert {value.stride() for value in images} == {model.weight.stride()} != {model.weight.contiguous().stride()}
    step(model, optimiser)
    step(resumed, other)
    assert torch.equal(model.weight, resumed.weight)
    assert torch.equal(model.bias, resumed.bias)
