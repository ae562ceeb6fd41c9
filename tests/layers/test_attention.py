from unittest.mock import patch

import pytest
import torch
from torch import nn

from rfwp.errors import InvalidInput, UnknownName
from rfwp.layers.attention import Attention
from rfwp.layers.state import detach
from rfwp.ops import attention as op
from tests.contract import STATEFUL, assert_same
from tests.tolerances import FLOAT64

B, T, WIDTH, HEADS = 3, 11, 12, 3
WINDOWS = [None, 1, 2, 5, 11, 40]


def layer_and_input(T=T, **options):
    torch.manual_seed(0)
    layer = Attention(WIDTH, HEADS, dtype=torch.float64, **options)
    return layer, torch.randn(B, T, WIDTH, dtype=torch.float64)


def formula(layer, x, reset=None):
    """The definition, one query at a time."""
    q, k, v = (t.unflatten(-1, (HEADS, -1)) for t in layer.qkv(x).chunk(3, dim=-1))
    y = torch.zeros_like(q)
    for b in range(len(x)):
        since = 0
        for t in range(x.shape[1]):
            since = t if reset is not None and reset[b, t] else since
            first = since if layer.window is None else max(since, t - layer.window + 1)
            scores = torch.einsum("hd,shd->hs", q[b, t], k[b, first : t + 1]) / (WIDTH / HEADS) ** 0.5
            p = scores.exp() / scores.exp().sum(-1, keepdim=True)
            y[b, t] = torch.einsum("hs,shd->hd", p, v[b, first : t + 1])
    return layer.out(y.flatten(-2))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("T", [1, 7, 33])
def test_attention_is_the_softmax_formula(window, T):
    layer, x = layer_and_input(T, window=window, bias=True)
    torch.testing.assert_close(layer(x)[0], formula(layer, x), **FLOAT64)
    reset = torch.rand(B, T) < 0.2
    torch.testing.assert_close(layer(x, None, reset)[0], formula(layer, x, reset), **FLOAT64)


@pytest.mark.parametrize("window", [None, 2, 5])
@pytest.mark.parametrize("check", STATEFUL, ids=lambda c: c.__name__)
def test_attention_keeps_the_contract(check, window):
    layer, x = layer_and_input(window=window)
    check(layer, [x])


def test_a_window_of_one_needs_no_state():
    layer, x = layer_and_input(window=1)
    y, state = layer(x)
    assert state["k"].shape == (B, 0, HEADS, WIDTH // HEADS)
    torch.testing.assert_close(layer(x.flip(1), state)[0], y.flip(1), **FLOAT64)


def test_state_holds_at_most_the_window_without_this_step():
    layer, x = layer_and_input(window=5)
    state = None
    for t, kept in zip(range(T), [1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4], strict=True):
        _, state = layer.step(x[:, t], state)
        assert state["k"].shape[1] == state["v"].shape[1] == state["valid"].shape[1] == kept


def bytes_held(state):
    return {name: kept.untyped_storage().nbytes() for name, kept in state.items()}


@pytest.mark.parametrize("window", [1, 2, 5])
def test_a_state_cut_from_a_long_segment_holds_its_own_memory_only(window):
    layer, x = layer_and_input(40, window=window)
    _, first = layer(x)
    _, second = layer(x, first)
    for state in (first, second):
        assert bytes_held(state) == {name: kept.numel() * kept.element_size() for name, kept in state.items()}


def test_a_state_of_which_nothing_is_cut_is_no_copy():
    layer, x = layer_and_input()
    _, state = layer(x)
    assert state["k"].untyped_storage().data_ptr() == state["v"].untyped_storage().data_ptr()


def test_gradients_flow_through_a_state_that_was_cut():
    layer, x = layer_and_input(40, window=5)
    x.requires_grad_()
    _, state = layer(x[:, :38])
    y, _ = layer(x[:, 38:], state)
    whole = layer(x)[0][:, 38:]
    (ours,), (expected,) = torch.autograd.grad(y.sum(), x), torch.autograd.grad(whole.sum(), x)
    assert expected[:, 34:38].any()
    torch.testing.assert_close(ours, expected, **FLOAT64)


def test_attention_with_bias_is_multihead_attention():
    layer, x = layer_and_input(bias=True)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=torch.float64)
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = layer.qkv.weight.data, layer.qkv.bias.data
    theirs.out_proj.load_state_dict(layer.out.state_dict())
    mask = torch.ones(T, T, dtype=torch.bool).triu(1)
    torch.testing.assert_close(layer(x)[0], theirs(x, x, x, attn_mask=mask, need_weights=False)[0], **FLOAT64)


def test_attention_with_bias_starts_as_multihead_attention_does():
    torch.manual_seed(0)
    layer, theirs = Attention(64, 4, bias=True), nn.MultiheadAttention(64, 4)
    bound = (6 / (4 * 64)) ** 0.5
    for weight in (layer.qkv.weight, theirs.in_proj_weight):
        assert 0.98 * bound < weight.abs().max() <= bound
    assert not layer.qkv.bias.any()
    assert not layer.out.bias.any()


@pytest.mark.parametrize("bias", [False, True])
def test_weights_can_be_drawn_again(bias):
    torch.manual_seed(0)
    layer = Attention(12, 3, bias=bias)
    before = {name: p.detach().clone() for name, p in layer.named_parameters()}
    for parameter in layer.parameters():
        torch.nn.init.constant_(parameter, float("nan"))
    torch.manual_seed(0)
    layer.reset_parameters()
    torch.testing.assert_close(dict(layer.state_dict()), before, rtol=0, atol=0)


def test_gradcheck_with_state_and_reset():
    layer, x = layer_and_input(5, window=4)
    _, state = layer(torch.randn_like(x))
    reset = torch.zeros(B, 5, dtype=torch.bool)
    reset[1, 2] = True
    valid = state["valid"]

    def f(x, k, v):
        y, new = layer(x, {"k": k, "v": v, "valid": valid}, reset)
        return y, new["k"], new["v"]

    inputs = [t.detach().requires_grad_() for t in (x, state["k"], state["v"])]
    assert torch.autograd.gradcheck(f, inputs)


def test_dropout_acts_in_training_only():
    layer, x = layer_and_input(dropout=0.5)
    assert not torch.equal(layer(x)[0], layer(x)[0])
    layer.eval()
    assert torch.equal(layer(x)[0], layer(x)[0])


@pytest.mark.parametrize("backend", ["auto", "torch", "gpu"])
def test_the_kernel_is_not_asked_for_what_it_does_not_do(backend):
    """States, resets and windows that cut; and on the CPU nothing unless it is named."""
    layer, x = layer_and_input(window=T - 1, backend=backend)
    wide, _ = layer_and_input(backend=backend)
    layer, wide, x = layer.float(), wide.float(), x.float()
    state = {"k": x.new_ones(B, 2, HEADS, 4), "v": x.new_ones(B, 2, HEADS, 4), "valid": torch.ones(B, 2, dtype=torch.bool)}
    with patch.object(op, "attention", side_effect=AssertionError):
        layer(x)
        wide(x, state)
        wide(x, None, torch.zeros(B, T, dtype=torch.bool))
        if backend != "gpu":
            wide(x)


def test_half_precision_runs_and_carries_its_state():
    layer, x = layer_and_input()
    layer, x = layer.bfloat16(), x.bfloat16()
    y, state = layer(x)
    assert y.dtype == state["k"].dtype == torch.bfloat16
    assert layer(x, state)[0].dtype == torch.bfloat16


def test_autocast_runs_and_carries_its_state():
    layer, x = layer_and_input()
    layer, x = layer.float(), x.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, state = layer(x)
        y, _ = layer(x, state)
    assert y.isfinite().all()
    torch.testing.assert_close(layer(x, state)[0], y.float(), rtol=0.05, atol=0.05)


def test_compiled_in_one_graph_with_the_same_output_and_gradients():
    layer, x = layer_and_input(7, window=4)
    state = detach(layer(torch.randn_like(x))[1])
    reset = torch.zeros(B, 7, dtype=torch.bool)
    reset[0, 3] = True
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    results = []
    for module in (layer, compiled):
        y, new = module(x, state, reset)
        results.append([y, *new.values(), *torch.autograd.grad(y.square().sum(), list(layer.parameters()))])
    assert_same(*results)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a, x: Attention(12, 5), "heads=5 does not divide width=12"),
        (lambda a, x: Attention(12, 3, window=0), "window=0; use a whole number of steps"),
        (lambda a, x: Attention(12, 3, window=2.5), "window=2.5; use a whole number of steps"),
        (lambda a, x: Attention(12, 3, backend="gpu", dtype=x.dtype)(x), "backend 'gpu' cannot run: it has no float64"),
        (lambda a, x: Attention(12, 3, dropout=-0.1), "dropout=-0.1 is not a probability"),
        (lambda a, x: a(x[..., :5]), "x has shape (3, 11, 5), expected (B, T, 12)"),
        (lambda a, x: a(x[:, :0]), "T=0"),
        (lambda a, x: a(x.float()), "convert one of them"),
        (lambda a, x: a(x.long()), "expected a floating dtype"),
        (lambda a, x: a(x, None, torch.zeros(B, 4, dtype=torch.bool)), "reset has shape (3, 4), expected (B, T) = (3, 11)"),
        (lambda a, x: a(x, None, torch.zeros(B, T)), "reset is torch.float32, expected torch.bool"),
        (lambda a, x: a(x, {"W": x}), "this state has W; the layer expects k, v, valid; it comes from another model"),
        (lambda a, x: a(x, (x, x)), "this state is a tuple; the layer expects a dict with k, v, valid"),
        (lambda a, x: a(x[:2], a(x)[1]), "state k has shape (3, 11, 3, 4), expected (2, 11, 3, 4)"),
        (lambda a, x: a(x, a(x)[1] | {"valid": torch.ones(B, T)}), "state valid is torch.float32, expected torch.bool"),
        (lambda a, x: a(x, a(x)[1] | {"k": a(x)[1]["k"].float()}), "state k is torch.float32, expected torch.float64"),
        (lambda a, x: a(x, a(x)[1] | {"k": None}), "state k is a NoneType"),
        (lambda a, x: a(x.to("meta")), "meta"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(InvalidInput) as caught:
        call(*layer_and_input())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_backend_is_named():
    with pytest.raises(UnknownName, match="unknown backend 'cuda'; known: auto, gpu, torch"):
        Attention(12, 3, backend="cuda")


def test_a_NaN_before_a_reset_does_not_come_back() -> None:
    layer = Attention(8, 2)
    x = torch.randn(2, 5, 8)
    _, state = layer(x)
    poisoned = {"k": state["k"] * float("nan"), "v": state["v"] * float("nan"), "valid": state["valid"]}
    reset = torch.zeros(2, 5, dtype=torch.bool)
    reset[:, 0] = True
    torch.testing.assert_close(layer(x, poisoned, reset)[0], layer(x)[0])
