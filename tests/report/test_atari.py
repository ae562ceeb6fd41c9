"""Atari: our scores beside the paper's, and improvements of one model over another."""

import pytest

from rfwp.config import AtariConfig, ImpalaConfig, RLRunConfig, replace, to_dict
from rfwp.presets import RECIPES, model_config, presets
from rfwp.report.atari import COMPARISONS, improvements, our_scores, paper_name, paper_scores, render_atari, write_atari
from rfwp.report.plots import write_improvements, write_returns
from rfwp.report.records import append_line, choose, read_runs
from rfwp.tasks.atari import PAPER_GAMES


def line(
    model="rdn", game="pong", seed=1, score=20.0, steps=7_500_000, protocol="paper_code", table="atari", changes=None, **others
):
    preset = f"{table}/{model}"
    config = RLRunConfig(model_config(preset), AtariConfig(game, protocol), ImpalaConfig(steps=steps, seed=seed), preset)
    config = replace(config, {"agent.actions": 18} | (changes or {}))
    return {
        "preset": preset,
        "seed": seed,
        "config": to_dict(config),
        # of lives where these are scored, of whole games everywhere
        "metrics": {"score": score, "score std": 0.5, "return": 3 * score}
        | ({} if protocol == "standard" else {"return_life": score / 2}),
        "valid": {},
        "best_epoch": 0,
        "epochs": 0,
        "seconds": 500.0,
        "parameters": 1_544_535,
        "device": "NVIDIA H200",
        "commit": "0123456789abcdef",
        "time": f"2026-01-0{seed}",
        "curve": [[1000 * n, score * n / 3] for n in (1, 2, 3)],
    }


@pytest.fixture
def runs(tmp_path):
    lines = [
        line(score=20.0),
        line("lstm", score=-5.0),
        line("rdn", "seaquest", score=1500.0),
        line("rdn", "seaquest", seed=2, score=1700.0),
        line("lstm", "seaquest", score=800.0),
        line("lstm", "seaquest", score=90.0, protocol="standard"),
        line("rdn", "breakout", score=30.0, steps=2_000_000, table="atari-large"),
    ]
    for one in lines:
        append_line(tmp_path / "runs.jsonl", one)
    return read_runs(tmp_path)


def counts(table, model, baseline):
    """Games in which the model is clearly better, and clearly worse: by more than 5 %."""
    found = improvements(paper_scores(table), model, baseline).values()
    return sum(bar > 5 for bar in found), sum(bar < -5 for bar in found)


@pytest.mark.parametrize(
    ("table", "model", "baseline", "expected"),
    [
        # "In 12 games, the RDN yields improvements over LSTM, whereas in 3 games, the LSTM performs better."
        ("table-9", "rdn", "lstm", (12, 3)),
        # "6 games in which LSTM clearly outperforms RDN at 200 M steps, whereas in 9 games the result is the opposite"
        ("table-10", "rdn", "lstm", (9, 6)),
        ("table-9", "feedforward", "lstm", (8, 8)),
        # "close in 7 games, in favour of the LSTM in 8 games, and in favour of the Delta RNN in 5 games"
        ("table-10", "delta-rnn", "lstm", (5, 8)),
    ],
)
def test_improvements_are_those_that_the_papers_text_counts(table, model, baseline, expected):
    assert counts(table, model, baseline) == expected


def test_rdn_is_worse_than_the_linear_transformer_in_two_games_at_both_stages():
    assert [counts(table, "rdn", "linear-transformer")[1] for table in ("table-9", "table-10")] == [2, 2]


def test_improvements_have_their_sign_where_scores_are_negative_and_are_sorted():
    scores = {"a": {"x": -10.0, "y": -20.0}, "b": {"x": 1.0, "y": 2.0}, "c": {"x": 1.0}, "d": {"x": 1.0, "y": 0.0}}
    assert improvements(scores, "x", "y") == {"b": -50.0, "a": 50.0}
    assert list(improvements(scores, "x", "y")) == ["b", "a"]


def test_every_game_of_the_emulator_has_its_printed_name():
    assert {paper_name(game) for game in PAPER_GAMES} == set(paper_scores("table-9"))
    assert paper_name("breakout") == "breakout"


def test_ours_stand_with_their_steps_and_protocol_beside_the_printed_scores(runs):
    table = render_atari(runs)
    assert table.header == [
        "game",
        "model",
        "steps here",
        "settings here",
        "in training",
        "score here",
        "paper, 50 M steps",
        "paper, 200 M steps",
    ]
    assert table.rows == [
        ["Pong", "LSTM", "7.5 million", "paper_code", "-2.5", "-5.0 ± 0.5", "21 ± 0", "21 ± 0"],
        ["Pong", "RDN", "7.5 million", "paper_code", "10.0", "20.0 ± 0.5", "21 ± 0", "21 ± 0"],
        ["Seaquest", "LSTM", "7.5 million", "paper_code", "400.0", "800.0 ± 0.5", "708 ± 1", "12,643 ± 1,627"],
        ["Seaquest", "RDN", "7.5 million", "paper_code", "800.0", "1,600.0 ± 141.4 (2 seeds)", "686 ± 1", "4,373 ± 504"],
        ["Seaquest", "LSTM", "7.5 million", "standard", "270.0", "90.0 ± 0.5", "708 ± 1", "12,643 ± 1,627"],
        ["breakout", "RDN larger", "2 million", "paper_code", "15.0", "30.0 ± 0.5", "-", "-"],
    ]
    assert table.notes == ["7 runs on NVIDIA H200, code 0123456"]
    assert "four frames each" in table.markdown()


def test_runs_of_different_length_or_protocol_are_never_compared(runs):
    settings = our_scores(runs)
    assert [str(setting) for setting in sorted(settings)] == [
        "2 million steps, paper_code",
        "7.5 million steps, paper_code",
        "7.5 million steps, standard",
    ]
    by_setting = {str(setting): improvements(scores, "rdn", "lstm") for setting, scores in settings.items()}
    assert by_setting["7.5 million steps, paper_code"] == {"Seaquest": 100.0, "Pong": 500.0}
    assert by_setting["7.5 million steps, standard"] == {}


def test_a_changed_training_is_a_setting_of_its_own_and_another_agent_is_left_out(tmp_path):
    for one in (
        line(changes={"impala.lr": 1e-3, "environment.sticky": 0.1}),
        line("lstm"),
        line("delta-net", changes={"agent.stem": "shallow"}),
    ):
        append_line(tmp_path / "runs.jsonl", one)
    table = render_atari(read_runs(tmp_path))
    assert [row[1:4] for row in table.rows] == [
        ["LSTM", "7.5 million", "paper_code"],
        ["RDN", "7.5 million", "paper_code, environment.sticky None -> 0.1, impala.lr 0.0006 -> 0.001"],
    ]
    assert table.notes[1:] == ["left out, another agent: atari/delta-net (agent.stem deep -> shallow)"]
    assert all(not improvements(scores, "rdn", "lstm") for scores in our_scores(read_runs(tmp_path)).values())


def test_a_recipe_is_named_and_not_spelled_out(tmp_path):
    init, impala = RECIPES["short"]
    short = {"agent.init": init, "impala": impala, "impala.steps": 7_500_000}
    for one in (line(changes=short), line("lstm", changes=short | {"impala.lr": 1e-3})):
        append_line(tmp_path / "runs.jsonl", one)
    table = render_atari(read_runs(tmp_path))
    assert [row[3] for row in table.rows] == [
        "paper_code, recipe short",
        "paper_code, recipe short, impala.lr 0.0006 -> 0.001",
    ]


def test_agents_do_not_enter_the_papers_tables_of_longer_trainings(runs):
    chosen = choose(runs, "atari/rdn")
    assert (chosen.runs, chosen.left_out) == ([], [])


def test_a_table_is_written_only_where_there_are_runs(runs, tmp_path):
    assert write_atari([], tmp_path / "none").runs == 0
    assert not (tmp_path / "none").exists()
    write_atari(runs, tmp_path / "tables")
    assert "| Pong | RDN |" in (tmp_path / "tables/atari.md").read_text()


def test_figures_of_the_paper_and_ours_with_their_steps_in_the_title(runs, tmp_path):
    files = write_improvements(runs, tmp_path)
    ours = [file for file in files if "paper.png" not in file.name and "paper.svg" not in file.name]
    assert len(files) - len(ours) == 2 * len(COMPARISONS)
    assert [file.name for file in ours] == [f"atari-rdn-over-lstm-7500000-paper_code.{kind}" for kind in ("png", "svg")]
    assert ours[0].read_bytes().startswith(b"\x89PNG")


def test_returns_over_steps_one_figure_a_game(runs, tmp_path):
    names = [file.name for file in write_returns(runs, tmp_path) if file.suffix == ".png"]
    assert names == [f"atari-returns-{name}.png" for name in ("breakout", "pong", "seaquest")]


def test_every_compared_model_is_a_preset():
    assert {f"atari/{model}" for pair in COMPARISONS for model in pair} <= set(presets())
