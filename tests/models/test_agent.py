from dataclasses import replace

import pytest
import torch
from torch import nn

from rfwp.config import AgentConfig, AttentionConfig, BlocksConfig, FWPConfig, HighwayConfig, LSTMConfig, NoCoreConfig
from rfwp.errors import InvalidInput, UnknownName
from rfwp.models import Agent
from rfwp.models.agent import Residual, Stem, VectorStem
from tests.contract import STATEFUL, STATELESS, leaves
from tests.tolerances import FLOAT64

B, T, C, PIXELS = 3, 7, 2, 9

RDN = FWPConfig(slow="recurrent", phi="softmax")
SMALL = {"width": 12, "layers": 2, "heads": 3, "ff": 10}
CORES = {
    "rdn": BlocksConfig(layer=RDN, **SMALL),
    "attention": BlocksConfig(layer=AttentionConfig(window=4), **SMALL),
    "lstm": LSTMConfig(hidden=7),
}


def agent_and_input(core):
    torch.manual_seed(0)
    config = AgentConfig(actions=5, core=core, channels=(3, 4), features=8, frames=C, pixels=PIXELS)
    frames = torch.randint(0, 256, (B, T, C, PIXELS, PIXELS), dtype=torch.uint8)
    return Agent(config).double(), frames, 3 * torch.randn(B, T, dtype=torch.float64)


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("check", STATEFUL, ids=lambda c: c.__name__)
def test_agent_with_memory_keeps_the_contract(check, name):
    agent, *inputs = agent_and_input(CORES[name])
    check(agent, inputs)


@pytest.mark.parametrize("core", [HighwayConfig(hidden=5), NoCoreConfig()], ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("check", STATELESS, ids=lambda c: c.__name__)
def test_agent_without_memory_keeps_the_contract(check, core):
    agent, *inputs = agent_and_input(core)
    check(agent, inputs)


def vector_agent_and_input(core):
    torch.manual_seed(0)
    agent = Agent(AgentConfig(actions=5, core=core, features=8, vector=6)).double()
    return agent, torch.randn(B, T, 6, dtype=torch.float64), 3 * torch.randn(B, T, dtype=torch.float64)


@pytest.mark.parametrize("name", CORES)
@pytest.mark.parametrize("check", STATEFUL, ids=lambda c: c.__name__)
def test_agent_for_vectors_keeps_the_contract(check, name):
    agent, *inputs = vector_agent_and_input(CORES[name])
    check(agent, inputs)


def test_stem_for_vectors_is_two_linear_layers():
    stem = VectorStem(6, 8).double()
    x = torch.randn(3, 6, dtype=torch.float64)
    V, a, W, b = stem.parameters()
    torch.testing.assert_close(stem(x), (((x @ V.T + a).relu() @ W.T) + b).relu(), **FLOAT64)
    assert [tuple(p.shape) for p in (V, a, W, b)] == [(8, 6), (8,), (8, 8), (8,)]


def test_agent_for_vectors_survives_saving(tmp_path):
    agent, *inputs = vector_agent_and_input(CORES["rdn"])
    agent.float().save_pretrained(tmp_path)
    again = Agent.from_pretrained(tmp_path)
    assert again.config == agent.config
    vector, reward = (x.float() for x in inputs)
    assert torch.equal(again(vector, reward)[0].logits, agent(vector, reward)[0].logits)


def test_output_is_logits_and_value():
    agent, *inputs = agent_and_input(CORES["rdn"])
    output, _ = agent(*inputs)
    assert output.logits.shape == (B, T, 5)
    assert output.value.shape == (B, T)


@pytest.mark.parametrize("name", CORES)
def test_heads_keep_full_precision_under_autocast(name):
    agent, frames, reward = agent_and_input(CORES[name])
    agent, reward = agent.float(), reward.float()
    expected = agent(frames, reward)[0]
    with torch.autocast("cpu", torch.bfloat16):
        output = agent(frames, reward)[0]
    for y, want in zip(output, expected, strict=True):
        assert y.dtype == torch.float32
        assert 0 < (y - want).abs().max() < 0.05


def test_rewards_are_clipped_inside():
    agent, frames, reward = agent_and_input(CORES["lstm"])
    for a, b in zip(leaves(agent(frames, reward)[0]), leaves(agent(frames, reward.clamp(-1, 1))[0]), strict=True):
        torch.testing.assert_close(a, b, **FLOAT64)
    assert not torch.allclose(agent(frames, reward)[0].value, agent(frames, reward / 10)[0].value)


def test_stem_has_fifteen_convolutions_and_sees_84_pixels_as_11():
    stem = Stem(4, 84, (16, 32, 32), 256)
    assert sum(isinstance(m, nn.Conv2d) for m in stem.modules()) == 15
    assert stem.out.in_features == 32 * 11 * 11
    assert stem(torch.zeros(2, 4, 84, 84, dtype=torch.uint8)).shape == (2, 256)


@pytest.mark.parametrize("pixels", [1, 8, 9, 21])
def test_stem_takes_frames_of_any_size(pixels):
    stem = Stem(2, pixels, (3, 4), 5)
    assert stem(torch.zeros(1, 2, pixels, pixels, dtype=torch.uint8)).shape == (1, 5)


@pytest.mark.parametrize("stem", ["deep", "shallow"])
def test_orthogonal_weights_keep_the_size_of_what_they_map(stem):
    torch.manual_seed(0)
    agent = Agent(AgentConfig(actions=6, core=LSTMConfig(hidden=16), stem=stem, init="orthogonal"))
    for module, gain in ((agent.stem.out, 2**0.5), (agent.policy, 0.01), (agent.value, 1.0)):
        singular = torch.linalg.svdvals(module.weight)
        torch.testing.assert_close(singular, torch.full_like(singular, gain), rtol=1e-4, atol=0)
        assert not module.bias.any()


def test_a_deep_stem_of_orthogonal_weights_begins_with_small_residual_branches():
    torch.manual_seed(0)
    for residual in (m for m in Agent(AgentConfig(init="orthogonal")).stem.modules() if isinstance(m, Residual)):
        x = torch.rand(1, residual.first.in_channels, 12, 12)
        assert 0 < (residual(x) - x).norm() < 0.2 * x.norm()


def test_initial_weights_of_the_core_are_its_own():
    cores = []
    for init in ("default", "orthogonal"):
        torch.manual_seed(0)
        cores.append(Agent(AgentConfig(core=CORES["rdn"], init=init)).core.state_dict())
    assert all(torch.equal(cores[0][name], cores[1][name]) for name in cores[0])


@pytest.mark.parametrize(
    ("core", "features", "count"),
    [
        (NoCoreConfig(), 256, 1_091_038),
        (LSTMConfig(), 256, 1_618_391),
        (HighwayConfig(), 320, 1_668_631),
        (BlocksConfig(layer=RDN, width=128, layers=2, heads=4, ff=512), 256, 1_544_535),
    ],
    ids=["feedforward", "lstm", "highway", "rdn"],
)
def test_parameter_counts(core, features, count):
    with torch.device("meta"):
        agent = Agent(AgentConfig(actions=6, core=core, features=features))
    assert sum(p.numel() for p in agent.parameters()) == count


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a, f, r: a(f.float(), r), "frames are torch.float32, expected torch.uint8"),
        (lambda a, f, r: a(f[:, :, :1], r), "frames has shape (3, 7, 1, 9, 9), expected (B, T, 2, 9, 9)"),
        (lambda a, f, r: a(f, r[:, :3]), "reward has shape (3, 3)"),
        (lambda a, f, r: a(f, r.long()), "reward is torch.int64, expected a floating dtype"),
        (lambda a, f, r: a(f, r, None, torch.zeros(B, 3, dtype=torch.bool)), "reset has shape (3, 3)"),
        (lambda a, f, r: a(f, r, ({"h": r}, {"h": r})), "this state has h; the layer expects W, y"),
        (lambda a, f, r: a(f.to("meta"), r), "frames is on meta but the model is on cpu"),
        (lambda a, f, r: a(f[:2], r[:2], a(f, r)[1]), "state W has shape (3, 3, 4, 4), expected (2, 3, 4, 4)"),
        (lambda a, f, r: a.step(f[:, 0], r[:, 0], None, [False] * B), "Agent.step: reset is a list, expected a tensor"),
        (lambda a, f, r: a.step(f[:, 0], 0.0), "Agent.step: reward is a float, expected a tensor"),
        (lambda a, f, r: Agent(replace(a.config, actions=0)), "actions=0; use at least 1"),
        (lambda a, f, r: Agent(replace(a.config, channels=())), "channels=()"),
    ],
)
def test_bad_input_is_one_line(call, message):
    with pytest.raises(InvalidInput) as caught:
        call(*agent_and_input(CORES["rdn"]))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_initial_weights_are_one_line():
    with pytest.raises(UnknownName, match="unknown init 'ortho'; did you mean 'orthogonal'"):
        Agent(AgentConfig(init="ortho"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a, x, r: a(x[..., :4], r), "vector has shape (3, 7, 4), expected (B, T, 6)"),
        (lambda a, x, r: a(x.byte(), r), "vector is torch.uint8, expected a floating dtype"),
        (lambda a, x, r: a(x.to("meta"), r), "vector is on meta but the model is on cpu"),
        (lambda a, x, r: Agent(replace(a.config, vector=-1)), "vector=-1; use the size of an observation, or 0 for frames"),
    ],
)
def test_bad_vector_is_one_line(call, message):
    with pytest.raises(InvalidInput) as caught:
        call(*vector_agent_and_input(CORES["rdn"]))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
