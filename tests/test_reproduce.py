"""Which runs are missing, in which order they run, and how they end: in time, continued, or failed."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from rfwp.cli import main
from rfwp.config import replace, to_dict
from rfwp.errors import InvalidFile, InvalidInput, RFWPError, UnknownName
from rfwp.presets import TASKS, run_config
from rfwp.report.records import read_runs
from rfwp.reproduce import worker
from rfwp.reproduce.jobs import Costs, chosen_presets, guess, make_jobs, missing
from rfwp.reproduce.options import ReproduceOptions
from rfwp.reproduce.process import Process
from rfwp.reproduce.run import describe_outcome, describe_plan, make_plan, reproduce
from rfwp.reproduce.schedule import Budget, Scheduler
from tests.report.runs import line, write


def same(config):
    return config


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
        ("lm", (), "unknown table 'lm'"),
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


def job(name="listops-10/rdn", seed=1, folder=Path("nowhere")):
    return make_jobs([name], (seed,), same, folder)[0]


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


# --- The scheduler, with workers and a clock of its own ---


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Fake:
    """Takes some seconds and leaves with a code; told to stop, it saves for a while."""

    def __init__(self, clock, seconds, code=0, saving=1.0):
        self.clock, self.end, self.code, self.saving = clock, clock() + seconds, code, saving
        self.killed = False

    def poll(self):
        return self.code if self.clock() >= self.end else None

    def terminate(self):
        self.end, self.code = self.clock() + self.saving, 143

    def kill(self):
        self.end, self.code, self.killed = self.clock(), -9, True

    def last_lines(self):
        return ["it went wrong"]


class Room:
    """A scheduler whose jobs take given seconds, and what it did."""

    def __init__(self, seconds, expected=None, codes=(), budget=float("inf"), at_once=1, saving=1.0, wish=lambda now: 0):
        self.clock, self.said, self.started, self.workers = Clock(), [], [], {}
        self.jobs = [job(seed=seed) for seed in seconds]
        expected = expected or seconds
        self.most = 0

        def start(job):
            self.started.append((job.seed, round(self.clock() - 1000)))
            self.workers[job.seed] = Fake(self.clock, seconds[job.seed], dict(codes).get(job.seed, 0), saving)
            self.most = max(self.most, sum(w.poll() is None for w in self.workers.values()))
            return self.workers[job.seed]

        self.scheduler = Scheduler(
            start=start,
            costs=lambda: lambda job: expected[job.seed],
            at_once=at_once,
            budget=Budget(budget),
            say=self.said.append,
            wish=lambda: wish(self.clock() - 1000),
            clock=self.clock,
            sleep=self.clock.sleep,
        )

    def run(self):
        outcome = self.scheduler.run(self.jobs)
        assert all(worker.poll() is not None for worker in self.workers.values())
        return outcome


def seeds(jobs):
    return sorted(job.seed for job in jobs)


def test_the_shortest_goes_first_and_never_more_than_asked_for_at_a_time():
    room = Room({1: 50, 2: 20, 3: 30, 4: 10}, at_once=2)
    assert seeds(room.run().done) == [1, 2, 3, 4]
    assert [seed for seed, _ in room.started] == [4, 2, 3, 1]
    assert room.most == 2


def test_nothing_is_begun_that_does_not_fit_and_the_command_leaves_before_its_budget_ends():
    room = Room({1: 100, 2: 150, 3: 250}, budget=300)
    outcome = room.run()
    assert (seeds(outcome.done), seeds(outcome.waiting)) == ([1, 2], [3])
    assert room.clock() - 1000 < 252


def test_what_takes_longer_than_expected_is_stopped_and_saved_in_time():
    room = Room({1: 1000}, expected={1: 100}, budget=300, saving=10.0)
    outcome = room.run()
    assert seeds(outcome.stopped) == [1]
    assert not room.workers[1].killed
    assert 270 <= room.clock() - 1000 < 285


def test_what_does_not_stop_is_killed_before_the_budget_ends():
    room = Room({1: 1000}, expected={1: 100}, budget=300, saving=500.0)
    assert seeds(room.run().stopped) == [1]
    assert room.workers[1].killed
    assert room.clock() - 1000 < 300


def test_what_never_fits_is_begun_to_be_continued_but_not_at_the_very_end():
    room = Room({1: 1000, 2: 220, 3: 1000}, budget=300, at_once=1)
    outcome = room.run()
    # after the one that fits, too little is left to begin a long one
    assert (seeds(outcome.done), seeds(outcome.waiting)) == ([2], [1, 3])
    room = Room({1: 1000, 3: 2000}, budget=300, at_once=2)
    assert seeds(room.run().stopped) == [1, 3]


def test_a_failed_run_is_told_with_its_last_lines_and_the_others_go_on():
    room = Room({1: 10, 2: 20, 3: 30}, codes={1: 1, 2: -9})
    outcome = room.run()
    assert seeds(outcome.done) == [3]
    # killed, but not by us: out of memory, perhaps
    assert seeds(outcome.failed) == [1, 2]
    text = "\n".join(describe_outcome(outcome))
    assert "1 done, 0 stopped, 0 waiting, 2 failed" in text
    assert "listops-10/rdn seed 1: failed; its last lines:\n    it went wrong" in text


def test_a_signal_stops_like_the_end_of_the_budget():
    room = Room({1: 100, 2: 100, 3: 100}, at_once=2, wish=lambda now: signal.SIGINT if now > 50 else 0)
    outcome = room.run()
    assert (seeds(outcome.stopped), seeds(outcome.waiting)) == ([1, 2], [3])
    assert room.clock() - 1000 < 55


def test_leaving_at_once_kills_the_workers():
    def twice(now):
        if now > 50:
            raise KeyboardInterrupt
        return 0

    room = Room({1: 100}, wish=twice)
    with pytest.raises(KeyboardInterrupt):
        room.run()
    assert room.workers[1].killed


def test_long_runs_are_told_about_every_minute():
    room = Room({1: 150})
    room.run()
    assert sum(text.startswith("running: listops-10/rdn seed 1 0%") for text in room.said) == 2


def test_time_that_is_over_before_it_begins_counts():
    room = Room({1: 100}, budget=300)
    room.scheduler.elapsed = 200.0
    assert seeds(room.run().waiting) == [1]


# --- Processes ---

STUB = "import sys, json, time; request = json.loads(sys.stdin.readline()); "


def process(job, code, request=None):
    return Process(job, request or {}, at_once=1, command=(sys.executable, "-c", code))


def wait(process):
    while (code := process.poll()) is None:
        time.sleep(0.02)
    return code


def test_a_process_gets_its_job_and_its_share_of_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    code = STUB + "import os; print(request['folder'], request['device'], os.environ['OMP_NUM_THREADS'])"
    it = Process(job(folder=tmp_path), {"device": "cpu"}, at_once=4, command=(sys.executable, "-c", code))
    assert wait(it) == 0
    assert it.last_lines() == [f"{tmp_path}/listops-10-rdn/seed-1 cpu 4"]


def test_a_process_that_fails_leaves_its_last_lines(tmp_path):
    it = process(job(folder=tmp_path), "print('first'); raise ValueError('something odd')")
    assert wait(it) == 1
    assert it.last_lines()[-1] == "ValueError: something odd"


def test_a_process_is_told_to_stop_and_killed(tmp_path):
    polite = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); print('ready', flush=True); time.sleep(60)"
    it = process(job(folder=tmp_path), STUB + polite)
    while not it.last_lines():
        time.sleep(0.02)
    it.terminate()
    assert wait(it) == 143
    it = process(job(folder=tmp_path, seed=2), STUB + "time.sleep(60)")
    it.kill()
    assert it.poll() == -9


# --- With real training ---

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


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(InvalidFile, match=r"cannot write .*seed-1\.log: .*; give another --runs-folder"):
        process(job(folder=tmp_path / "runs"), "")


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


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"jobs": 0}, "jobs=0; use at least 1"),
        ({"budget_seconds": 0.0}, "use a positive number"),
        ({"device": "gpu"}, "device 'gpu' does not exist"),
        ({"set": ("model.core.heads=7",)}, "heads=7 does not divide"),
        ({"epochs": 0}, "train.epochs=0"),
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
        (["reproduce", "tabel-2"], "rfwp: unknown table 'tabel-2'; did you mean 'table-2'?"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(here, capsys, arguments, message):
    assert command(capsys, *arguments) == (2, "", message + "\n")
