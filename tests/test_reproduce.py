"""Whole reproductions: runs finished, continued or failed, and the commands."""

import time

import pytest

from rfwp.cli import main
from rfwp.config import to_dict
from rfwp.errors import InvalidInput, RFWPError
from rfwp.report.records import read_runs
from rfwp.reproduce import worker
from rfwp.reproduce.options import ReproduceOptions
from rfwp.reproduce.process import Process
from rfwp.reproduce.run import describe_outcome, describe_plan, make_plan, reproduce
from tests.report.runs import line, write

TINY = (
    *("task.train=24", "task.valid=8", "task.test=8", "task.depth=2"),
    *("model.core.width=8", "model.core.heads=2", "model.core.ff=8", "model.core.layers=1", "model.embedding=8"),
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RFWP_CACHE", str(tmp_path / "cache"))
    return tmp_path


def options(**others):
    return ReproduceOptions(**{"table": "listops-10", "models": ("rdn",), "seeds": (1,), "set": TINY, "device": "cpu", **others})


class Here:
    """Works in this very process, at once."""

    def __init__(self, job, out, commit=""):
        self.code, self.said = 1, []
        request = {"config": to_dict(job.config), "folder": str(job.folder), "device": "cpu", "out": str(out), "commit": commit}
        try:
            self.code = 0 if worker.work(request) else 143
        except RFWPError as error:
            self.said.append(str(error))

    def poll(self):
        return self.code

    def last_lines(self):
        return self.said


def run_here(chosen):
    plan, said = make_plan(chosen), []
    outcome, code = reproduce(plan, chosen, said.append, start=lambda job: Here(job, chosen.out, chosen.commit), elapsed=0.0)
    return plan, outcome, code, said


def test_finished_runs_leave_a_line_each_and_are_not_run_again(here, monkeypatch):
    monkeypatch.setenv("PATH", str(here))  # no git there
    chosen = options(models=("rdn", "delta-net"), epochs=2, commit="feedbee")
    _, outcome, code, _ = run_here(chosen)
    assert (len(outcome.done), code) == (2, 0)
    runs = read_runs(chosen.out)
    assert {run.preset for run in runs} == {"listops-10/rdn", "listops-10/delta-net"}
    for run in runs:
        assert (run.commit, run.epochs, len(run.curve)) == ("feedbee", 2, 2)
        assert 0 <= run.value("accuracy") <= 1
    plan, outcome, _, said = run_here(chosen)
    assert plan.missing == outcome.done == said == []
    assert describe_plan(plan, 1) == ["2 of 2 runs are finished, 0 missing"]
    # another seed is another run
    assert len(make_plan(options(epochs=2, seeds=(1, 2))).missing) == 1


def test_a_run_that_finished_without_its_line_gets_it_without_training(here):
    chosen = options(epochs=2)
    run_here(chosen)
    (path,) = chosen.out.glob("*.jsonl")
    before = read_runs(chosen.out)
    path.unlink()
    run_here(chosen)
    assert read_runs(chosen.out) == before


def test_the_commit_that_is_given_is_in_the_line_also_where_git_knows_another(here):
    chosen = options(epochs=1, commit="feedbee")
    run_here(chosen)
    (run,) = read_runs(chosen.out)
    assert (run.commit, run.dirty) == ("feedbee", None)
    run_here(options(epochs=1, seeds=(2,)))
    (run,) = (run for run in read_runs(chosen.out) if run.seed == 2)
    assert (len(run.commit), run.dirty in (True, False)) == (40, True)


def test_a_line_that_is_being_written_does_not_stop_the_other_runs(here):
    """A reader may see the half of a line; what the costs are then is not worth a stop."""
    chosen = options(epochs=1, seeds=(1, 2))
    plan = make_plan(chosen)

    def start(job):
        done = Here(job, chosen.out)
        with next(chosen.out.glob("*.jsonl")).open("a") as file:
            file.write('{"preset": "listo')
        return done

    outcome, code = reproduce(plan, chosen, lambda line: None, start=start, elapsed=0.0)
    assert (len(outcome.done), code) == (2, 0)


def test_a_worker_whose_parent_is_gone_saves_and_the_same_command_goes_on(here):
    chosen = options(epochs=300)
    (unfinished,) = make_plan(chosen).missing
    request = {"out": str(chosen.out.absolute()), "device": "cpu", "commit": ""}
    it = Process(unfinished, request, at_once=1)
    while not unfinished.progress():
        assert it.poll() is None, it.last_lines()
        time.sleep(0.02)
    it.process.stdin.close()
    assert it.process.wait() == 143, it.last_lines()
    begun = unfinished.progress()
    assert 0 < begun < 1
    assert read_runs(chosen.out) == []
    plan, outcome, code, said = run_here(chosen)
    assert "% done)" in describe_plan(plan, 1)[1]
    assert said[0].startswith(f"continue listops-10/rdn seed 1 at {begun:.0%}")
    assert (len(outcome.done), code) == (1, 0)
    (run,) = read_runs(chosen.out)
    assert [epoch for epoch, *_ in run.curve] == list(range(1, 301))


def test_a_run_that_fails_makes_the_exit_code_1(here):
    chosen = options(epochs=1, models=("rdn", "delta-net"))
    folder = make_plan(chosen).missing[0].folder
    folder.parent.mkdir(parents=True)
    folder.write_text("in the way")
    _, outcome, code, _ = run_here(chosen)
    assert (len(outcome.done), len(outcome.failed), code) == (1, 1, 1)
    assert "is a file; give a folder" in "\n".join(describe_outcome(outcome))


def test_models_stand_between_spaces_or_commas():
    spaces, commas = (make_plan(options(models=models)).jobs for models in (("delta-net", "rdn"), ("delta-net,rdn",)))
    assert [job.preset for job in commas] == ["listops-10/delta-net", "listops-10/rdn"]
    assert commas == spaces


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"jobs": 0}, "jobs=0; use at least 1"),
        ({"budget_seconds": 0.0}, "use a positive number"),
        ({"device": "gpu"}, "device 'gpu' does not exist"),
        ({"set": ("model.core.heads=7",)}, "heads=7 does not divide"),
        ({"epochs": 0}, "train.epochs=0"),
        ({"set": ("train.seed=4",)}, "train.seed=4: every run has a seed of --seeds"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_begun(here, wrong, message):
    with pytest.raises(InvalidInput, match=message):
        make_plan(options(**wrong))
    assert list(here.iterdir()) == []


# --- The commands ---


def command(capsys, *arguments):
    try:
        main(list(arguments))
        code = 0
    except SystemExit as leaving:
        code = leaving.code or 0
    out = capsys.readouterr()
    return code, out.out, out.err


def test_the_command_trains_in_processes_and_report_shows_why_they_are_no_part_of_the_tables(here, capsys):
    arguments = ["reproduce", "listops-10", "--models", "rdn", "--seeds", "1", "2", "--jobs", "2", "--epochs", "1"]
    arguments += ["--device", "cpu", "--set", *TINY]
    assert command(capsys, *arguments, "--dry-run")[1].startswith("0 of 2 runs are finished, 2 missing\n")
    code, out, err = command(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "2 done, 0 stopped, 0 waiting, 0 failed" in out
    code, out, _ = command(capsys, "report")
    assert code == 0
    assert "left out, at other settings: listops-10/rdn" in out
    assert "seed 1 2" in out
    assert not (here / "results" / "figures").exists()


def test_report_shows_tables_with_runs_and_writes_all_of_them(here, capsys):
    write(here / "results" / "runs", line(seed=1, score=0.9), line(seed=2, score=0.92))
    code, out, _ = command(capsys, "report", "--out", str(here / "results"))
    assert code == 0
    assert "91.0 ± 1.4 (2) ≈" in out
    assert "Table 2: " in out
    assert "Table 9: " not in out
    assert len(list((here / "results" / "tables").glob("table-*.md"))) == 10
    assert (here / "results" / "figures" / "learning-curves-code-execution-3.svg").exists()


def test_a_file_in_the_way_of_a_report_is_one_line(here, capsys):
    write(here / "results" / "runs", line())
    (here / "results" / "tables").write_text("in the way")
    assert command(capsys, "report") == (2, "", "rfwp: results/tables: File exists\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["reproduce", "table-2", "--models", "rdn", "--models", "lstm"],
            "rfwp: --models is there twice; put all values behind one --models",
        ),
        (["report"], "rfwp: results/runs has no finished runs; make some: rfwp reproduce table-2"),
        (
            ["report", "--out", "mine"],
            "rfwp: mine/runs has no finished runs; make some: rfwp reproduce table-2 --out mine/runs",
        ),
        (["reproduce", "tabel-2"], "rfwp: unknown table 'tabel-2'; did you mean 'table-2'?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(here, capsys, arguments, message):
    assert command(capsys, *arguments) == (2, "", message + "\n")
