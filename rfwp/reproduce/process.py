"""A job in a process of its own, seen from the process that started it."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from rfwp.config import to_dict
from rfwp.errors import InvalidFile
from rfwp.reproduce.jobs import Job
from rfwp.rl.cores import SHARED_BY

COMMAND = (sys.executable, "-m", "rfwp.reproduce.worker")
SHOWN_LINES = 8


class Process:
    """Runs `command`, hands it the job as a line of JSON, and keeps what it says in a file beside the run's folder."""

    def __init__(self, job: Job, request: dict[str, Any], at_once: int, command: Sequence[str] = COMMAND):
        self.log = job.folder.with_name(f"{job.folder.name}.log")
        with _opened(self.log) as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(at_once),
                # Ctrl-C in the terminal is for us alone; we tell the workers
                start_new_session=True,
            )
        assert self.process.stdin is not None
        try:
            # the pipe stays open: the worker leaves when it closes, so that it never outlives us
            self.process.stdin.write(json.dumps(request | _job_request(job)).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            # it died at once; its exit code and its log say why
            self.process.wait()

    def poll(self) -> int | None:
        code = self.process.poll()
        if code is not None:
            self._close()
        return code

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._close()

    def last_lines(self) -> list[str]:
        return [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()][-SHOWN_LINES:]

    def _close(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            # what it did not read is of no use any more
            return


def _opened(log: Path) -> BinaryIO:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        return log.open("ab")
    except OSError as error:
        raise InvalidFile(f"cannot write {log}: {error.strerror}; give another --runs-folder") from None


def _job_request(job: Job) -> dict[str, Any]:
    return {"config": to_dict(job.config), "folder": str(Path(job.folder).absolute())}


def _environment(at_once: int) -> dict[str, str]:
    """Processes that run together share the cores."""
    share = str(max(1, (os.cpu_count() or 1) // at_once))
    chosen = {"OMP_NUM_THREADS": share, "TORCHINDUCTOR_COMPILE_THREADS": share, SHARED_BY: str(at_once), **os.environ}
    return chosen | {"PYTHONUNBUFFERED": "1"}
