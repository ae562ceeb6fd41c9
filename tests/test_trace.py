"""`rfwp.trace`: what it shows is what the model did."""

import re
from pathlib import Path

import pytest
import torch

import rfwp
from rfwp.config import AgentConfig, AttentionConfig, BlocksConfig, FWPConfig, LSTMConfig, SequenceConfig
from rfwp.errors import InvalidInput
from rfwp.fwp.rules import read
from rfwp.fwp.zoo import ZOO
from rfwp.trace import Recorded, join

T = 13
COMPOSITIONS = {name: FWPConfig(**composition.specification()) for name, composition in ZOO.items()} | {
    "recurrent slow net, fast RNN": FWPConfig(slow="recurrent", fast="rnn", phi="softmax"),
    "LSTM slow net": FWPConfig(slow="lstm"),
}


DELTA_RNN = FWPConfig(fast="rnn")


def build(layer=DELTA_RNN, **options):
    torch.manual_seed(0)
    core = BlocksConfig(layer, width=8, layers=2, heads=2, ff=12, dropout=0.3, **options)
    return rfwp.SequenceModel(SequenceConfig(inputs=11, outputs=7, core=core, embedding=8, positions="ascending"))


@pytest.fixture
def tokens():
    return torch.randint(0, 11, (T,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_logits_are_the_models(name, tokens):
    model = build(COMPOSITIONS[name])
    steps = rfwp.trace(model, tokens)
    with torch.no_grad():
        logits, _ = model.eval()(tokens.unsqueeze(0))
    torch.testing.assert_close(steps.logits, logits[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(steps.probabilities, logits[0].softmax(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_last_fast_weights_are_the_models_state(name, tokens):
    model = build(COMPOSITIONS[name]).eval()
    steps = rfwp.trace(model, tokens)
    _, state = model(tokens.unsqueeze(0))
    for layer, expected in zip(steps.layers, state["core"], strict=True):
        assert set(layer.matrices) <= set(expected)
        for matrix, record in layer.matrices.items():
            torch.testing.assert_close(record.weights[-1], expected[matrix][0].detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_every_write_and_read_is_explained_by_its_vectors(name, tokens):
    for layer in rfwp.trace(build(COMPOSITIONS[name]), tokens).layers:
        for record in layer.matrices.values():
            written = record.writes.unsqueeze(-1) * record.keys.unsqueeze(-2)
            torch.testing.assert_close(record.weights, record.before + written, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(record.reads, read(record.weights, record.queries), rtol=1e-5, atol=1e-5)
            assert record.betas is None or ((record.betas > 0) & (record.betas < 1)).all()


def test_shares_say_which_write_was_read(tokens):
    record = rfwp.trace(build(), tokens).layers[1].matrices["W"]
    step, head = 9, 1
    shares = record.shares(step)
    torch.testing.assert_close(shares.sum(0), torch.ones(2), rtol=1e-4, atol=1e-4)
    # without the write of step i, the read would lose just that share of its length
    for i in range(step + 1):
        part = record.writes[i, head] * (record.keys[i, head] @ record.queries[step, head])
        whole = record.reads[step, head]
        torch.testing.assert_close(shares[i, head], part @ whole / (whole @ whole), rtol=1e-4, atol=1e-5)


def test_the_last_step_has_two_numbers(tokens):
    record = rfwp.trace(build(), tokens).layers[1].matrices["W"]
    assert torch.equal(record.shares(-1), record.shares(len(record.keys) - 1))


def test_shares_of_nothing_are_zero():
    model = build(FWPConfig(rule="sum", phi="elu"))
    for block in model.core.blocks:
        torch.nn.init.zeros_(block.layer.slow.W.weight)
    shares = rfwp.trace(model, [1, 2, 3]).layers[0].matrices["W"].shares(2)
    assert torch.equal(shares, torch.zeros(3, 2))


def test_shapes_have_steps_first_and_no_batch(tokens):
    steps = rfwp.trace(build(), tokens)
    assert steps.logits.shape == (T, 7)
    assert steps.layers[0].outputs.shape == (T, 2, 4)
    record = steps.layers[0].matrices["R"]
    assert record.weights.shape == (T, 2, 4, 4)
    assert record.betas.shape == (T, 2)
    assert {record.keys.shape, record.values.shape, record.queries.shape, record.reads.shape} == {(T, 2, 4)}


@pytest.mark.parametrize("wiring", ["pre", "post", "lm"])
def test_wirings_and_scales_are_followed(wiring, tokens):
    model = build(FWPConfig(scale_output=True, output_dropout=0.5), wiring=wiring, final_norm=True)
    logits, _ = model.eval()(tokens.unsqueeze(0))
    torch.testing.assert_close(rfwp.trace(model, tokens).logits, logits[0].detach(), rtol=1e-5, atol=1e-5)


def test_model_is_left_as_it_was(tokens):
    model = build().train()
    modules, weights = list(model.modules()), {name: p.clone() for name, p in model.named_parameters()}
    steps = rfwp.trace(model, tokens)
    assert model.training
    assert list(model.modules()) == modules
    assert all(torch.equal(p, weights[name]) and p.grad is None for name, p in model.named_parameters())
    assert not steps.logits.requires_grad
    assert not steps.layers[0].matrices["W"].weights.requires_grad


def test_list_of_numbers_is_enough(tokens):
    model = build()
    assert torch.equal(rfwp.trace(model, tokens.tolist()).logits, rfwp.trace(model, tokens).logits)


@pytest.mark.parametrize(
    ("core", "seen"), [(BlocksConfig(AttentionConfig(), 8, 1, 2, 12), "Attention"), (LSTMConfig(8), "LSTMCore")]
)
def test_models_without_fast_weights_are_refused_in_one_line(core, seen):
    model = rfwp.SequenceModel(SequenceConfig(inputs=11, outputs=7, core=core, embedding=8))
    with pytest.raises(InvalidInput, match=f"has none: its layers are {seen}; take") as error:
        rfwp.trace(model, [1, 2])
    assert "\n" not in str(error.value)


def test_example_of_the_docs_runs():
    page = (Path(__file__).parent.parent / "docs/play.md").read_text()
    names = {}
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL):
        exec(compile(block, "docs/play.md", "exec"), names)
    assert names["task"].target.decode(names["steps"].logits.argmax(-1))[-1] == "4"
    assert names["W"].weights.shape == (10, 8, 16, 16)
    assert names["join"](names["played"]).matrices["W"].weights.shape == (4, 2, 8, 8)


def test_what_is_no_sequence_of_tokens_is_refused():
    with pytest.raises(InvalidInput, match=r"shape \(1, 3\), expected \(T,\)"):
        rfwp.trace(build(), torch.ones(1, 3, dtype=torch.long))
    with pytest.raises(InvalidInput, match="outside of the vocabulary"):
        rfwp.trace(build(), [1, 11])
    with pytest.raises(InvalidInput, match="takes a SequenceModel, saw Linear"):
        rfwp.trace(torch.nn.Linear(2, 2), [1])


# --- Carried states ---

AGENTS = {"delta rnn": FWPConfig(fast="rnn", phi="softmax"), "rdn": FWPConfig(slow="recurrent", phi="softmax")}


def agent_and_inputs(layer):
    torch.manual_seed(0)
    core = BlocksConfig(layer, width=8, layers=2, heads=2, ff=12)
    agent = rfwp.Agent(AgentConfig(actions=3, vector=5, features=6, core=core)).eval()
    reset = torch.zeros(1, T, dtype=torch.bool)
    reset[:, 0] = reset[:, 6] = True
    return agent, torch.randn(1, T, 5), torch.randn(1, T), reset


@pytest.mark.parametrize("name", [*AGENTS, "LSTM slow net"])
def test_agent_is_recorded_step_by_step_with_its_carried_state(name):
    agent, seen, reward, reset = agent_and_inputs(AGENTS.get(name) or COMPOSITIONS[name])
    recorded, state, values, layers = Recorded(agent), None, [], []
    with torch.no_grad():
        whole, last = agent(seen, reward, None, reset)
        for t in range(T):
            output, state = recorded.model.step(seen[:, t], reward[:, t], state, reset[:, t])
            values.append(output.value)
            layers.append(recorded.layers)
    torch.testing.assert_close(torch.cat(values), whole.value[0], rtol=1e-5, atol=1e-5)
    for number, expected in enumerate(last):
        together = join([step[number] for step in layers])
        for matrix, record in together.matrices.items():
            torch.testing.assert_close(record.weights[-1], expected[matrix][0], rtol=1e-5, atol=1e-5)
            written = record.writes.unsqueeze(-1) * record.keys.unsqueeze(-2)
            torch.testing.assert_close(record.weights, record.before + written, rtol=1e-5, atol=1e-5)
            for t in (0, 3, 6, 9):
                torch.testing.assert_close(record.change(t), written[t], rtol=1e-5, atol=1e-5)


def test_joined_steps_are_the_whole_call():
    agent, seen, reward, reset = agent_and_inputs(AGENTS["rdn"])
    recorded, state, parts = Recorded(agent), None, []
    with torch.no_grad():
        recorded.model(seen, reward, None, reset)
        whole = recorded.layers[1]
        for some in (slice(0, 4), slice(4, 9), slice(9, T)):
            _, state = recorded.model(seen[:, some], reward[:, some], state, reset[:, some])
            parts.append(recorded.layers[1])
    for name, expected in vars(whole.matrices["W"]).items():
        torch.testing.assert_close(getattr(join(parts).matrices["W"], name), expected, rtol=1e-5, atol=1e-5)
    assert (parts[1].matrices["W"].start != 0).any()


def test_shares_do_not_reach_behind_an_emptied_memory():
    agent, seen, reward, reset = agent_and_inputs(AGENTS["delta rnn"])
    recorded = Recorded(agent)
    with torch.no_grad():
        recorded.model(seen, reward, None, reset)
    shares = recorded.layers[0].matrices["W"].shares(9)
    assert torch.equal(shares[:6], torch.zeros(6, 2))
    torch.testing.assert_close(shares.sum(0), torch.ones(2), rtol=1e-4, atol=1e-4)
