import pytest
import torch
from torch import nn

from rfwp.errors import InvalidInput
from rfwp.layers.lstm import LSTM
from tests.contract import STATEFUL, assert_same
from tests.tolerances import FLOAT64

B, T, INPUTS, HIDDEN = 3, 11, 5, 4


def layer_and_input(T=T, layers=2):
    torch.manual_seed(0)
    return LSTM(INPUTS, HIDDEN, layers, dtype=torch.float64), torch.randn(B, T, INPUTS, dtype=torch.float64)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("check", STATEFUL, ids=lambda c: c.__name__)
def test_lstm_keeps_the_contract(check, layers):
    layer, x = layer_and_input(layers=layers)
    check(layer, [x])


@pytest.mark.parametrize("T", [1, 7, 33, 70])
def test_without_resets_it_is_nn_lstm(T):
    layer, x = layer_and_input(T)
    y, state = layer(x)
    theirs = nn.LSTM(INPUTS, HIDDEN, 2, batch_first=True, dtype=torch.float64)
    theirs.load_state_dict(layer.state_dict())
    expected, (h, c) = theirs(x)
    torch.testing.assert_close(y, expected, **FLOAT64)
    assert_same(state, {"h": h.transpose(0, 1), "c": c.transpose(0, 1)})


def equations(layer, x, h, c, reset):
    """One step after another, as they are defined."""
    weights, outputs = layer._weights(), []
    for t in range(x.shape[1]):
        y, hs, cs = x[:, t], [], []
        for n in range(layer.layers):
            W, R, b, b_R = weights[4 * n : 4 * n + 4]
            h_n, c_n = (s[:, n].masked_fill(reset[:, t, None], 0) for s in (h, c))
            i, f, g, o = (y @ W.T + b + h_n @ R.T + b_R).chunk(4, dim=-1)
            cs.append(f.sigmoid() * c_n + i.sigmoid() * g.tanh())
            y = o.sigmoid() * cs[-1].tanh()
            hs.append(y)
        h, c = torch.stack(hs, dim=1), torch.stack(cs, dim=1)
        outputs.append(y)
    return torch.stack(outputs, dim=1), h, c


@pytest.mark.parametrize("T", [1, 7, 33])
@pytest.mark.parametrize("way", ["_run_stretches", "_run_steps"])
def test_it_is_its_equations_with_resets_and_state(way, T):
    layer, x = layer_and_input(T)
    reset = torch.rand(B, T) < 0.3
    h, c = torch.randn(2, B, 2, HIDDEN, dtype=torch.float64).unbind(0)
    assert_same(getattr(layer, way)(x, h, c, reset), equations(layer, x, h, c, reset))


def test_steps_of_a_recorded_update_keep_their_cells_in_float32_under_autocast():
    torch.manual_seed(0)
    layer, x = LSTM(INPUTS, HIDDEN), torch.randn(B, 50, INPUTS)
    layer.recordable = True
    expected, end = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = layer(x)
    assert_same((y, state["c"]), (expected, end["c"]))


def test_gradcheck_with_state_and_reset():
    layer, x = layer_and_input(5)
    reset = torch.zeros(B, 5, dtype=torch.bool)
    reset[1, 2] = reset[0, 0] = True
    h, c = torch.randn(2, B, 2, HIDDEN, dtype=torch.float64).unbind(0)

    def f(x, h, c):
        y, state = layer(x, {"h": h, "c": c}, reset)
        return y, state["h"], state["c"]

    assert torch.autograd.gradcheck(f, [t.detach().requires_grad_() for t in (x, h, c)])


def test_compiled_in_one_graph_with_the_same_output_and_gradients():
    layer, x = layer_and_input(4)
    reset = torch.zeros(B, 4, dtype=torch.bool)
    reset[0, 3] = True
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    results = []
    for module in (layer, compiled):
        y, new = module(x, None, reset)
        results.append([y, *new.values(), *torch.autograd.grad(y.square().sum(), list(layer.parameters()))])
    assert_same(*results)


def test_weights_that_are_computed_from_others_are_used():
    layer, x = layer_and_input()
    expected, _ = layer(x)
    nn.utils.parametrizations.weight_norm(layer, "weight_hh_l0")
    y, _ = layer(x)
    torch.testing.assert_close(y, expected, **FLOAT64)
    y.sum().backward()
    assert layer.parametrizations.weight_hh_l0.original1.grad is not None


def test_state_is_kept_in_float32_for_half_precision():
    layer, x = layer_and_input()
    y, state = layer.bfloat16()(x.bfloat16())
    assert y.dtype == torch.bfloat16
    assert state["h"].dtype == state["c"].dtype == torch.float32
    assert layer(x.bfloat16(), state)[0].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a, x: LSTM(5, 0), "hidden=0"),
        (lambda a, x: a(x[..., :3]), "x has shape (3, 11, 3), expected (B, T, 5)"),
        (lambda a, x: a(x.float()), "convert one of them"),
        (lambda a, x: a(x, None, torch.zeros(B, 4, dtype=torch.bool)), "reset has shape (3, 4)"),
        (lambda a, x: a(x, {"h": x}), "this state has h; the layer expects h, c"),
        (lambda a, x: a(x[:2], a(x)[1]), "state h has shape (3, 2, 4), expected (2, 2, 4)"),
        (lambda a, x: a(x, {n: s.float() for n, s in a(x)[1].items()}), "state h is torch.float32, expected torch.float64"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(InvalidInput) as caught:
        call(*layer_and_input())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_resets_without_values_give_shapes():
    y, state = LSTM(3, 4, device="meta")(torch.empty(2, 5, 3, device="meta"), None, torch.empty(2, 5, device="meta").bool())
    assert y.shape == (2, 5, 4)
    assert state["c"].shape == (2, 1, 4)
