"""All lines of a results folder: runs, measurements, and the lines that are neither."""

import math
from dataclasses import dataclass
from pathlib import Path

from rfwp.errors import RFWPError
from rfwp.report.atari import render_atari
from rfwp.report.figures import learning_curves
from rfwp.report.records import Run, choose, read_lines
from rfwp.report.speed import Measurement, read_measurements
from rfwp.report.wiki import text_tables


@dataclass(frozen=True)
class Results:
    """`problems` names every line that was passed over: `results/runs/x.jsonl: line 3 is not a finished run`."""

    runs: list[Run]
    measurements: list[Measurement]
    problems: list[str]


def read_results(folder: Path) -> Results:
    """runs/*.jsonl and bench/*.jsonl of a folder; a damaged line is passed over and named."""
    runs, measurements, problems = [], [], []
    for path in sorted((folder / "runs").glob("*.jsonl")):
        for number, run in read_lines(path):
            if run is not None and _can_be_placed(run):
                runs.append(run)
            else:
                problems.append(f"{path}: line {number} is not a finished run")
    for path in sorted((folder / "bench").glob("*.jsonl")):
        for number, measurement in read_measurements(path):
            if measurement is not None:
                measurements.append(measurement)
            else:
                problems.append(f"{path}: line {number} is not a row of a benchmark")
    return Results(runs, measurements, problems)


def _can_be_placed(run: Run) -> bool:
    """Whether tables and figures can take it: a line may be whole and still have been made by hand, or by another version."""
    try:
        numbers = [*run.metrics.values(), *run.valid.values(), *(number for point in run.curve for number in point)]
        texts = (run.device, run.time, run.commit or "")
        if not (all(math.isfinite(number) for number in numbers) and all(isinstance(text, str) for text in texts)):
            return False
        choose([run], run.preset)
        text_tables([run])
        render_atari([run])
        learning_curves([run])
    except (RFWPError, LookupError, TypeError, ValueError, AttributeError, OverflowError):
        return False
    return True
