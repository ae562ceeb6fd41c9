"""`rfwp bench rl`, as quickly as it goes: that it runs and keeps what it found, not how fast anything is."""

import re

import pytest
import torch

from rfwp.bench.options import RLOptions
from rfwp.bench.records import read
from rfwp.bench.rl import bench_rl, choose
from rfwp.bench.rl_check import check
from rfwp.bench.run import run_benchmark
from rfwp.errors import InvalidInput, UnknownName
from rfwp.models import Agent

QUICK = {"quick": True, "device": "cpu", "agent": ("lstm",), "check": False}


def test_every_part_gives_a_row_of_agent_steps_a_second(tmp_path):
    said = []
    outcome = run_benchmark(RLOptions(**QUICK, out=tmp_path), said.append)
    names = ["environments", "actions lstm", "learner lstm", "end to end lstm", "plain gymnasium loop lstm"]
    assert [row.what for row in outcome.rows] == [f"rl {name}" for name in names]
    assert all(row.tokens_per_s > 0 for row in outcome.rows)
    together = outcome.rows[3]
    assert 0 <= together.lag <= 4
    assert together.busy >= 0
    assert read(outcome.files[0]) == outcome.rows
    assert len(said) == 5


def test_several_numbers_of_groups_are_timed_one_after_another_and_environments_once_for_each(tmp_path):
    options = RLOptions(
        **QUICK | {"agent": ("lstm", "feedforward")}, out=tmp_path, groups=(1, 2), parts=("environments", "actions")
    )
    outcome = bench_rl(options, lambda line: None)
    names = ["environments", "actions lstm", "actions feedforward"]
    assert [(row.what, row.sizes["groups"]) for row in outcome.rows] == [(f"rl {name}", n) for n in (1, 2) for name in names]
    with pytest.raises(InvalidInput, match="--groups needs at least one number"):
        choose(RLOptions(**QUICK, groups=()), torch.device("cpu"))


def test_an_agent_that_fails_its_check_is_not_timed(tmp_path, monkeypatch):
    step = Agent.step

    def wrong(self, *arguments):
        output, state = step(self, *arguments)
        return output._replace(logits=output.logits + 1), state

    options = RLOptions(**QUICK | {"check": True}, out=tmp_path, parts=("actions",))
    (setting,) = choose(options, torch.device("cpu"))
    assert check(setting.config, setting.trainer) == ""
    monkeypatch.setattr(Agent, "step", wrong)
    outcome = bench_rl(options, lambda line: None)
    assert not outcome.rows
    assert outcome.failures == ["lstm fp32: the learner's logits differ from the actors' by 1.0e+00 > 1e-03"]


def test_a_part_that_fails_does_not_take_the_others_with_it(tmp_path, monkeypatch, caplog):
    def broken(self, *arguments, **options):
        raise RuntimeError("out of luck")

    monkeypatch.setattr("rfwp.bench.rl.Updates", broken)
    outcome = bench_rl(RLOptions(**QUICK, out=tmp_path, parts=("learner", "actions")), lambda line: None)
    assert outcome.failures == ["learner lstm fp32: RuntimeError: out of luck"]
    assert "in broken" in caplog.text  # where it was raised
    assert [row.what for row in read(outcome.files[0])] == ["rl actions lstm"]


def test_what_was_found_is_kept_when_a_benchmark_is_stopped(tmp_path, monkeypatch):
    def stopped(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("rfwp.bench.rl.Updates", stopped)
    with pytest.raises(KeyboardInterrupt):
        bench_rl(RLOptions(**QUICK, out=tmp_path, parts=("actions", "learner")), lambda line: None)
    (file,) = tmp_path.glob("*.jsonl")
    assert [row.what for row in read(file)] == ["rl actions lstm"]


@pytest.mark.parametrize("part", ["actions", "learner"])
def test_a_compiled_stem_is_compiled_in_the_parts_too(tmp_path, monkeypatch, part):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **options: compiled.append(type(self).__name__))
    bench_rl(RLOptions(**QUICK, out=tmp_path, parts=(part,), compile_stem=True), lambda line: None)
    assert compiled == ["ShallowStem"]


def test_defaults_are_the_papers_on_a_gpu_and_small_on_the_cpu():
    gpu, cpu = (choose(RLOptions(agent=("rdn",)), torch.device(name))[0].config for name in ("cuda", "cpu"))
    assert (gpu.impala.batch, gpu.impala.unroll, gpu.impala.precision, gpu.agent.stem) == (32, 50, "tf32", "deep")
    assert (cpu.impala.batch, cpu.impala.unroll, cpu.impala.precision, cpu.agent.stem) == (8, 20, "fp32", "shallow")
    (free,) = choose(RLOptions(agent=("rdn",), envs=64, batch=8, max_lag=12), torch.device("cuda"))
    assert free.config.impala.max_lag == 12


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"groups": (2, 0)}, "impala.groups=0; use at least 1"),
        ({"groups": (2, 3)}, "impala.environments=16 cannot be shared by 3 groups"),
        ({"unroll": -3}, "impala.unroll=-3"),
        (
            {"envs": 64},
            "a lag above max_lag=4; use at most 32, or impala.max_lag=8",
        ),
        ({"seconds": -1.0}, "--seconds -1; use a positive number"),
        ({"emulators": -1}, "--emulators -1; use at least 1"),
    ],
)
def test_what_cannot_be_trained_is_not_timed_in_part(wrong, message):
    with pytest.raises(InvalidInput, match=re.escape(message)):
        choose(RLOptions(**wrong), torch.device("cpu"))


def test_unknown_agents_and_games_are_one_line():
    with pytest.raises(UnknownName, match="did you mean 'atari/rdn'"):
        choose(RLOptions(agent=("rnd",)), torch.device("cpu"))
    with pytest.raises(UnknownName, match="did you mean 'pong'"):
        choose(RLOptions(game="pog"), torch.device("cpu"))
    with pytest.raises(InvalidInput, match="--agent needs at least one"):
        choose(RLOptions(agent=()), torch.device("cpu"))
