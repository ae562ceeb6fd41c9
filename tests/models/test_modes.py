import contextlib

import pytest
from torch import nn

from rfwp.models.modes import evaluating


@pytest.mark.parametrize("modes", [(True, True), (True, False), (False, True), (False, False)])
@pytest.mark.parametrize("listed", [True, False])
def test_all_parts_evaluate_inside_and_are_as_they_were_after(modes, listed):
    model = nn.Sequential(nn.Dropout(0.5))
    model.training, model[0].training = modes
    inside = []
    with contextlib.suppress(KeyError), evaluating(model, tuple(model.modules()) if listed else ()):
        inside += [model.training, model[0].training]
        raise KeyError
    assert inside == [False, False]
    assert (model.training, model[0].training) == modes
