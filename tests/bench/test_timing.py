"""Timing in turns."""

import pytest
import torch

from rfwp.bench import timing
from rfwp.bench.options import Common
from rfwp.bench.timing import find_device, once, peak_memory, set_threads, summary, time_on_device, time_together
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
    [("gpu", "does not exist; use 'cpu'"), ("meta", "cannot be timed"), ("cuda:99", "is not here")],
)
def test_a_device_that_is_not_there_is_named(name, message):
    with pytest.raises(InvalidInput, match=message):
        find_device(name)
    assert find_device("cpu") == CPU
    assert find_device("auto").type in ("cpu", "cuda")


@pytest.mark.parametrize(("name", "number"), [("cuda", 1), ("cuda:0", 0)])
def test_a_gpu_without_a_number_is_the_current_one(monkeypatch, name, number):
    """As `torch.cuda.set_device` sees it, which refuses a device without a number."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert find_device(name) == torch.device("cuda", number)
    assert chosen == [torch.device("cuda", number)]


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


class FakeGPU:
    """A host and a stream with clocks of their own, in milliseconds."""

    CYCLES_PER_MS = 1000.0

    def __init__(self, monkeypatch):
        gpu, self.host, self.stream = self, 0.0, 0.0

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = gpu.stream = max(gpu.stream, gpu.host)

            def query(self):
                return gpu.host >= self.at

            def elapsed_time(self, end):
                return end.at - self.at

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: self.launch(cycles / self.CYCLES_PER_MS))
        monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: self.wait())
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.host / 1e3)
        for name in ("_GPUWatch", "_AheadWatch"):
            watch = getattr(timing, name)
            monkeypatch.setattr(timing, name, lambda _, *flush, watch=watch: watch(torch.device("meta"), *flush))

    def launch(self, ms):
        self.stream = max(self.stream, self.host) + ms

    def wait(self):
        self.host = max(self.host, self.stream)

    def op(self, python_ms, kernel_ms, waits=False):
        """Python before each of three kernels."""
        for _ in range(3):
            self.host += python_ms
            self.launch(kernel_ms)
            if waits:
                self.wait()


def test_the_device_alone_is_timed_without_python(monkeypatch):
    gpu = FakeGPU(monkeypatch)
    runs = {"short": lambda: gpu.op(0.2, 0.1), "long": lambda: gpu.op(0.1, 5.0), "waits": lambda: gpu.op(0.1, 0.2, waits=True)}
    called = time_together({"short": runs["short"]}, torch.device("cuda"), seconds=0.0)
    assert called["short"].median == pytest.approx(0.6)  # three times Python, the kernels in its shadow
    alone = time_on_device(runs, torch.device("cuda"), seconds=0.0)
    assert {name: ms.median for name, ms in alone.items()} == pytest.approx({"short": 0.3, "long": 15.0})
    assert alone["short"].n == 5


def test_a_cpu_is_not_timed_alone():
    assert time_on_device({"a": lambda: None}, CPU, seconds=0.0) == {}
