"""A worker's process: told its job, told to stop, killed."""

import os
import sys
import time

import pytest

from rfwp.errors import InvalidFile
from rfwp.reproduce.process import Process
from tests.reproduce.jobs import job

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


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(InvalidFile, match=r"cannot write .*seed-1\.log: .*; give another --runs-folder"):
        process(job(folder=tmp_path / "runs"), "")
