"""Which runs are missing, and how long they take."""

import json

import pytest

from rfwp.config import replace
from rfwp.errors import InvalidFile, InvalidInput, UnknownName
from rfwp.presets import TASKS, run_config
from rfwp.report.records import read_runs
from rfwp.reproduce.jobs import Costs, chosen_presets, guess, make_jobs, missing
from rfwp.reproduce.options import ReproduceOptions
from rfwp.reproduce.run import make_plan, reproduce
from rfwp.train.folder import RunFolder
from tests.report.runs import line, write
from tests.reproduce.jobs import job, same


def epochs(n):
    return lambda config: replace(config, {"train.epochs": n})


# --- Which runs ---


def test_table_2_has_the_24_printed_models_and_a_table_of_presets_all_of_its_own():
    assert len(chosen_presets("table-2")) == 24
    assert "listops-15/lstm-4096" not in chosen_presets("table-2")
    assert "listops-15/lstm-4096" in chosen_presets("listops-15")
    assert {preset.split("/")[0] for preset in chosen_presets("all")} == set(TASKS)
    assert chosen_presets("listops-10", ("rdn", "lstm")) == ["listops-10/lstm", "listops-10/rdn"]


@pytest.mark.parametrize(
    ("table", "models", "message"),
    [
        ("tabel-2", (), "unknown table 'tabel-2'; did you mean 'table-2'"),
        ("atarii", (), "unknown table 'atarii'; did you mean 'atari'"),
        ("listops-10", ("delta_rnn",), "unknown model of listops-10 'delta_rnn'; did you mean 'delta-rnn'"),
    ],
)
def test_an_unknown_table_or_model_is_named(table, models, message):
    with pytest.raises(UnknownName, match=message):
        chosen_presets(table, models)


@pytest.mark.parametrize(("table", "how"), [("table-1", "rfwp train lm/ROW"), ("table-3", "rfwp reproduce atari --steps N")])
def test_a_table_of_the_paper_that_is_made_in_another_way_says_how(table, how):
    with pytest.raises(InvalidInput, match=f"{table} is not made by this command, but by: {how}"):
        chosen_presets(table)


def test_a_run_is_missing_unless_the_very_same_config_is_finished(tmp_path):
    write(
        tmp_path / "out",
        line("listops-10/rdn", seed=1),
        line("listops-10/rdn", seed=2, changes={"train.epochs": 2}),
    )
    jobs = make_jobs(["listops-10/rdn"], (1, 2, 3, 3), same, tmp_path / "runs")
    assert [job.seed for job in missing(jobs, read_runs(tmp_path / "out"))] == [2, 3]
    short = make_jobs(["listops-10/rdn"], (1, 2, 3), epochs(2), tmp_path / "runs")
    assert [job.seed for job in missing(short, read_runs(tmp_path / "out"))] == [1, 3]


def test_a_changed_run_never_shares_its_folder_with_the_preset(tmp_path):
    (plain,) = make_jobs(["listops-10/rdn"], (1,), same, tmp_path)
    (short,) = make_jobs(["listops-10/rdn"], (1,), epochs(2), tmp_path)
    (other,) = make_jobs(["listops-10/rdn"], (1,), epochs(3), tmp_path)
    assert plain.folder == tmp_path / "listops-10-rdn" / "seed-1"
    assert len({plain.folder, short.folder, other.folder}) == 3
    with pytest.raises(InvalidInput, match="no seeds"):
        make_jobs(["listops-10/rdn"], (), same, tmp_path)


def test_a_folder_in_which_a_changed_run_was_trained_is_left_alone(tmp_path):
    """`rfwp train listops-10/rdn --epochs 2` trains in the very folder that the preset's own run would have."""
    first, second = make_jobs(["listops-10/rdn"], (1, 2), same, tmp_path)
    for found, config in ((first, epochs(2)(first.config)), (second, second.config)):
        found.folder.mkdir(parents=True)
        RunFolder(found.folder).create(config)
    moved, kept = make_jobs(["listops-10/rdn"], (1, 2), same, tmp_path)
    assert (moved.config, kept) == (first.config, second)
    assert not moved.folder.exists()
    # the next time too, when it is to be continued
    RunFolder(moved.folder).path.mkdir(parents=True)
    RunFolder(moved.folder).create(moved.config)
    assert make_jobs(["listops-10/rdn"], (1, 2), same, tmp_path) == [moved, kept]


def test_a_folder_for_the_results_that_cannot_be_made_is_one_line_before_anything_is_trained(tmp_path):
    (tmp_path / "out").write_text("mine")
    options = ReproduceOptions("listops-10", models=("rdn",), seeds=(1,), out=tmp_path / "out", runs_folder=tmp_path / "runs")
    with pytest.raises(InvalidFile, match=r"cannot make the folder .*out: File exists; give another --out"):
        reproduce(make_plan(options), options, print)
    assert not (tmp_path / "runs").exists()


# --- How long they take ---


def progress(job, done):
    job.folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps({"epoch": epoch}) + "\n" for epoch in range(1, done + 1))
    (job.folder / "metrics.jsonl").write_text(lines)


def test_a_cost_is_what_the_same_config_took_else_a_scaled_guess(tmp_path):
    write(tmp_path, *(line("listops-10/rdn", seed=seed, seconds=seconds) for seed, seconds in ((1, 100), (2, 300), (3, 120))))
    # a short run, most of it warming up, says nothing about long ones
    write(tmp_path, *(line("listops-10/lstm", seed=seed, seconds=60, changes={"train.epochs": 1}) for seed in range(9)))
    costs = Costs(read_runs(tmp_path))
    assert costs.whole(job()) == 30 + 120
    scale = 120 / guess(run_config("listops-10/rdn"))
    assert costs.whole(job("listops-15/lstm")) == pytest.approx(30 + scale * guess(run_config("listops-15/lstm")))
    assert Costs([]).whole(job("listops-15/lstm")) == 30 + guess(run_config("listops-15/lstm"))


def test_guesses_put_short_tables_before_long_ones():
    order = ["listops-10/rdn", "listops-15/rdn", "code-execution-3/rdn", "code-execution-3/delta-rnn", "listops-15/lstm-4096"]
    guesses = [guess(run_config(name)) for name in order]
    assert guesses == sorted(guesses)


def test_a_begun_run_costs_what_is_left_of_it(tmp_path):
    begun = job(folder=tmp_path)
    whole = Costs([]).whole(begun)
    progress(begun, 150)
    assert begun.progress() == 0.75
    assert Costs([]).left(begun) == pytest.approx(30 + (whole - 30) / 4)
    (begun.folder / "metrics.jsonl").write_text('{"epo')
    assert begun.progress() == 0.0
