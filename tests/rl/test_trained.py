"""`rfwp eval` and `rfwp watch` on the run of an agent."""

import json
from dataclasses import replace

import pytest
from PIL import Image

from rfwp.config import AtariConfig
from rfwp.rl.eval_options import AgentEvalOptions
from rfwp.rl.evaluate import evaluate
from rfwp.rl.trained import drops_negative, load_agent
from rfwp.train import Log
from tests.rl.tiny import tiny_config, trainer
from tests.test_cli import run

DEVICE = ["--device", "cpu"]


@pytest.fixture(scope="module")
def catch(tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("runs") / "catch"
    trainer(folder, tiny_config(mode="lockstep")).run()
    return folder


def test_eval_shows_the_score_of_the_last_checkpoint_and_leaves_all_returns(catch, capsys):
    code, out, err = run(capsys, "eval", str(catch), "--episodes", "7", "--runs", "3", *DEVICE)
    assert (code, err) == (0, "")
    trained = load_agent(catch, "cpu", Log())
    expected = evaluate(trained.agent, trained.config.environment, episodes=7, runs=3)
    cells = dict(line.split("  ", 1) for line in out.splitlines()[1:-1])
    assert cells["score"].strip() == f"{expected.mean:.2f} ± {expected.std:.2f}"
    assert cells["episodes"].strip() == "3 x 7"
    assert cells["after agent steps"].strip() == "400"
    saved = json.loads((catch / "eval.json").read_text())
    assert saved["returns"] == [list(returns) for returns in expected.returns]
    assert (saved["mean"], saved["steps"], saved["greedy"]) == (expected.mean, 400, True)


def test_sampled_actions_have_a_file_of_their_own(catch, capsys):
    assert run(capsys, "eval", str(catch), "--episodes", "2", "--runs", "1", "--sample", *DEVICE)[0] == 0
    assert json.loads((catch / "eval-sampled.json").read_text())["greedy"] is False


def test_watch_records_a_game(catch, tmp_path, capsys):
    code, out, _ = run(capsys, "watch", str(catch), *DEVICE)
    assert code == 0
    assert out.endswith(f"after 9 steps -> {catch / 'episode.gif'}\n")
    with Image.open(catch / "episode.gif") as video:
        assert video.n_frames == 9
    code, out, _ = run(capsys, "watch", str(catch), "--seconds", "1", "--out", str(tmp_path / "short.gif"), *DEVICE)
    assert code == 0
    with Image.open(tmp_path / "short.gif") as video:
        assert video.n_frames == 4


def test_watch_draws_one_frame(catch, capsys):
    assert run(capsys, "watch", str(catch), "--frame", "3", *DEVICE)[0] == 0
    with Image.open(catch / "frame.png") as picture:
        assert picture.width == 320
    code, _, err = run(capsys, "watch", str(catch), "--frame", "9", *DEVICE)
    assert (code, err) == (2, "rfwp: frame=9: the game has only 9 steps; give a smaller one\n")


def test_mistakes_are_one_line(catch, tmp_path, capsys):
    def mistake(*arguments):
        code, _, err = run(capsys, *map(str, arguments), *DEVICE)
        assert code == 2
        return err.removeprefix("rfwp: ").strip()

    assert mistake("eval", catch, "--split", "valid").startswith("--split, --input and --stride are not for agents")
    assert mistake("eval", catch, "--protocol", "standard").startswith("protocol 'standard' is for Atari games")
    assert mistake("eval", catch, "--episodes", "0") == "episodes=0; use at least 1"
    assert mistake("watch", catch, "--seconds", "0") == "seconds=0.0; use a positive number"
    assert mistake("watch", tmp_path).endswith("is no run folder: it has no config.json; give the folder that `rfwp train` made")


def test_a_run_without_a_checkpoint_says_when_there_will_be_one(catch, tmp_path, capsys):
    (tmp_path / "config.json").write_text((catch / "config.json").read_text())
    code, _, err = run(capsys, "eval", str(tmp_path), *DEVICE)
    assert code == 2
    assert "has no checkpoint yet" in err


def test_flags_of_agents_are_not_for_other_models(capsys):
    code, _, err = run(capsys, "eval", "code-execution-5", "--episodes", "3")
    assert (code, err) == (2, "rfwp: --episodes, --runs, --protocol and the like are for agents; leave them away\n")


@pytest.mark.parametrize(
    ("game", "trained", "options", "expected"),
    [
        ("battle_zone", "paper_code", {}, True),
        ("UpNDown", "paper_code", {}, True),
        ("up_n_down", "paper_code", {"drop_negative": "no"}, False),
        ("up_n_down", "paper_code", {"protocol": "standard"}, False),
        ("up_n_down", "standard", {"protocol": "paper_code"}, True),
        ("pong", "paper_code", {}, False),
        ("pong", "paper_code", {"drop_negative": "yes"}, True),
    ],
)
def test_episodes_below_zero_are_left_out_where_the_authors_did(game, trained, options, expected):
    config = replace(tiny_config(), environment=AtariConfig(game, trained))
    assert drops_negative(config, AgentEvalOptions(**options)) == expected


def test_other_games_drop_nothing():
    assert not drops_negative(tiny_config(), AgentEvalOptions())
