"""Lines of finished runs: written whole, read back, chosen and averaged."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from rfwp.errors import InvalidFile
from rfwp.report.records import append_line, choose, deviations, read_runs, summarise
from tests.report.runs import line, write


def test_a_line_reads_back_as_it_was_written_and_unknown_fields_are_ignored(tmp_path):
    write(tmp_path, line(seed=3, score=0.5, invented_later=1))
    (run,) = read_runs(tmp_path)
    assert (run.preset, run.seed, run.metrics, run.commit) == (
        "code-execution-3/delta-rnn",
        3,
        {"sequence accuracy": 0.5},
        "0123456789abcdef",
    )
    assert run.config["train"]["seed"] == 3


def test_no_folder_means_no_runs(tmp_path):
    assert read_runs(tmp_path / "none") == []


@pytest.mark.parametrize("damage", ["{", "[]", "7", '{"preset": "x"}', "\x00\x00"])
def test_a_damaged_line_is_named_by_file_and_line(tmp_path, damage):
    write(tmp_path, line())
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write(damage + "\n")
    with pytest.raises(InvalidFile, match=r"runs\.jsonl: line 2 is not a finished run"):
        read_runs(tmp_path)


def test_a_value_of_the_wrong_type_is_damage(tmp_path):
    for wrong in ({"seed": "1"}, {"metrics": {"accuracy": None}}, {"config": []}, {"curve": [[1, 2]]}, {"seconds": "long"}):
        path = tmp_path / "one"
        write(path, line(**wrong) if "seed" not in wrong else line() | wrong)
        with pytest.raises(InvalidFile, match="line 1"):
            read_runs(path)
        (path / "runs.jsonl").unlink()


def test_a_line_that_was_cut_off_does_not_swallow_the_next(tmp_path):
    (tmp_path / "runs.jsonl").write_text('{"preset": "code-ex')
    write(tmp_path, line())
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 2
    with pytest.raises(InvalidFile, match="line 1"):
        read_runs(tmp_path)


def test_runs_that_finish_together_never_mix_within_a_line(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: append_line(tmp_path / "runs.jsonl", line(seed=seed)), range(40)))
    assert sorted(run.seed for run in read_runs(tmp_path)) == list(range(40))


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "runs").write_text("mine")
    with pytest.raises(InvalidFile, match=r"cannot write .*runs.jsonl: "):
        write(tmp_path / "runs", line())


def test_not_a_number_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write(tmp_path, line(score=float("nan")))


def test_only_runs_at_the_settings_of_the_preset_count_and_the_later_of_two(tmp_path):
    write(
        tmp_path,
        line(seed=2, score=0.2, time="2026-01-02"),
        line(seed=2, score=0.1, time="2026-01-01"),
        line(seed=1, score=0.5),
        line(seed=3, score=1.0, changes={"train.epochs": 2, "model.core.width": 128}),
        line("code-execution-3/rdn", score=1.0),
    )
    chosen = choose(read_runs(tmp_path), "code-execution-3/delta-rnn")
    assert [(run.seed, run.metrics["sequence accuracy"]) for run in chosen.runs] == [(1, 0.5), (2, 0.2)]
    ((run, reasons),) = chosen.left_out
    assert run.seed == 3
    assert reasons == ["model.core.width 256 -> 128", "train.epochs 200 -> 2"]


def test_a_field_that_an_older_line_does_not_have_is_at_its_default(tmp_path):
    old = line()
    del old["config"]["train"]["patience"]
    write(tmp_path, old)
    assert deviations(read_runs(tmp_path)[0]) == []


def test_a_config_of_another_version_and_an_unknown_preset_do_not_count(tmp_path):
    strange = line()
    strange["config"]["train"]["momentum"] = 0.9
    write(tmp_path, strange, line() | {"preset": "code-execution-9/rdn"})
    other, unknown = read_runs(tmp_path)
    assert deviations(other) == ["train.momentum - -> 0.9"]
    assert "no preset" in deviations(unknown)[0]


def test_std_is_the_sample_standard_deviation():
    summary = summarise([1.0, 2.0, 4.0, None])
    assert (summary.mean, summary.lowest, summary.highest, summary.n) == (7 / 3, 1.0, 4.0, 3)
    assert summary.std == pytest.approx((7 / 3) ** 0.5)
    assert summarise([5.0]).std is None
    assert summarise([None]) is None
