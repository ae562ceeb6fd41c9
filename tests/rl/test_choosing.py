"""Choosing actions in fixed memory, as a CUDA graph holds it, against an agent's plain steps."""

from types import SimpleNamespace

import pytest
import torch

from rfwp.config import AttentionConfig, BlocksConfig, FWPConfig, HighwayConfig, MemoryGameConfig
from rfwp.errors import InvalidInput
from rfwp.layers import LSTM
from rfwp.rl.choosing import Choosing, recordable
from rfwp.rl.evaluate import Player, evaluate
from tests.rl.fake import CORES, SMALL, Noise, make_agent
from tests.rl.tape import on_tape, use_tapes
from tests.rl.test_recordable import Looked
from tests.tolerances import FLOAT32

ALL = {
    **CORES,
    "highway": HighwayConfig(hidden=6),
    "sums": BlocksConfig(layer=FWPConfig(rule="sum", phi="elu_sum_eps"), **SMALL),
    "two steps of attention": BlocksConfig(layer=AttentionConfig(window=2), **SMALL),
}
GROWING = BlocksConfig(layer=AttentionConfig(window=4), **SMALL)


def choosing(agent, environment, greedy=True, record=False):
    chosen = Choosing(agent, environment, environment.reset(1), seed=3, greedy=greedy, record=False)
    if record:
        # by itself it records on a GPU only
        with recordable(agent):
            chosen.inference.record()
    return chosen


@pytest.mark.parametrize("record", [False, True])
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("core", ALL)
def test_actions_logits_and_values_are_those_of_plain_steps(core, greedy, record, monkeypatch):
    use_tapes(monkeypatch)
    environment = Noise()
    agent = make_agent(ALL[core], environment)
    choose = choosing(on_tape(agent) if record else agent, environment, greedy, record)
    now, state, generator, found = environment.reset(1), None, torch.Generator().manual_seed(3), []
    for _ in range(60):
        output, actions = choose(now)
        with torch.no_grad():
            expected, state = agent.step(*map(torch.from_numpy, now[:2]), state, torch.from_numpy(now.done))
            noise = 0 if greedy else torch.empty_like(expected.logits).exponential_(generator=generator).log()
        found.append((output, actions, expected, (expected.logits - noise).argmax(-1).tolist(), now.done.any()))
        environment.send(actions)
        now = environment.recv()
    # compared at the end: nothing that was given out is written over
    assert sum(done for *_, done in found) > 10
    for output, actions, expected, best, _ in found:
        torch.testing.assert_close(output.logits, expected.logits, **FLOAT32)
        torch.testing.assert_close(output.value, expected.value, **FLOAT32)
        assert actions.tolist() == best


@pytest.mark.parametrize("core", ["feedforward", "lstm", "rdn"])
def test_scores_are_those_of_a_recorded_agent(core, monkeypatch):
    use_tapes(monkeypatch)
    agent = on_tape(make_agent(CORES[core], SimpleNamespace(actions=3, shape=(50,))))
    catch = MemoryGameConfig("catch")
    expected = evaluate(agent, catch, episodes=6, runs=2, seed=1)

    def recorded(agent, environment, first, **how):
        chosen = Choosing(agent, environment, first, **how)
        with recordable(agent):
            chosen.inference.record()
        return chosen

    monkeypatch.setattr("rfwp.rl.evaluate.Choosing", recorded)
    assert evaluate(agent, catch, episodes=6, runs=2, seed=1).returns == expected.returns


@pytest.mark.parametrize("core", ALL)
def test_a_recorded_step_never_looks_at_a_value_and_leaves_the_agent_as_it_was(core, monkeypatch):
    use_tapes(monkeypatch)
    environment = Noise()
    agent = make_agent(ALL[core], environment)
    chosen = choosing(agent, environment)
    with Looked() as looked, torch.no_grad(), recordable(agent):
        chosen.inference._step()
    assert looked.ops == []
    assert not any(module.recordable for module in agent.modules() if isinstance(module, LSTM))


def test_an_agent_that_cannot_be_recorded_plays_step_by_step(monkeypatch, caplog):
    """A GPU would refuse it while it is recorded, after steps that have changed the state."""
    environment = Noise()
    chosen = choosing(make_agent(CORES["lstm"], environment), environment)
    first = environment.reset(1)

    def refuse():
        chosen.inference()
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    expected, _ = choosing(make_agent(CORES["lstm"], environment), environment)(first)
    monkeypatch.setattr(chosen.inference, "record", refuse)
    with caplog.at_level("WARNING", "rfwp"):
        chosen._record(chosen.inference.agent)
    assert "(RuntimeError: operation not permitted when stream is capturing); it plays step by step" in caplog.text
    found, _ = chosen(first)
    torch.testing.assert_close(found.logits, expected.logits, **FLOAT32)


def test_a_state_that_grows_is_not_recorded_and_played_all_the_same(monkeypatch):
    use_tapes(monkeypatch)
    environment = Noise()
    agent = make_agent(GROWING, environment)
    chosen = choosing(agent, environment)
    with pytest.raises(InvalidInput, match="grows from step to step"):
        chosen.inference.record()
    player = Player(agent, environment)
    for _ in range(6):
        player.step()
    assert player.seen.output.logits.shape == (3, 4)
