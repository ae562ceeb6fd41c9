"""Table 1's models on another text: what is missing, how far it is, and the tables of what was done."""

import pytest

from rfwp.config import from_dict, replace, to_dict
from rfwp.errors import InvalidInput
from rfwp.presets import WIKI_28M, language_run
from rfwp.report.figures import learning_curves
from rfwp.report.records import append_line, deviations, read_runs, same_run
from rfwp.report.wiki import text_tables, write_text_tables
from rfwp.reproduce.jobs import Costs, chosen_presets, guess, key
from rfwp.reproduce.options import ReproduceOptions
from rfwp.reproduce.run import make_plan
from tests.test_cli import run
from tests.test_reproduce import run_here

TINY = (
    *("model.core.width=8", "model.core.heads=2", "model.core.ff=8", "model.core.layers=1", "model.embedding=8"),
    *("text.segment=6", "train.streams=4", "train.test_stride=6"),
)


@pytest.fixture
def options(tmp_path, text):
    def choose(**others):
        wanted = {"table": "wiki-28m", "seeds": (1,), "set": TINY, "device": "cpu", "steps": 4, "text": str(text)}
        words = text / "vocabulary"
        words.write_text("".join(f"w{n}\n" for n in range(18)) + "<eos>\n<unk>\n")
        places = {"vocabulary": words, "out": tmp_path / "results/runs", "runs_folder": tmp_path / "runs"}
        return ReproduceOptions(**wanted | places | others)

    return choose


def test_all_rows_of_table_1_leave_a_line_each_and_are_not_run_again(options, tmp_path, capsys):
    chosen = options()
    plan, outcome, code, _ = run_here(chosen)
    assert (len(outcome.done), code, len(plan.jobs)) == (10, 0, 10)
    runs = read_runs(chosen.out)
    assert {run.preset for run in runs} == set(WIKI_28M)
    for run_ in runs:
        assert run_.config["train"]["carry"] == run_.preset.endswith("full-context")
        assert set(run_.metrics) == {"perplexity"}
        assert run_.valid["perplexity"] > 1
        assert run_.config["train"]["steps"] == 4
        assert run_.words == 447
    assert make_plan(chosen).missing == []
    # another number of steps is another run
    assert len(make_plan(options(steps=5)).missing) == 10
    # small models are not Table 1's: they are named, and in no cell
    code, out, _ = run(capsys, "report", "--out", str(tmp_path / "results"))
    assert code == 0
    assert "left out, another model, text or context: wiki-28m/rdn (" in out
    assert "a text of 447 words, expected 27,860,414" in out
    assert not [line for line in out.splitlines() if "(1)" in line]


def test_a_text_and_its_vocabulary_are_needed(options):
    with pytest.raises(InvalidInput, match="wiki-28m needs --text FOLDER"):
        make_plan(options(text=""))
    with pytest.raises(InvalidInput, match="--epochs is for tasks of sequences"):
        make_plan(options(epochs=3))
    with pytest.raises(InvalidInput, match="are for language models"):
        make_plan(options(table="listops-10", set=()))


def test_progress_counts_steps(options, tmp_path):
    (job,) = make_plan(options(models=("rdn",), steps=50)).jobs
    job.folder.mkdir(parents=True)
    (job.folder / "metrics.jsonl").write_text('{"epoch": 2, "step": 20}\n')
    assert job.progress() == pytest.approx(0.4)


def test_costs_are_longest_for_the_delta_lstm_and_the_rows_are_the_papers():
    costs = {name: guess(language_run(name)) for name in WIKI_28M}
    assert max(costs, key=costs.get) == "wiki-28m/delta-lstm"
    assert min(costs, key=costs.get) == "wiki-28m/transformer"
    # timed each by itself: neither is as fast as a Delta Net, nor the Delta MLP faster for its fewer layers
    slow = [costs[f"wiki-28m/{name}"] / costs["wiki-28m/delta-net"] for name in ("delta-mlp", "delta-delta-net")]
    assert slow == pytest.approx([746 / 517, 746 / 510], rel=0.01)
    assert chosen_presets("wiki-28m", ("rdn", "rdn-full-context")) == ["wiki-28m/rdn", "wiki-28m/rdn-full-context"]


def line(preset, perplexity, steps=1000, seed=1, **changes):
    config = replace(language_run(preset), {"train.steps": steps, "train.seed": seed, "train.warmup": 100, **changes})
    return {
        "preset": preset,
        "seed": seed,
        "config": to_dict(config),
        "metrics": {"perplexity": perplexity},
        "valid": {"perplexity": perplexity - 1, "perplexity while training": perplexity + 1},
        "best_epoch": 5,
        "epochs": 5,
        "seconds": 60.0,
        "parameters": 44_100_000,
        "device": "NVIDIA H200",
        "commit": "0123456789abcdef",
        "time": "2026-01-01T00:00",
        "data": "feed",
        "words": 27_860_414,
    }


@pytest.fixture
def runs(tmp_path):
    lines = [line("wiki-28m/rdn", 150.0), line("wiki-28m/rdn", 152.0, seed=2), line("wiki-28m/delta-net", 160.0)]
    lines += [line("wiki-28m/rdn", 90.0, steps=5000), line("wiki-28m/delta-net", 1.0, **{"model.core.layers": 2})]
    for data in lines:
        append_line(tmp_path / "runs.jsonl", data)
    return read_runs(tmp_path)


def test_every_number_of_steps_has_a_table_and_the_papers_are_another_data_set(tmp_path, runs):
    short, long = write_text_tables(runs, tmp_path / "tables")
    assert (short.id, long.id) == ("wiki-28m-1000-steps", "wiki-28m-5000-steps")
    assert short.title.startswith("wiki-28m, 1,000 steps")
    rows = {row[0]: row[1:] for row in short.rows}
    assert len(rows) == 10
    assert rows["RDN"] == ["150.0 ± 1.4 (2)", "151.0 ± 1.4 (2)", "1", "34.1", "35.2", rows["RDN"][5], "44.1"]
    assert rows["Delta Net"][:3] == ["159.0 (1)", "160.0 (1)", "2"]
    assert rows["Delta LSTM"] == ["-", "-", "-", "32.6", "33.8", "3", "-"]
    assert rows["RDN + full context"][5] == "2"
    assert [row[2] for row in long.rows].count("-") == 9
    assert "paper on WikiText-103, valid" in short.header
    text = (tmp_path / "tables/wiki-28m-1000-steps.md").read_text()
    assert "only the order of the models can be compared" in text
    assert "trained on 27,860,414 words that are not WikiText-103" in text
    assert "warmup 2000 -> 100" in text
    assert "left out, another model, text or context: wiki-28m/delta-net (core.layers 16 -> 2), seed 1" in text
    assert short.runs == 3


def test_controls_of_a_row_are_named_and_count_neither_in_the_table_nor_in_the_curves(tmp_path):
    rows, full = tmp_path / "runs.jsonl", "wiki-28m/rdn-full-context"
    curve = {"curve": [[500, 6.0, 151.0], [1000, 5.0, 141.0]]}
    append_line(rows, line(full, 140.0) | curve)
    # later runs of the same seed, so that either would stand in the place of the first
    later = {"curve": [[500, 6.0, 22.0], [1000, 5.0, 11.0]], "time": "2026-01-02T00:00"}
    append_line(rows, line(full, 10.0, **{"train.carry": False}) | later)
    append_line(rows, line(full, 20.0, **{"model.core.wiring": "lm"}) | later)
    append_line(rows, line("wiki-28m/rdn", 30.0, **{"train.carry": True}) | later)
    runs = read_runs(tmp_path)
    (table,) = text_tables(runs)
    found = {row[0]: row[2] for row in table.rows}
    assert (found["RDN + full context"], found["RDN"], table.runs) == ("140.0 (1)", "-", 1)
    assert [note for note in table.notes if note.startswith("left out")] == [
        f"left out, another model, text or context: {full} (train.carry True -> False), seed 1",
        f"left out, another model, text or context: {full} (core.wiring post -> lm), seed 1",
        "left out, another model, text or context: wiki-28m/rdn (train.carry False -> True), seed 1",
    ]
    (figure,) = learning_curves(runs)
    assert [key.label for key in figure.keys] == ["rdn-full-context (1 seed)"]
    assert "141.0 at 1,000" in figure.description


def test_other_settings_with_as_many_steps_are_another_table(tmp_path):
    append_line(tmp_path / "runs.jsonl", line("wiki-28m/rdn", 150.0))
    append_line(tmp_path / "runs.jsonl", line("wiki-28m/rdn", 140.0, **{"train.precision": "bf16"}))
    found = text_tables(read_runs(tmp_path))
    assert [table.id for table in found] == ["wiki-28m-1000-steps", "wiki-28m-1000-steps-2"]
    assert [table.runs for table in found] == [1, 1]


def test_language_runs_are_compared_with_their_presets_and_know_their_costs(runs):
    assert deviations(runs[0]) == ["train.steps 500000 -> 1000", "train.warmup 2000 -> 100"]
    costs = Costs(runs)
    assert costs.took


def test_a_text_that_lies_elsewhere_is_the_same_run(runs):
    config = from_dict(runs[0].config)
    moved = replace(config, {"text.source": "/other/place", "text.held_out": "/other", "text.vocabulary": "/other/words"})
    assert same_run(runs[0], moved)
    assert key(moved) == key(config)
    longer = replace(moved, {"train.steps": 1001})
    assert not same_run(runs[0], longer)
    assert key(longer) != key(config)
