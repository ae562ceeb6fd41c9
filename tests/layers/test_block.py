import pytest
import torch
import torch.nn.functional as F
from torch import nn

from rfwp.errors import InvalidInput, UnknownName
from rfwp.layers.attention import Attention
from rfwp.layers.block import Block
from rfwp.layers.fwp import FWP
from rfwp.layers.lstm import LSTM
from tests.contract import STATEFUL, assert_same
from tests.tolerances import FLOAT64

B, T, WIDTH, HEADS, FF = 3, 11, 12, 3, 20

LAYERS = {
    "delta_net": lambda: FWP("delta_net", WIDTH, HEADS),
    "rdn": lambda: FWP("rdn", WIDTH, HEADS),
    "attention": lambda: Attention(WIDTH, HEADS),
    "lstm": lambda: LSTM(WIDTH, WIDTH),
}


def block_and_input(layer="delta_net", wiring="pre", dropout=0.0):
    torch.manual_seed(0)
    block = Block(LAYERS[layer](), WIDTH, FF, dropout, wiring).double()
    # norms that do something
    for norm in (block.layer_norm, block.ff_norm):
        nn.init.normal_(norm.weight, 1.0, 0.3)
        nn.init.normal_(norm.bias, 0.0, 0.3)
    return block, torch.randn(B, T, WIDTH, dtype=torch.float64)


@pytest.mark.parametrize("wiring", ["pre", "post", "lm"])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("check", STATEFUL, ids=lambda c: c.__name__)
def test_block_keeps_the_contract(check, layer, wiring):
    block, x = block_and_input(layer, wiring)
    check(block, [x])


def test_wirings_are_their_equations():
    for wiring in ("pre", "post", "lm"):
        block, x = block_and_input(wiring=wiring)
        W_1, W_2 = block.ff[0], block.ff[3]

        def LN(norm, x):
            centred = x - x.mean(-1, keepdim=True)
            return norm.weight * centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() + norm.bias

        def FF(x, W_1=W_1, W_2=W_2):
            return W_2(F.relu(W_1(x)))

        def layer(x, block=block):
            return block.layer(x)[0]

        n = LN(block.layer_norm, x)
        if wiring == "post":
            a = LN(block.layer_norm, x + layer(x))
            y = LN(block.ff_norm, a + FF(a))
        else:
            a = (n if wiring == "lm" else x) + layer(n)
            y = a + FF(LN(block.ff_norm, a))
        torch.testing.assert_close(block(x)[0], y, **FLOAT64)


def test_post_norm_block_with_attention_is_the_transformer_encoder_layer():
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(WIDTH, HEADS, FF, dropout=0.0, batch_first=True, dtype=torch.float64)
    ours = Block(Attention(WIDTH, HEADS, bias=True), WIDTH, FF, 0.0, "post").double()
    names = {
        "layer.qkv.weight": "self_attn.in_proj_weight",
        "layer.qkv.bias": "self_attn.in_proj_bias",
        "layer.out.weight": "self_attn.out_proj.weight",
        "layer.out.bias": "self_attn.out_proj.bias",
        "layer_norm.weight": "norm1.weight",
        "layer_norm.bias": "norm1.bias",
        "ff.0.weight": "linear1.weight",
        "ff.0.bias": "linear1.bias",
        "ff.3.weight": "linear2.weight",
        "ff.3.bias": "linear2.bias",
        "ff_norm.weight": "norm2.weight",
        "ff_norm.bias": "norm2.bias",
    }
    ours.load_state_dict({name: theirs.state_dict()[other] for name, other in names.items()})
    x = torch.randn(B, T, WIDTH, dtype=torch.float64)
    mask = torch.ones(T, T, dtype=torch.bool).triu(1)
    torch.testing.assert_close(ours(x)[0], theirs(x, src_mask=mask), **FLOAT64)


def test_dropout_stands_after_the_layer_and_twice_in_the_feedforward_net():
    block, x = block_and_input(dropout=0.5)
    assert [m.p for m in block.modules() if isinstance(m, nn.Dropout)] == [0.5] * 3
    assert not torch.equal(block(x)[0], block(x)[0])
    block.eval()
    assert torch.equal(block(x)[0], block(x)[0])


@pytest.mark.parametrize("layer", LAYERS)
def test_compiled_in_one_graph_with_the_same_output_and_gradients(layer):
    block, x = block_and_input(layer)
    x = x[:, :4]
    reset = torch.zeros(B, 4, dtype=torch.bool)
    reset[0, 3] = True
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    results = []
    for module in (block, compiled):
        y, new = module(x, None, reset)
        results.append([y, new, *torch.autograd.grad(y.square().sum(), list(block.parameters()))])
    assert_same(*results)


def test_bad_input_is_one_line():
    block, x = block_and_input()
    with pytest.raises(UnknownName, match="unknown wiring 'prae'; did you mean 'pre'"):
        Block(LAYERS["lstm"](), WIDTH, FF, 0.0, "prae")
    with pytest.raises(InvalidInput, match="ff=0 must both be at least 1"):
        Block(LAYERS["lstm"](), WIDTH, 0)
    with pytest.raises(InvalidInput, match=r"dropout=1\.5 is not a probability"):
        Block(LAYERS["lstm"](), WIDTH, FF, 1.5)
    with pytest.raises(InvalidInput, match=f"width={WIDTH} but its layer has hidden=1; make them equal"):
        Block(LSTM(WIDTH, 1), WIDTH, FF)
    with pytest.raises(InvalidInput, match=r"nn\.LSTM takes no resets; try Block\(rfwp\.LSTM"):
        Block(nn.LSTM(WIDTH, WIDTH, batch_first=True), WIDTH, FF)
    for wiring in ("pre", "post", "lm"):
        wired = Block(LAYERS["lstm"](), WIDTH, FF, 0.0, wiring).to(x.dtype)
        with pytest.raises(InvalidInput, match=rf"x has shape .*, expected \(B, T, {WIDTH}\)"):
            wired(torch.cat((x, x), dim=-1))
        with pytest.raises(InvalidInput, match="expected a floating dtype"):
            wired(x.long())
        with pytest.raises(InvalidInput, match="x is a PackedSequence; pad it"):
            wired(nn.utils.rnn.pack_sequence([x[0]]))
    with pytest.raises(InvalidInput, match="it comes from another model"):
        block(x, block_and_input("lstm")[0](x)[1])
