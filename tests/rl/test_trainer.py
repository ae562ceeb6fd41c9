"""Runs of agents in folders: records, checkpoints, signals, faults."""

import json
import os
import re
import signal
import threading
import time

import pytest
import torch

import rfwp
from rfwp.config import AttentionConfig, BlocksConfig, from_dict, replace, to_dict
from rfwp.errors import InvalidFile, InvalidInput
from rfwp.rl import trainer as module
from rfwp.rl.faults import EnvironmentFailed
from rfwp.rl.result import RLFolder, RLResult
from rfwp.tasks.environments import make
from rfwp.train import Diverged
from rfwp.train.checkpoint import read
from rfwp.train.folder import read_run_config
from rfwp.train.log import ConsoleLog, Log
from tests.rl.tiny import tiny_config, trainer


class Lines(Log):
    def __init__(self):
        self.lines, self.numbers = [], []

    def say(self, line):
        self.lines.append(line)

    warn = say

    def scalars(self, values, step):
        self.numbers.append((step, values))


@pytest.fixture(autouse=True)
def record_often(monkeypatch):
    monkeypatch.setattr(module, "RECORD_SECONDS", 0.0)


@pytest.fixture(params=["in turn", "side by side"])
def way(request):
    """Of free mode."""
    yield {"side_by_side": request.param == "side by side"}
    assert "player" not in {thread.name for thread in threading.enumerate()}


MODES = pytest.mark.parametrize(
    ("mode", "way"),
    [("free", {"side_by_side": False}), ("free", {"side_by_side": True}), ("lockstep", {})],
    ids=["in turn", "side by side", "lockstep"],
)


@MODES
def test_a_run_leaves_records_a_checkpoint_that_loads_and_a_result(mode, way, tmp_path):
    log = Lines()
    result = trainer(tmp_path, tiny_config(mode=mode), log=log, **way).run()
    assert (result.steps, result.updates, result.stopped) == (400, 10, None)
    records = RLFolder(tmp_path).records()
    assert {r["steps"] for r in records} == set(range(40, 401, 40))
    for name in ("total", "entropy", "weight", "cut", "lag", "lag_max", "gradient", "lr", "steps_per_s", "failures", "seconds"):
        assert name in records[-1]
    assert result.metrics["return"] == records[-1]["return"]
    assert result.curve[-1] == (400, records[-1]["return"])
    assert log.numbers[-1][0] == 400
    assert log.numbers[-1][1]["rl/entropy"] == records[-1]["entropy"]
    agent = rfwp.load(str(tmp_path / "last"))
    assert agent.config == result.config.agent
    assert RLResult.from_json(json.loads((tmp_path / "result.json").read_text())) == result
    assert trainer(tmp_path, tiny_config(mode=mode)).run() == result
    assert read_run_config(tmp_path) == result.config
    assert read_run_config(tmp_path / "last") is None


@MODES
def test_a_stopped_run_goes_on_with_the_weights_and_the_mean_squares_it_had(mode, way, tmp_path):
    log, config = Lines(), tiny_config(mode=mode)
    first = trainer(tmp_path, config, seconds=1e-9, **way)
    assert first.run().stopped == "time"
    assert not RLFolder(tmp_path).finished
    second = trainer(tmp_path, config, log=log)
    second._resume()
    assert second.learner.steps == first.learner.steps == 40
    for one, other in zip(first.learner.parameters, second.learner.parameters, strict=True):
        assert torch.equal(one, other)
        for name, value in first.learner.optimiser.state[one].items():
            assert torch.equal(value, second.learner.optimiser.state[other][name])
    result = trainer(tmp_path, config, log=log, **way).run()
    assert (result.steps, result.updates) == (400, 10)
    assert "resumed after 40 steps; the environments start anew" in log.lines
    assert [r["steps"] for r in RLFolder(tmp_path).records()] == list(range(40, 401, 40))


def test_a_resumed_run_plays_other_games(tmp_path):
    first = trainer(tmp_path, seconds=1e-9)
    before = first.actors._seed("actor")
    first.run()
    second = trainer(tmp_path)
    second._resume()
    assert second.actors._seed("actor") != before


def test_a_damaged_checkpoint_is_said_and_the_one_before_is_used(tmp_path):
    trainer(tmp_path, save_minutes=0, seconds=0.05).run()
    trainer(tmp_path, save_minutes=0, seconds=1e-9).run()
    (tmp_path / "last" / "model.safetensors").write_bytes(b"")
    log = Lines()
    assert trainer(tmp_path, log=log).run().steps == 400
    assert "model.safetensors does not have its checksum" in log.lines[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops(number, way, tmp_path):
    def interrupted(config, n, threads, first):
        # while the environments of the first group are made; a second Ctrl-C would leave at once
        if first == 0:
            os.kill(os.getpid(), number)
        return make(config, n, threads, first)

    log = Lines()
    result = trainer(tmp_path, make=interrupted, log=log, **way).run()
    assert result.stopped == number.name
    assert read(tmp_path / "last").state["steps"] == result.steps == 40
    assert log.lines[-1].startswith(f"stopped by {number.name} after 40 steps, saved; go on with: rfwp train --resume")


class Failing:
    """The environments of a config that raise at each of these steps of theirs, once `when` holds."""

    def __init__(self, *arguments, at, when=lambda: True):
        self._inside, self.at, self.when, self.step = make(*arguments), at, when, 0

    def __getattr__(self, name):
        return getattr(self._inside, name)

    def recv(self):
        self.step += 1
        if self.step in self.at:
            end = time.monotonic() + 60
            while not self.when() and time.monotonic() < end:
                time.sleep(0.001)
            raise RuntimeError("emulator lost")
        return self._inside.recv()


@MODES
def test_training_goes_on_when_an_environment_fails(mode, way, tmp_path):
    log, failing = Lines(), [{7}]
    result = trainer(
        tmp_path, tiny_config(mode=mode), log=log, make=lambda *a: Failing(*a, at=failing.pop() if failing else ()), **way
    ).run()
    assert (result.steps, result.failures) == (400, 1)
    assert any("failed with RuntimeError: emulator lost; they are started anew (failure 1)" in line for line in log.lines)


def test_an_environment_that_fails_again_and_again_stops_the_run_with_the_cause_and_a_checkpoint(way, tmp_path):
    # of the first environments only: what was learned before is kept
    log, ages = Lines(), [{12}, {12}]

    def learned():
        # side by side, environments could fail before the learner has had a core
        return not way["side_by_side"] or agent.learner.updates > 0

    agent = trainer(tmp_path, log=log, make=lambda *a: Failing(*a, at=ages.pop() if ages else {1}, when=learned), **way)
    with pytest.raises(EnvironmentFailed, match="3 times in a row, the last time with RuntimeError: emulator lost"):
        agent.run()
    steps = read(tmp_path / "last").state["steps"]
    assert steps >= 40
    assert log.lines[-1].startswith(f"stopped by its environments after {steps} steps, saved; go on with: rfwp train --resume")


def test_a_checkpoint_names_the_optimisers_tensors_by_optimiser_and_parameter(tmp_path):
    agent = trainer(tmp_path, seconds=1e-9)
    agent.run()
    expected = {f"rmsprop.square_avg.{name}" for name, _ in agent.agent.named_parameters()}
    assert expected < set(read(tmp_path / "last").optimiser)


def test_a_checkpoint_of_another_action_set_is_one_line(tmp_path):
    trainer(tmp_path, seconds=1e-9).run()
    config = json.loads((tmp_path / "config.json").read_text())
    config["run"]["agent"]["actions"] = 5
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidFile, match="has 3 actions, but this one 5; it is of another action set"):
        trainer(tmp_path, from_dict(config["run"])).run()


def test_an_agent_that_does_not_fit_its_environment_is_one_line(tmp_path):
    with pytest.raises(InvalidInput, match="the environment has 3 actions but the agent 5"):
        trainer(tmp_path, replace(tiny_config(), {"agent.actions": 5})).run()


def test_weights_that_are_no_numbers_are_not_saved(tmp_path):
    diverging = trainer(tmp_path, save_minutes=0)
    count = diverging.learner.count

    def spoil(steps):
        count(steps)
        if diverging.learner.updates == 3:
            with torch.no_grad():
                diverging.agent.value.weight[0, 0] = float("inf")

    diverging.learner.count = spoil
    with pytest.raises(Diverged, match="not finite after update 3"):
        diverging.run()
    assert read(tmp_path / "last").state["updates"] == 2


def test_a_run_of_another_config_is_refused(tmp_path):
    trainer(tmp_path, seconds=1e-9).run()
    with pytest.raises(InvalidInput, match=r"impala.lr 0.003 -> 0.1; use another folder"):
        trainer(tmp_path, tiny_config(lr=0.1))


def test_a_folder_with_another_kind_of_run_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"run": to_dict(tiny_config().agent)}))
    with pytest.raises(InvalidFile, match="holds no run of an agent"):
        RLFolder(tmp_path).config()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"graphs": True}, "CUDA graphs need a GPU"),
        ({"save_minutes": -1}, "save_minutes=-1"),
        ({"seconds": 0}, "seconds=0"),
    ],
)
def test_bad_options_are_one_line(options, message, tmp_path):
    with pytest.raises(InvalidInput, match=message):
        trainer(tmp_path, **options)


def test_attention_is_for_lockstep(tmp_path):
    core = BlocksConfig(AttentionConfig(window=4), width=8, layers=1, heads=2, ff=8)
    config = replace(tiny_config(), {"agent.core": core})
    with pytest.raises(InvalidInput, match=r"use impala\.mode=lockstep"):
        trainer(tmp_path, config)
    assert trainer(tmp_path, replace(config, {"impala.mode": "lockstep"})).run().steps == 400


def test_the_shallow_stem_plays_pong_and_its_emulators_are_busy(way, tmp_path):
    changes = {
        "agent": replace(tiny_config().agent, {"vector": 0, "stem": "shallow", "actions": 6}),
        "environment": rfwp.config.AtariConfig("pong"),
        "impala.environments": 2,
        "impala.batch": 2,
        "impala.steps": 40,
    }
    result = trainer(tmp_path, replace(tiny_config(), changes), threads=1, **way).run()
    assert result.steps == 40
    assert 0 <= RLFolder(tmp_path).records()[-1]["busy"] <= 1.1


def test_a_terminal_gets_a_live_line(tmp_path, monkeypatch):
    shown = []
    log = ConsoleLog(tensorboard=False)
    log.live = True
    monkeypatch.setattr(log, "start", lambda *_: None)
    monkeypatch.setattr(log, "show", shown.append)
    slow = trainer(tmp_path, log=log)
    add = slow.meter.add
    slow.meter.add = lambda *a: (add(*a), time.sleep(0.15))
    slow.run()
    assert re.search(r"/400 steps, \d+ s left, return", shown[-1])
