"""Rows are kept as JSON lines that read back as they were written."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rfwp.bench.records import Row, Timing, append, one_line, read
from rfwp.environment import environment, stem
from rfwp.errors import InvalidFile

CPU = torch.device("cpu")
ROWS = [
    Row("delta forward", "code", {"B": 1, "T": 2}, "fp32", "plain", ms=Timing(1.0, 0.9, 1.2, 5), tokens_per_s=2000.0),
    Row("delta forward", "code", {"B": 1, "T": 2}, "fp32", "reference", note="would take too long"),
    Row(
        "delta forward", "code", {"B": 1, "T": 2}, "fp32", "gpu", ms=Timing(1.0, 0.9, 1.2, 5), device_ms=Timing(0.5, 0.5, 0.6, 5)
    ),
]


def test_rows_read_back_as_they_were_written(tmp_path):
    where = environment(CPU, commit="abc")
    path = append(ROWS, where, tmp_path / "new" / "folder")
    assert path == append(ROWS, where, tmp_path / "new" / "folder")
    assert read(path) == [*ROWS, *ROWS]
    assert path.name == f"{stem(where)}.jsonl"


def test_runs_at_the_same_time_never_mix_within_a_line(tmp_path):
    where = environment(CPU, commit="abc")
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: append(ROWS * 50, where, tmp_path), range(8)))
    assert len(read(paths[0])) == 8 * 50 * len(ROWS)


def test_the_code_and_the_machine_are_named(tmp_path, monkeypatch):
    where = environment(CPU)
    assert len(where["commit"]) == 40
    assert where["dirty"] in (True, False)
    assert where["device"]
    monkeypatch.setenv("PATH", str(tmp_path))  # no git there
    assert environment(CPU)["commit"] is None
    assert stem({"time": "2026-01-31T12:00", "device": "NVIDIA H200"}) == "2026-01-31-nvidia-h200"


def test_lines_from_before_the_device_was_timed_alone_are_read(tmp_path):
    path = append(ROWS[:1], environment(CPU, commit="abc"), tmp_path)
    line = json.loads(path.read_text())
    del line["device_ms"]
    path.write_text(json.dumps(line) + "\n")
    assert read(path) == ROWS[:1]


def test_a_file_that_is_none_or_damaged_is_named(tmp_path):
    with pytest.raises(InvalidFile, match=r"none\.jsonl is no file"):
        read(tmp_path / "none.jsonl")
    path = append(ROWS, environment(CPU, commit="abc"), tmp_path)
    for damage in ("{", "[]", json.dumps({"what": "x", "ms": None})):
        path.write_text(path.read_text().splitlines()[0] + "\n" + damage + "\n")
        with pytest.raises(InvalidFile, match="line 2 is not a row of a benchmark"):
            read(path)


def test_an_error_in_one_line():
    assert one_line(ValueError("first\nsecond")) == "ValueError: first"
    assert one_line(ValueError()) == "ValueError: "
