"""Time several things side by side: in turns, so that whatever else the machine does falls on all of them."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import torch

from rfwp.bench.options import Common
from rfwp.bench.records import Timing
from rfwp.errors import InvalidInput

Run = Callable[[], Any]
K = TypeVar("K", bound=Hashable)

AT_LEAST, AT_MOST = 5, 200
"""Repetitions; 3 are enough for what takes seconds."""
FLUSH_BYTES = 256 * 2**20
"""Several times the largest L2 cache: written before every repetition, so that inputs come from memory."""


def find_device(name: str) -> torch.device:
    """`auto`: a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InvalidInput(f"device '{name}' is not known; use cpu, cuda or auto") from None
    if device.type not in ("cpu", "cuda"):
        raise InvalidInput(f"device '{name}' cannot be timed; use cpu, cuda or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        seen = f"{torch.cuda.device_count()} GPUs" if torch.cuda.is_available() else "no GPU that PyTorch can use"
        raise InvalidInput(f"device '{name}' asked for, saw {seen}; use --device cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)  # where events are recorded
    return device


def set_threads(options: Common) -> None:
    """A quick run takes one, as several threads wait for each other on a busy machine."""
    if options.threads is not None and options.threads < 1:
        raise InvalidInput(f"--threads {options.threads}: at least 1 is needed")
    if options.threads is not None or options.quick:
        torch.set_num_threads(options.threads or 1)


def time_together(runs: Mapping[K, Run], device: torch.device, seconds: float, flush: bool = True) -> dict[K, Timing]:
    """Every run is warm. Each is repeated for about `seconds`, all of them in turns."""
    repetitions = {name: _repetitions(run, device, seconds) for name, run in runs.items()}
    watch = _GPUWatch(device, flush) if device.type == "cuda" else _CPUWatch()
    for turn in range(max(repetitions.values(), default=0)):
        for name, run in runs.items():
            if turn < repetitions[name]:
                watch.time(name, run)
    found = watch.milliseconds()
    return {name: summary(found[name]) for name in runs}


def once(run: Run, device: torch.device) -> float:
    """Milliseconds of one repetition by the wall clock."""
    synchronise(device)
    start = time.perf_counter()
    run()
    synchronise(device)
    return (time.perf_counter() - start) * 1e3


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_memory(run: Run, device: torch.device) -> float | None:
    """MB that a run takes at its peak beside what was there before; PyTorch counts it on GPUs only."""
    if device.type != "cuda":
        run()
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 1e6


def recorded(run: Run, device: torch.device) -> Run:
    """The same as a CUDA graph: what is left is the time of the kernels."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        kept = run()
    replay = graph.replay

    def replayed() -> Any:
        replay()
        return kept

    return replayed


def summary(milliseconds: list[float]) -> Timing:
    values = torch.tensor(milliseconds, dtype=torch.float64)
    p20, median, p80 = values.quantile(torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)).tolist()
    return Timing(median=median, p20=p20, p80=p80, n=len(milliseconds))


def _repetitions(run: Run, device: torch.device, seconds: float) -> int:
    took = max(once(run, device) / 1e3, 1e-6)
    return int(min(AT_MOST, max(3 if took > 2 else AT_LEAST, seconds / took)))


class _CPUWatch:
    def __init__(self) -> None:
        self.found: dict[Any, list[float]] = {}

    def time(self, name: Any, run: Run) -> None:
        start = time.perf_counter()
        run()
        self.found.setdefault(name, []).append((time.perf_counter() - start) * 1e3)

    def milliseconds(self) -> dict[Any, list[float]]:
        return self.found


class _GPUWatch:
    """Events around each repetition; nothing waits until the end, so Python runs ahead as in a training loop."""

    def __init__(self, device: torch.device, flush: bool) -> None:
        self.cache = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device=device) if flush else None
        self.device = device
        self.events: dict[Any, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {}

    def time(self, name: Any, run: Run) -> None:
        if self.cache is not None:
            self.cache.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        self.events.setdefault(name, []).append((start, end))

    def milliseconds(self) -> dict[Any, list[float]]:
        torch.cuda.synchronize(self.device)
        return {name: [start.elapsed_time(end) for start, end in pairs] for name, pairs in self.events.items()}
