"""Speed: the latest measurements, with ratios within one session."""

import pytest

from rfwp.report.records import append_line
from rfwp.report.speed import latest, milliseconds, read_measurements, scaling, scaling_table, speed_tables


def bench_line(what, ms=2.0, T=450, shape="code", backend="gpu", time="2026-01-02T10:00:00+00:00", commit="b" * 40, **others):
    return {
        "what": what,
        "shape": shape,
        "sizes": {"B": 64, "T": T, "H": 16, "d": 16},
        "dtype": "tf32",
        "backend": backend,
        "ms": {"median": ms, "p20": ms, "p80": ms, "n": 10},
        "tokens_per_s": 1e6,
        "peak_mb": 100.0,
        "floor_ratio": None,
        "error": None,
        "note": "",
        "time": time,
        "device": "NVIDIA H200",
        "threads": None,
        "torch": "2.13.0",
        "commit": commit,
        "dirty": None,
        "invented_later": 1,
        **others,
    }


@pytest.fixture
def read(tmp_path):
    def read(*lines):
        for one in lines:
            append_line(tmp_path / "bench.jsonl", one)
        return [one for _, one in read_measurements(tmp_path / "bench.jsonl")]

    return read


OLD = {"time": "2026-01-01T10:00+00:00", "commit": "a" * 40}


def test_only_the_latest_measurement_of_a_thing_is_shown(read):
    found = latest(read(bench_line("delta forward + backward", 1.0), bench_line("delta forward + backward", 9.0, **OLD)))
    assert [one.median for one in found] == [1.0]


def test_what_was_not_measured_again_stays_with_its_code(read):
    (table,) = speed_tables(read(bench_line("train step rdn", 7.0, **OLD), bench_line("train step lstm", 12.0)))
    rows = {row[0]: row[-1] for row in table.rows}
    assert rows == {"rdn": "aaaaaaa", "lstm": "bbbbbbb"}


def test_ratios_are_of_one_session(read):
    everything = read(
        bench_line("train step rdn", 6.0),
        bench_line("train step lstm", 12.0),
        bench_line("train step delta_net", 5.0, **OLD),
        bench_line("train step lstm", 20.0, **OLD),
    )
    (table,) = speed_tables(everything)
    column = table.header.index("LSTM takes")
    assert {row[0]: row[column] for row in table.rows} == {"rdn": "2.00 ×", "lstm": "1.00 ×", "delta_net": "4.00 ×"}


def test_ops_stand_beside_their_peers_and_empty_columns_are_left_away(read):
    everything = read(
        bench_line("delta forward + backward", 1.0),
        bench_line("delta forward + backward", 3.0, backend="fla recurrent"),
        bench_line("LSTM forward + backward", 10.0, backend="cuDNN"),
    )
    (table,) = speed_tables(everything)
    ours = dict(zip(table.header, table.rows[0], strict=True))
    assert (ours["LSTM takes"], ours["fla takes"], ours["ms"]) == ("10.00 ×", "3.00 ×", "1.00")
    assert "attention takes" not in table.header
    assert "ms on the device" not in table.header
    assert table.title == "Ops, code: batch 64, 450 steps, 16 heads of size 16; NVIDIA H200"


def test_the_time_on_the_device_stands_beside_the_time_of_the_call(read):
    alone = {"median": 0.125, "p20": 0.1, "p80": 0.2, "n": 10}
    everything = read(
        bench_line("delta forward + backward", 0.5, device_ms=alone), bench_line("sum forward + backward", 0.75, device_ms=None)
    )
    (table,) = speed_tables(everything)
    column = table.header.index("ms on the device")
    assert [(row[column - 1], row[column]) for row in table.rows] == [("0.500", "0.125"), ("0.750", "-")]


def test_tables_of_two_devices_and_of_agents_are_separate(read):
    everything = read(
        bench_line("delta forward + backward"),
        bench_line("delta forward + backward", device="CPU", threads=2, peak_mb=None),
        bench_line("rl learner rdn", shape="pong"),
        bench_line("delta forward + backward", shape="quick"),
    )
    titles = [table.title for table in speed_tables(everything)]
    assert [title.partition(",")[0] for title in titles] == ["Ops", "Ops", "Agents"]
    assert titles[1].endswith("CPU, 2 threads")


def test_a_row_without_a_time_says_why(read):
    (table,) = speed_tables(read(bench_line("delta forward + backward", ms=1.0) | {"ms": None, "note": "out of memory"}))
    assert "delta: out of memory" in table.notes
    assert "ms" not in table.header


def test_scaling_needs_three_sizes_and_becomes_a_table(read):
    grown = [bench_line("delta forward + backward", T / 256, T=T, shape="scaling") for T in (256, 512, 1024)]
    found = scaling(read(*grown, bench_line("sum forward + backward", 0.5, T=256, shape="scaling")))
    ((key, rows),) = found.items()
    assert key == ("NVIDIA H200", "T", "batch 64, 16 heads of size 16")
    table = scaling_table(*key, rows)
    assert table.rows == [["delta", "gpu", "tf32", "1.00", "2.00", "4.00"], ["sum", "gpu", "tf32", "0.500", "-", "-"]]


@pytest.mark.parametrize(
    "damage",
    [
        {"ms": {}},
        {"ms": 3},
        {"device_ms": 3},
        {"sizes": {"B": "x"}},
        {"time": "yesterday"},
        {"what": 7},
        {"peak_mb": "much"},
        {"device": None},
    ],
)
def test_a_value_of_the_wrong_type_is_damage(read, damage):
    assert read(bench_line("delta forward + backward") | damage) == [None]


def test_milliseconds_have_about_three_digits():
    assert [milliseconds(value) for value in (0.2363, 5.746, 19.0, 1204.4)] == ["0.236", "5.75", "19.0", "1,204"]
