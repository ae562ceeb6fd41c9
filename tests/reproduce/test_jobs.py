"""Which runs are missing, and how long they take."""

import json

import pytest

from rfwp.config import replace
from rfwp.errors import InvalidInput, UnknownName
from rfwp.presets import TASKS, run_config
from rfwp.report.records import read_runs
from rfwp.reproduce.jobs import Costs, chosen_presets, guess, make_jobs, missing
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
        ("table-1", (), "unknown table 'table-1'"),
        ("atarii", (), "unknown table 'atarii'; did you mean 'atari'"),
        ("listops-10", ("delta_rnn",), "unknown model of listops-10 'delta_rnn'; did you mean 'delta-rnn'"),
    ],
)
def test_an_unknown_table_or_model_is_named(table, models, message):
    with pytest.raises(UnknownName, match=message):
        chosen_presets(table, models)


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
