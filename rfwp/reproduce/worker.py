"""`python -m rfwp.reproduce.worker`: trains one job, asked for by a line of JSON, and adds its line to the finished runs."""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from rfwp.config import LanguageRunConfig, RLRunConfig, RunConfig, from_dict
from rfwp.environment import stem
from rfwp.errors import RFWPError
from rfwp.lm.loop import LanguageTrainer
from rfwp.report.records import append_line
from rfwp.reproduce.agents import finished_line
from rfwp.rl.trainer import RLTrainer
from rfwp.train.log import ConsoleLog
from rfwp.train.loop import Trainer

STOPPED = 128 + signal.SIGTERM
TRAINERS = {RunConfig: Trainer, LanguageRunConfig: LanguageTrainer, RLRunConfig: RLTrainer}


def work(request: dict[str, Any]) -> bool:
    """Train, or go on training; a run that is finished adds its line at once. False: it was told to stop."""
    config, folder = from_dict(request["config"]), Path(request["folder"])
    device, commit, log = request["device"], request["commit"], ConsoleLog()
    make: Any = TRAINERS[type(config)]
    result = make(config, folder, device=device, log=log, commit=commit).run()
    if result.stopped in ("SIGINT", "SIGTERM"):
        return False
    line = finished_line(result, folder, device, log) if isinstance(config, RLRunConfig) else result.to_json()
    # a run that had finished before, where nobody could say it
    line["commit"] = line["commit"] or commit or None
    append_line(Path(request["out"]) / f"{stem(line)}.jsonl", line)
    return True


def leave_with_parent() -> None:
    """The pipe from the parent closes when it is gone, however it went; then save and leave, as if told to."""
    # not through sys.stdin: a thread that waits inside of it would hold up the interpreter's end
    while os.read(0, 1):
        continue
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=leave_with_parent, daemon=True).start()
    try:
        finished = work(request)
    except RFWPError as error:
        sys.exit(f"rfwp: {error}")
    sys.exit(0 if finished else STOPPED)


if __name__ == "__main__":
    main()
