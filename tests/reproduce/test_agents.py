"""`rfwp reproduce atari`: agents, games and seeds; what is missing, how long it takes, and the line of a finished run."""

import json
import signal

import pytest

from rfwp.config import AtariConfig, replace, to_dict
from rfwp.report.atari import render_atari
from rfwp.report.records import Run, read_runs
from rfwp.reproduce.agents import START_SECONDS, TEST_SECONDS, AgentCosts, agent_jobs
from rfwp.reproduce.jobs import missing
from rfwp.reproduce.options import ReproduceOptions
from rfwp.reproduce.worker import work
from rfwp.rl.learner import Learner
from tests.rl.tiny import tiny_config
from tests.test_cli import run as command
from tests.train.tiny import before_call

TINY = {
    "agent.stem": "shallow",
    "agent.features": 4,
    "agent.core.width": 4,
    "agent.core.heads": 2,
    "agent.core.ff": 4,
    "agent.core.layers": 1,
    "impala.batch": 2,
    "impala.unroll": 5,
    "impala.environments": 4,
    "environment.max_frames": 120,
}
SET = tuple(f"{name}={value}" for name, value in TINY.items())


def options(**others):
    return ReproduceOptions(**{"table": "atari", "steps": 40, "games": ("pong",), "models": ("rdn",), "seeds": (1,)} | others)


def line(job, seconds=10.0):
    return Run(job.preset, job.seed, to_dict(job.config), {"score": 1.0}, {}, seconds, 0, 0, 1, device="here")


def test_every_model_in_every_game_with_every_seed():
    jobs = agent_jobs(options(games=("pong,Seaquest",), models=("rdn,lstm", "rdn-large"), seeds=(1, 2, 1)))
    assert [str(job) for job in jobs] == [
        f"{preset} {game} seed {seed}"
        for game in ("pong", "seaquest")
        for preset in ("atari/rdn", "atari/lstm", "atari-large/rdn")
        for seed in (1, 2)
    ]
    assert [job.config.agent.actions for job in jobs[::6]] == [6, 18]
    assert {job.config.impala.steps for job in jobs} == {40}
    assert len({job.folder for job in jobs}) == len(jobs)


def test_a_game_that_is_named_twice_is_played_once():
    assert len(agent_jobs(options(games=("pong", "Pong,PONG")))) == 1


def test_another_number_of_steps_protocol_or_recipe_is_another_folder():
    folders = {
        agent_jobs(options(**change))[0].folder
        for change in ({}, {"steps": 80}, {"set": ("environment.protocol=standard",)}, {"seeds": (2,)}, {"recipe": "short"})
    }
    assert len(folders) == 5


def test_without_models_all_of_the_table():
    names = [job.preset.partition("/")[2] for job in agent_jobs(options(models=()))]
    assert names == ["feedforward", "feedforward-gated", "lstm", "linear-transformer", "delta-net", "rdn", "delta-rnn"]


def test_a_finished_run_is_missing_no_more_but_one_with_other_steps_is():
    one, other = agent_jobs(options(seeds=(1, 2)))
    assert missing([one, other], [line(one)]) == [other]
    (longer,) = agent_jobs(options(steps=80))
    assert missing([longer], [line(one)]) == [longer]


def test_progress_is_the_part_of_the_steps(tmp_path):
    (job,) = agent_jobs(options(runs_folder=tmp_path))
    assert job.progress() == 0
    job.folder.mkdir(parents=True)
    (job.folder / "metrics.jsonl").write_text('{"steps": 10}\n')
    assert job.progress() == 0.25


def test_costs_go_by_the_speed_of_finished_runs_of_the_same_agent_first():
    rdn, lstm, net = agent_jobs(options(models=("rdn", "lstm", "delta-net"), steps=1000))
    runs = [line(rdn, seconds=100.0), line(lstm, seconds=10.0)]
    costs = AgentCosts(runs, "here")
    fixed = START_SECONDS + TEST_SECONDS
    assert costs.left(rdn) == pytest.approx(fixed + 100)
    assert costs.left(lstm) == pytest.approx(fixed + 10)
    assert costs.left(net) == pytest.approx(fixed + 1000 / 55)
    guess = AgentCosts([], "here").left(rdn)
    assert guess > fixed
    assert AgentCosts(runs, "a faster one").left(rdn) == guess


def test_the_command_trains_tests_and_adds_a_line_for_the_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = ("reproduce", "atari", "--games", "pong", "--models", "rdn", "--steps", "40", "--seeds", "1", "--device", "cpu")
    code, out, err = command(capsys, *asked, "--set", *SET)
    assert (code, err) == (0, ""), out
    assert "  atari/rdn pong: seed 1, about" in out
    (run,) = read_runs(tmp_path / "results/runs")
    assert (run.preset, run.seed, run.config["impala"]["steps"]) == ("atari/rdn", 1, 40)
    assert run.config["environment"] == to_dict(AtariConfig("pong", max_frames=120))
    saved = json.loads(next(tmp_path.glob("runs/*/seed-1/eval-paper_code.json")).read_text())
    assert run.metrics["score"] == saved["mean"]
    assert run.metrics["score std"] == saved["std"]
    assert [len(returns) for returns in saved["returns"]] == [30] * 5

    code, out, _ = command(capsys, *asked, "--set", *SET)
    assert code == 0
    assert "1 of 1 runs are finished, 0 missing" in out
    table = render_atari([run])
    assert table.rows == []
    assert table.notes[0].startswith("left out, another agent: atari/rdn (agent.core.")


def test_a_run_that_was_told_to_stop_goes_on_and_adds_its_line_once(tmp_path, monkeypatch):
    request = {
        "config": to_dict(tiny_config()),
        "folder": str(tmp_path / "run"),
        "out": str(tmp_path),
        "device": "cpu",
        "commit": "c",
    }
    clip = Learner.clip
    monkeypatch.setattr(Learner, "clip", before_call(3, clip, lambda: signal.raise_signal(signal.SIGTERM)))
    assert not work(request)
    assert read_runs(tmp_path) == []
    monkeypatch.setattr(Learner, "clip", clip)
    assert work(request)
    (run,) = read_runs(tmp_path)
    assert (run.preset, run.commit, run.config["kind"]) == ("tiny", "c", "rlrun")
    assert -1 <= run.metrics["score"] <= 1
    assert json.loads((tmp_path / "run/result.json").read_text())["steps"] >= 400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["atari"], "atari needs --steps, the agent steps of each run; the paper's trainings had 200,000,000"),
        (["atari", "--steps", "10", "--games", "pongg"], "unknown Atari game 'pongg'; did you mean 'pong'?"),
        (["atari", "--steps", "10", "--games", "pong", "--models", "rdm"], "unknown model of atari 'rdm'; did you mean 'rdn'?"),
        (["atari", "--steps", "10", "--games", "pong", "--text", "here"], "--text is not for agents; leave it away"),
        (["listops-10", "--games", "pong"], "--games is for atari: rfwp reproduce atari --games pong seaquest"),
        (["listops-10", "--recipe", "short"], "--recipe short is for atari: rfwp reproduce atari --recipe short"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert command(capsys, "reproduce", *arguments) == (2, "", f"rfwp: {message}\n")


def test_a_changed_config_still_fits():
    (job,) = agent_jobs(options(set=SET))
    assert job.config == replace(job.config, TINY)
