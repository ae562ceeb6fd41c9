"""Timing in turns."""

import pytest
import torch

from rfwp.bench.options import Common
from rfwp.bench.timing import find_device, once, peak_memory, set_threads, summary, time_together
from rfwp.errors import InvalidInput

CPU = torch.device("cpu")


def test_everything_is_timed_in_turns():
    calls = []
    found = time_together({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, CPU, seconds=0.0)
    assert calls == ["a", "b"] + ["a", "b"] * 5  # once to see how long it takes, then in turns
    assert found["a"].n == 5
    assert time_together({}, CPU, seconds=0.0) == {}


def test_a_summary_is_the_median_between_two_percentiles():
    found = summary([float(n) for n in range(11)])
    assert (found.p20, found.median, found.p80, found.n) == (2.0, 5.0, 8.0, 11)


def test_memory_is_counted_on_gpus_only_but_the_run_happens():
    calls = []
    assert peak_memory(lambda: calls.append(1), CPU) is None
    assert calls == [1]
    assert once(lambda: None, CPU) >= 0


@pytest.mark.parametrize(
    ("name", "message"),
    [("gpu", "is not known; use cpu, cuda or auto"), ("meta", "cannot be timed"), ("cuda:99", "use --device cpu")],
)
def test_a_device_that_is_not_there_is_named(name, message):
    with pytest.raises(InvalidInput, match=message):
        find_device(name)
    assert find_device("cpu") == CPU
    assert find_device("auto").type in ("cpu", "cuda")


def test_threads_are_as_asked_for_and_one_in_a_quick_run():
    before = torch.get_num_threads()
    try:
        for options, threads in (
            (Common(threads=2), 2),
            (Common(), 2),
            (Common(quick=True), 1),
            (Common(quick=True, threads=2), 2),
        ):
            set_threads(options)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    with pytest.raises(InvalidInput, match="--threads 0: at least 1 is needed"):
        set_threads(Common(threads=0))
