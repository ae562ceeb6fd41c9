import pytest
import torch
import torch.nn.functional as F

from rfwp.config import AttentionConfig, BlocksConfig, FWPConfig, HighwayConfig, LSTMConfig, NoCoreConfig
from rfwp.errors import InvalidInput, UnknownName
from rfwp.models.core import build_core
from tests.contract import STATEFUL, STATELESS
from tests.tolerances import FLOAT64

B, T, WIDTH = 3, 11, 12

RDN = FWPConfig(slow="recurrent", phi="softmax")
SMALL = {"width": WIDTH, "layers": 2, "heads": 3, "ff": 10}
CORES = {
    "delta_net": BlocksConfig(**SMALL),
    "rdn": BlocksConfig(layer=RDN, **SMALL),
    "delta_rnn_lm": BlocksConfig(layer=FWPConfig(fast="rnn", scale_output=True), wiring="lm", **SMALL),
    "attention": BlocksConfig(layer=AttentionConfig(bias=True), wiring="post", final_norm=True, **SMALL),
    "attention_window": BlocksConfig(layer=AttentionConfig(window=4), **SMALL),
    "lstm": LSTMConfig(hidden=7, layers=2),
}


def core_and_input(config):
    torch.manual_seed(0)
    return build_core(config, WIDTH).double(), torch.randn(B, T, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("check", STATEFUL, ids=lambda c: c.__name__)
def test_core_with_memory_keeps_the_contract(check, name):
    core, x = core_and_input(CORES[name])
    check(core, [x])


@pytest.mark.parametrize("config", [HighwayConfig(hidden=5), NoCoreConfig()], ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("check", STATELESS, ids=lambda c: c.__name__)
def test_core_without_memory_keeps_the_contract(check, config):
    core, x = core_and_input(config)
    check(core, [x])


@pytest.mark.parametrize("config", [*CORES.values(), HighwayConfig(hidden=5), NoCoreConfig()], ids=str)
def test_outputs_is_the_size_of_the_output(config):
    core, x = core_and_input(config)
    assert core(x)[0].shape == (B, T, core.outputs)


def test_highway_is_its_equation():
    core, x = core_and_input(HighwayConfig(hidden=5))
    (W_h, W_p, W_t, W_c), (b_h, b_p, b_t, b_c) = core.maps.weight.chunk(4), core.maps.bias.chunk(4)
    t, c = F.linear(x, W_t, b_t).sigmoid(), F.linear(x, W_c, b_c).sigmoid()
    y = t * F.linear(x, W_h, b_h).tanh() + c * F.linear(x, W_p, b_p)
    torch.testing.assert_close(core(x)[0], y, **FLOAT64)


def test_state_of_a_stack_is_the_tuple_of_its_layers_states():
    core, x = core_and_input(CORES["rdn"])
    _, state = core(x)
    assert isinstance(state, tuple)
    assert [set(s) for s in state] == [{"W", "y"}] * 2


def test_final_norm_is_applied_last():
    core, x = core_and_input(CORES["attention"])
    y = core(x)[0]
    torch.testing.assert_close(y.mean(-1), torch.zeros(B, T, dtype=torch.float64), **FLOAT64)


@pytest.mark.parametrize("alike", [True, False])
def test_blocks_begin_alike_where_the_config_says_so(alike):
    core, x = core_and_input(BlocksConfig(layer=AttentionConfig(bias=True), wiring="post", alike=alike, **SMALL))
    first, second = (block.state_dict() for block in core.blocks)
    same = [torch.equal(first[name], second[name]) for name in first if name.endswith("weight") and "norm" not in name]
    assert same == [alike] * 4
    core(x)[0].square().sum().backward()
    assert not torch.equal(core.blocks[0].layer.qkv.weight.grad, core.blocks[1].layer.qkv.weight.grad)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, x: build_core(BlocksConfig(), 10), "blocks of width=256 cannot take inputs of size 10"),
        (lambda c, x: build_core(BlocksConfig(layers=0), 256), "layers=0; use at least 1"),
        (lambda c, x: build_core(BlocksConfig(heads=7), 256), "heads=7 does not divide width=256; try heads=8"),
        (lambda c, x: build_core(BlocksConfig(layer=LSTMConfig()), 256), "layer is LSTMConfig, expected FWPConfig"),
        (lambda c, x: build_core(HighwayConfig(0), 256), "hidden=0"),
        (lambda c, x: build_core("lstm", 256), "core is str, expected BlocksConfig"),
        (lambda c, x: c(x, c(x)[1][:1]), "this state is of 1 layers; the model has 2 layers"),
        (lambda c, x: c(x, {"h": x}), "this state is a dict"),
        (lambda c, x: c(x, ({"W": x}, {"W": x})), "the layer expects W, y; it comes from another model"),
        (lambda c, x: c(x[..., :3]), "x has shape (3, 11, 3)"),
        (lambda c, x: build_core(NoCoreConfig(), WIDTH)(x, c(x)[1]), "this core has no memory"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(InvalidInput) as caught:
        call(*core_and_input(CORES["rdn"]))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_parts_of_a_layer_are_named():
    with pytest.raises(UnknownName, match="unknown slow net 'recurent'; did you mean 'recurrent'"):
        build_core(BlocksConfig(layer=FWPConfig(slow="recurent")), 256)
