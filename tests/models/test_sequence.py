from dataclasses import replace

import pytest
import torch
from torch import nn

from rfwp.config import AttentionConfig, BlocksConfig, FWPConfig, LSTMConfig, NoCoreConfig, SequenceConfig
from rfwp.errors import InvalidInput
from rfwp.models import SequenceModel
from rfwp.models.sequence import count_steps, sinusoid
from tests.contract import STATEFUL, STATELESS, assert_same
from tests.tolerances import FLOAT64

B, T, VOCABULARY = 3, 11, 23

RDN = FWPConfig(slow="recurrent", phi="softmax")
SMALL = {"width": 12, "layers": 2, "heads": 3, "ff": 10}
PLAIN = SequenceConfig(VOCABULARY, 9, BlocksConfig(layer=RDN, **SMALL), embedding=12)
CONFIGS = {
    "rdn": PLAIN,
    "lstm": SequenceConfig(VOCABULARY, 9, LSTMConfig(hidden=7), embedding=6),
    "transformer": replace(
        PLAIN,
        core=BlocksConfig(layer=AttentionConfig(bias=True), wiring="post", final_norm=True, **SMALL),
        positions="ascending",
    ),
    "language_model": SequenceConfig(
        VOCABULARY,
        VOCABULARY,
        BlocksConfig(layer=FWPConfig(fast="rnn", scale_output=True), wiring="lm", **SMALL),
        embedding=12,
        positions="descending",
        window=8,
        cutoffs=(5, 9, 20),
        scale_embedding=True,
        init="normal",
    ),
}


def model_and_tokens(config, T=T):
    torch.manual_seed(0)
    model = SequenceModel(config).double()
    # rows that differ at every step
    return model, (torch.randint(0, config.inputs, (T,)) + torch.arange(B)[:, None]) % config.inputs


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("check", STATEFUL, ids=lambda c: c.__name__)
def test_model_keeps_the_contract(check, name):
    model, tokens = model_and_tokens(CONFIGS[name])
    check(model, [tokens])


@pytest.mark.parametrize("check", STATELESS, ids=lambda c: c.__name__)
def test_model_without_memory_keeps_the_contract(check):
    model, tokens = model_and_tokens(SequenceConfig(VOCABULARY, 9, NoCoreConfig(), embedding=4))
    check(model, [tokens])


@pytest.mark.parametrize("T", [1, 7, 33, 70])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_at_odd_lengths(name, T):
    model, tokens = model_and_tokens(CONFIGS[name], T)
    assert model(tokens)[0].shape == (B, T, CONFIGS[name].outputs)


@pytest.mark.parametrize("name", CONFIGS)
def test_loss_is_the_mean_of_minus_log_p_over_counted_targets(name):
    model, tokens = model_and_tokens(CONFIGS[name])
    targets = torch.randint(0, CONFIGS[name].outputs, (B, T))
    targets[0, 3:] = -1
    reset = torch.rand(B, T) < 0.3
    logits, state = model(tokens, None, reset)
    counted = targets >= 0
    expected = -logits.log_softmax(-1)[counted].gather(1, targets[counted][:, None]).mean()
    loss, after = model.loss(tokens, targets, None, reset)
    torch.testing.assert_close(loss, expected, **FLOAT64)
    assert_same(after, state)


@pytest.mark.parametrize("name", ["rdn", "language_model"])
def test_ignored_targets_may_have_another_number(name):
    model, tokens = model_and_tokens(CONFIGS[name])
    targets = torch.full((B, T), -100)
    assert model.loss(tokens, targets, ignore=-100)[0] == 0
    targets[1, 2] = 3
    expected = -model(tokens)[0].log_softmax(-1)[1, 2, 3]
    torch.testing.assert_close(model.loss(tokens, targets, ignore=-100)[0], expected, **FLOAT64)


def test_adaptive_logits_are_log_probabilities():
    model, tokens = model_and_tokens(CONFIGS["language_model"])
    total = model(tokens)[0].exp().sum(-1)
    torch.testing.assert_close(total, torch.ones(B, T, dtype=torch.float64), **FLOAT64)


def test_positions_are_sines_then_cosines():
    p = torch.tensor([[0, 3, -2]])
    s = sinusoid(p, 6, torch.float64)
    assert s.shape == (1, 3, 6)
    omega = torch.tensor([1.0, 10000 ** (-1 / 3), 10000 ** (-2 / 3)], dtype=torch.float64)
    torch.testing.assert_close(s[0, 1], torch.cat(((3 * omega).sin(), (3 * omega).cos())), **FLOAT64)
    torch.testing.assert_close(s[0, 2], torch.cat(((-2 * omega).sin(), (-2 * omega).cos())), **FLOAT64)


def test_positions_count_from_the_last_reset():
    tokens = torch.zeros(2, 5, dtype=torch.long)
    reset = torch.tensor([[False, False, True, False, False], [False] * 5])
    n, following = count_steps(torch.tensor([4, 7]), reset, tokens)
    assert n.tolist() == [[4, 5, 0, 1, 2], [7, 8, 9, 10, 11]]
    assert following.tolist() == [3, 12]


def test_descending_positions_reach_zero_at_the_end_of_the_window():
    model, tokens = model_and_tokens(CONFIGS["language_model"])
    n, _ = count_steps(None, None, tokens)
    assert model._position(n)[0].tolist() == [7, 6, 5, 4, 3, 2, 1, 0, -1, -2, -3]


def test_what_the_core_sees_is_scaled_embedding_plus_position():
    config = replace(CONFIGS["language_model"], core=NoCoreConfig())
    model, tokens = model_and_tokens(config)
    expected = model.head.embedding.weight[tokens] * 12**0.5 + sinusoid(7 - torch.arange(T), 12, torch.float64)
    torch.testing.assert_close(model.hidden(tokens)[0], expected, **FLOAT64)


def test_state_has_a_position_only_where_positions_are_used():
    for name, config in CONFIGS.items():
        model, tokens = model_and_tokens(config)
        _, state = model(tokens)
        assert set(state) == ({"core"} if config.positions == "none" else {"core", "position"}), name


def test_normal_initialisation_spares_the_recurrent_weights():
    torch.manual_seed(0)
    core = BlocksConfig(layer=RDN, width=128, layers=2, heads=8, ff=256)
    config = SequenceConfig(2000, 2000, core, embedding=128, cutoffs=(100,), init="normal")
    for name, p in SequenceModel(config).named_parameters():
        if name.endswith("slow.R"):
            assert abs(p.std() - 0.25) < 0.01, name
        elif "norm" in name and name.endswith("weight"):
            assert abs(p.mean() - 1) < 0.01, name
            assert abs(p.std() - 0.02) < 0.005, name
        elif name.endswith("bias"):
            assert not p.any(), name
        else:
            assert abs(p.std() - 0.02) < 0.002, name


def test_normal_initialisation_reaches_the_norms_inside_fast_nets():
    torch.manual_seed(0)
    core = BlocksConfig(layer=FWPConfig(fast="residual_mlp(blocks=2)"), width=512, layers=1, heads=2, ff=8)
    model = SequenceModel(SequenceConfig(5, 5, core, embedding=512, init="normal"))
    fast = model.core.blocks[0].layer.fast
    assert {name: bool(p.any()) for name, p in fast.items()} == {"gain0": True, "gain1": True, "bias0": False, "bias1": False}
    for name in ("gain0", "gain1"):
        assert abs(fast[name].mean() - 1) < 0.01
        assert abs(fast[name].std() - 0.02) < 0.005


def test_whole_model_compiles_in_one_graph():
    model, tokens = model_and_tokens(CONFIGS["transformer"])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert_same(compiled(tokens), model(tokens))


def test_default_embedding_is_standard_normal():
    torch.manual_seed(0)
    model = SequenceModel(SequenceConfig(500, 9, NoCoreConfig(), embedding=64))
    assert abs(model.embedding.weight.std() - 1) < 0.02


def test_dropout_on_embedding_and_before_the_head():
    config = replace(CONFIGS["lstm"], embedding_dropout=0.5, head_dropout=0.25)
    model, tokens = model_and_tokens(config)
    assert [m.p for m in model.modules() if isinstance(m, nn.Dropout)] == [0.5, 0.25]
    assert not torch.equal(model(tokens)[0], model(tokens)[0])
    model.eval()
    assert torch.equal(model(tokens)[0], model(tokens)[0])


def parameters(config):
    with torch.device("meta"):
        return sum(p.numel() for p in SequenceModel(config).parameters())


ATTENTION = BlocksConfig(layer=AttentionConfig(bias=True), wiring="post", final_norm=True)
LM = {"embedding": 128, "cutoffs": (20_000, 40_000, 200_000), "positions": "descending", "init": "normal"}


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (SequenceConfig(24, 26, LSTMConfig(256), embedding=128), 405_018),
        (SequenceConfig(24, 26, LSTMConfig(512), embedding=128), 1_331_226),
        (SequenceConfig(24, 26, ATTENTION, positions="ascending"), 3_172_378),
        (SequenceConfig(24, 26), 3_184_154),
        (SequenceConfig(24, 26, BlocksConfig(layer=RDN)), 3_234_330),
        (
            SequenceConfig(
                267_735,
                267_735,
                BlocksConfig(layer=AttentionConfig(), width=128, layers=16, heads=8, ff=2048, wiring="lm"),
                **LM,
            ),
            44_018_394,
        ),
    ],
    ids=["lstm-256", "lstm-512", "transformer", "delta-net", "rdn", "lm-transformer"],
)
def test_parameter_counts(config, count):
    assert parameters(config) == count


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embedding": 16}, "embedding=16 differs from the blocks' width=12; make them equal"),
        ({"inputs": 0}, "inputs=0"),
        ({"head_dropout": 1.5}, "head_dropout=1.5 is not a probability"),
        ({"cutoffs": (5,)}, "need inputs=23 and outputs=9 to be equal"),
        ({"cutoffs": (5,), "outputs": 23, "core": LSTMConfig(hidden=7)}, "need embedding=12 and the core's hidden=7"),
        ({"cutoffs": (9, 5), "outputs": 23}, "cutoffs=(9, 5) must rise"),
        ({"positions": "ascending", "core": NoCoreConfig(), "embedding": 7}, "positions need an even embedding size"),
    ],
)
def test_a_config_that_cannot_be_built_is_one_line(change, message):
    with pytest.raises(InvalidInput) as caught:
        SequenceModel(replace(PLAIN, **change))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_config_of_something_else_is_one_line():
    with pytest.raises(InvalidInput, match="its config is a dict, expected a SequenceConfig"):
        SequenceModel({"inputs": 3})


def test_gradients_of_each_sequence_alone():
    """torch.func: no looking at values."""
    model, tokens = model_and_tokens(PLAIN)
    weights, targets = {key: p.detach() for key, p in model.named_parameters()}, tokens % PLAIN.outputs

    def loss(weights, tokens, targets):
        return torch.func.functional_call(LossOnly(model), {f"model.{k}": w for k, w in weights.items()}, (tokens, targets))

    each = torch.vmap(torch.func.grad(loss), (None, 0, 0))(weights, tokens, targets)
    for row in range(B):
        expected = torch.autograd.grad(model.loss(tokens[row : row + 1], targets[row : row + 1])[0], list(model.parameters()))
        torch.testing.assert_close([each[key][row] for key in weights], list(expected), **FLOAT64)


class LossOnly(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, targets):
        return self.model.loss(tokens[None], targets[None])[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: m(x + 5), "tokens contain 27, outside of the vocabulary 0 .. 22"),
        (lambda m, x: m(x - 30), "tokens contain -30, outside of the vocabulary 0 .. 22"),
        (lambda m, x: m(x.float()), "tokens are torch.float32, expected torch.long; try tokens.long()"),
        (lambda m, x: m(x[0]), "tokens has shape (11,), expected 2 dimensions"),
        (lambda m, x: m(x[:, :0]), "T=0"),
        (lambda m, x: m(x.to("meta")), "tokens is on meta but the model is on cpu"),
        (lambda m, x: m(x, None, torch.zeros(B, 3, dtype=torch.bool)), "reset has shape (3, 3)"),
        (lambda m, x: m(x, {"W": x}), "this state has W; the model expects core, position; it comes from another model"),
        (lambda m, x: m(x, ()), "this state has a tuple; the model expects core, position"),
        (lambda m, x: m(x[:2], m(x)[1]), "state position has shape (3,), expected (2,)"),
        (lambda m, x: m(x, m(x)[1] | {"core": ()}), "this state is of 0 layers"),
        (lambda m, x: m.loss(x, x), "targets contain 2"),
        (
            lambda m, x: m.loss(x, x * 0 - 100),
            "targets contain -100, outside of the vocabulary 0 .. 8; only ignore=-1 stands for",
        ),
        (lambda m, x: m.step([1, 2]), "SequenceModel.step: tokens is a list, expected a tensor"),
        (lambda m, x: m.step(x), "SequenceModel.step: tokens has shape (3, 11), expected 1 dimensions (B)"),
        (lambda m, x: m.loss(x, x[:, :3] * 0), "targets has shape (3, 3)"),
    ],
)
def test_bad_input_is_one_line(call, message):
    model, tokens = model_and_tokens(CONFIGS["transformer"])
    tokens[0, 0], tokens[0, 1] = VOCABULARY - 1, 0
    with pytest.raises(InvalidInput) as caught:
        call(model, tokens)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
