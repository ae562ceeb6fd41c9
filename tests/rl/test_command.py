"""`rfwp train` for agents, as a user sees it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from rfwp.cli import main
from rfwp.config import AgentConfig, AtariConfig, GymConfig, MemoryGameConfig, RLRunConfig
from rfwp.errors import InvalidInput
from rfwp.rl.changes import fit, kind_of
from rfwp.rl.options import RLOptions
from rfwp.rl.result import RLFolder
from rfwp.train.options import TrainOptions

SMALL = ["agent.features=8", "agent.core.width=8", "agent.core.heads=2", "agent.core.ff=8", "agent.core.layers=1"]
SMALL += ["impala.unroll=5", "impala.batch=4", "impala.environments=8"]


def run(capsys, *arguments):
    try:
        main(["train", *arguments])
        code = 0
    except SystemExit as leaving:
        code = leaving.code or 0
    out = capsys.readouterr()
    return code, out.out, " ".join(out.err.split())


def small(folder, *more, env="recall"):
    return ("rl", "--env", env, "--steps", "100", "--device", "cpu", "--out", str(folder), *more, "--set", *SMALL)


def test_an_agent_trains_in_any_environment_and_its_folder_tells_everything(capsys, tmp_path):
    code, out, _ = run(capsys, *small(tmp_path))
    assert code == 0
    assert "rl/rdn plays recall, seed 1" in out
    assert "agent steps" in out
    result = RLFolder(tmp_path).result()
    assert result.steps == 100
    assert isinstance(result.config.environment, MemoryGameConfig)
    assert (result.config.agent.actions, result.config.agent.vector) == (4, 5)
    code, _, error = run(capsys, *small(tmp_path))
    assert code == 2
    reached = f"return {result.metrics['return']:.2f}"
    assert error == f"rfwp: {tmp_path} holds this run already, finished ({reached}); use another --out to train it again"


def test_a_run_stopped_by_the_clock_goes_on_with_the_same_command_or_resume(capsys, tmp_path):
    assert run(capsys, *small(tmp_path, "--seconds", "1e-9"))[0] == 0
    assert not RLFolder(tmp_path).finished
    assert run(capsys, *small(tmp_path, "--seconds", "1e-9"))[0] == 0
    code, out, _ = run(capsys, "--resume", str(tmp_path), "--device", "cpu")
    assert code == 0
    assert "resumed after 40 steps; the environments start anew" in out
    assert RLFolder(tmp_path).result().steps == 100
    assert run(capsys, "--resume", str(tmp_path))[2].startswith(f"rfwp: {tmp_path} is finished")


def test_a_recipe_decides_what_set_leaves_open(capsys, tmp_path):
    assert run(capsys, *small(tmp_path, "--recipe", "short"), "impala.lr=1e-3")[0] == 0
    config = RLFolder(tmp_path).config()
    assert (config.agent.init, config.impala.warm_up, config.impala.unroll, config.impala.lr) == ("orthogonal", 125, 5, 1e-3)


def test_several_seeds_are_several_runs(capsys, tmp_path):
    assert run(capsys, *small(tmp_path, "--seeds", "3", "4"))[0] == 0
    results = [RLFolder(tmp_path / f"seed-{seed}").result() for seed in (3, 4)]
    assert [result.config.impala.seed for result in results] == [3, 4]
    assert results[0].curve != results[1].curve


def test_sizes_are_the_environments_and_others_are_refused():
    base = RLRunConfig(AgentConfig(), GymConfig("CartPole-v1"))
    fitted = fit(base)
    assert (fitted.agent.actions, fitted.agent.vector) == (2, 4)
    assert fit(fitted, keep={"agent.actions"}) == fitted
    with pytest.raises(InvalidInput, match=r"agent.actions=6, but this environment needs 2; leave it away"):
        fit(base, keep={"agent.actions"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("atari/rdn", "--game", "pongg"), "unknown Atari game 'pongg'; did you mean 'pong'?"),
        (("atari/rdn",), "an agent needs --game (Atari, such as pong) or --env (such as CartPole-v1 or recall); none is there"),
        (("rl", "--game", "pong", "--env", "catch"), "an agent needs --game"),
        (("rl", "--env", "CartPol-v1"), "unknown environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        (("rl", "--env", "Pendulum-v1"), "environment 'Pendulum-v1' has actions Box(-2.0, 2.0, (1,), float32); only discrete"),
        (("rl", "--env", "ALE/Pong-v5"), "--env ALE/Pong-v5 is an Atari game; use --game Pong"),
        (("rl", "--env", "pong"), "--env pong is an Atari game; use --game pong"),
        (("rl", "--env", "recal"), "unknown environment 'recal'; did you mean 'recall'?"),
        (("rl", "--env", "catch", "--core", "rnd"), "unknown preset 'atari/rnd'; did you mean 'atari/rdn'?"),
        (("atari/rdn", "--env", "catch", "--core", "lstm"), "--core lstm goes with rl"),
        (("rl", "--env", "catch", "--epochs", "3"), "--epochs is not for agents; leave it away"),
        (("rl", "--env", "catch", "--held-out", "texts"), "--held-out is not for agents; leave it away"),
        (("rl", "--env", "catch", "--checkpoint-blocks"), "--checkpoint-blocks is not for agents; leave it away"),
        (("rl", "--env", "catch", "--compile", "blocks"), "--compile blocks is not for agents"),
        (("rl", "--env", "catch", "--pack", "yes"), "--pack yes is not for agents"),
        (("rl", "--env", "catch", "--seeds", "1", "1"), "--seeds 1 1: a seed is there twice"),
        (("rl", "--env", "catch", "--set", "impala.mode=fre"), "unknown value for impala.mode 'fre'; did you mean 'free'?"),
        (("rl", "--env", "catch", "--set", "impala.environments=500"), "500 environments with 32 unrolls an update have a lag"),
        (("rl", "--env", "catch", "--set", "agent.actions=18"), "agent.actions=18, but this environment needs 3; leave it away"),
        (("rl", "--env", "catch", "--threads", "-1"), "threads=-1; use at least 1, or 0 for all cores but one in four"),
        (("--resume", "nothing", "--seconds", "5"), "nothing is no run folder"),
        (("listops-10/rdn", "--game", "pong"), "--game, --env and the like are for agents"),
    ],
)
def test_bad_arguments_are_one_line(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, _, error = run(capsys, *arguments)
    assert code == 2
    assert error.startswith(f"rfwp: {message}")
    assert not list(tmp_path.iterdir())


def test_resume_keeps_to_the_runs_config_and_folder(capsys, tmp_path):
    run(capsys, *small(tmp_path, "--seconds", "1e-9"))
    assert "holds a run of another config: impala.lr" in run(capsys, "--resume", str(tmp_path), "--set", "impala.lr=1")[2]
    assert "leave --out away" in run(capsys, "--resume", str(tmp_path), "--out", "elsewhere")[2]
    assert (
        f"--recipe short is for a new run; {tmp_path} keeps its own"
        in run(capsys, "--resume", str(tmp_path), "--recipe", "short")[2]
    )
    assert "--resume takes one run" in run(capsys, "--resume", str(tmp_path), "--seeds", "1", "2")[2]
    assert "holds no run of a model of sequences" in run(capsys, "listops-10/rdn", "--resume", str(tmp_path))[2]


def test_resume_in_another_environment_is_refused_and_in_its_own_goes_on(capsys, tmp_path):
    length = "environment.length=3"
    assert run(capsys, *small(tmp_path, "--seconds", "1e-9"), length)[0] == 0
    resume = ("--resume", str(tmp_path), "--device", "cpu")
    code, _, error = run(capsys, *resume, "--env", "catch")
    assert code == 2
    assert error.startswith(f"rfwp: {tmp_path} holds a run of another config: ")
    assert "environment.game recall -> catch" in error
    assert "environment.kind memorygame -> gym" in run(capsys, *resume, "--env", "CartPole-v1")[2]
    assert "environment.kind memorygame -> atari" in run(capsys, *resume, "--game", "pong")[2]
    assert "an agent needs --game (Atari" in run(capsys, *resume, "--game", "pong", "--env", "recall")[2]
    assert RLFolder(tmp_path).config().environment == MemoryGameConfig("recall", 3)
    # its length is not the usual one, and stays
    assert run(capsys, *resume, "--env", "recall")[0] == 0
    assert RLFolder(tmp_path).result().steps == 100


def test_resume_takes_a_game_by_any_of_its_spellings():
    config = fit(RLRunConfig(AgentConfig(), AtariConfig("ms_pacman", "standard")))
    for spelling in ("ms_pacman", "Ms. Pacman", "MsPacman"):
        assert kind_of(RLOptions(game=spelling)).change(config, TrainOptions()) == config
    assert kind_of(RLOptions(game="pong")).change(config, TrainOptions()) != config


def test_ctrl_c_saves_and_leaves_with_130(tmp_path):
    arguments = [argument if argument != "100" else "100000000" for argument in small(tmp_path)]
    command = [sys.executable, "-m", "rfwp", "train", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()
    assert process.returncode == 130
    assert f"saved; go on with: rfwp train --resume {tmp_path}" in out
    assert json.loads((tmp_path / "last" / "state.json").read_text())["steps"] > 0
