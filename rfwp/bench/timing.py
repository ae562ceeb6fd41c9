"""Time several things side by side: in turns, so that whatever else the machine does falls on all of them."""

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Protocol, TypeVar

import torch

from rfwp.bench.options import Common
from rfwp.bench.records import Timing
from rfwp.errors import InvalidInput, usable_device

Run = Callable[[], Any]
K = TypeVar("K", bound=Hashable)

AT_LEAST, AT_MOST = 5, 200
"""Repetitions; 3 are enough for what takes seconds."""
FLUSH_BYTES = 256 * 2**20
"""Several times the largest L2 cache: written before every repetition, so that inputs come from memory."""
AHEAD, AHEAD_MS = 2.0, 0.2
"""How far Python is let ahead of the GPU: so many times as long as it takes for a run, and a little more."""


def find_device(name: str) -> torch.device:
    """`auto`: a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = usable_device(name)
    if device.type not in ("cpu", "cuda"):
        raise InvalidInput(f"device '{name}' cannot be timed; use cpu, cuda or auto")
    if device.type == "cuda":
        # events are recorded on the current GPU; set_device takes none without a number
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
        torch.cuda.set_device(device)
    return device


def set_threads(options: Common) -> None:
    """A quick run takes one, as several threads wait for each other on a busy machine."""
    if options.threads is not None and options.threads < 1:
        raise InvalidInput(f"--threads {options.threads}: at least 1 is needed")
    if options.threads is not None or options.quick:
        torch.set_num_threads(options.threads or 1)


def time_together(runs: Mapping[K, Run], device: torch.device, seconds: float, flush: bool = True) -> dict[K, Timing]:
    """Every run is warm. Each is repeated for about `seconds`, all of them in turns."""
    found = _in_turns(runs, device, seconds, _GPUWatch(device, flush) if device.type == "cuda" else _CPUWatch())
    return {name: summary(found[name]) for name in runs}


def time_on_device(runs: Mapping[K, Run], device: torch.device, seconds: float) -> dict[K, Timing]:
    """The same calls without the time that Python takes for them; on GPUs only, and without those that wait for the GPU.

    A kernel that does nothing but wait goes first, for so long that Python has queued the whole run when it ends. Unlike a
    recorded graph this takes all that can be called, as it is called, and needs no memory of its own.
    """
    if device.type != "cuda":
        return {}
    found = _in_turns(runs, device, seconds, _AheadWatch(device))
    return {name: summary(found[name]) for name in runs if len(found[name]) >= 3}


def _in_turns(runs: Mapping[K, Run], device: torch.device, seconds: float, watch: "_Watch") -> dict[K, list[float]]:
    repetitions = {name: _repetitions(run, device, seconds) for name, run in runs.items()}
    for turn in range(max(repetitions.values(), default=0)):
        for name, run in runs.items():
            if turn < repetitions[name]:
                watch.time(name, run)
    return watch.milliseconds()


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


class _Watch(Protocol):
    def time(self, name: Any, run: Run) -> None: ...

    def milliseconds(self) -> dict[Any, list[float]]: ...


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


class _AheadWatch(_GPUWatch):
    """Behind a kernel that waits: a repetition counts only if Python had queued all of it before its first kernel could start."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device, flush=True)
        self.cycles_per_ms = self._cycles_per_ms()
        self.ahead_ms: dict[Any, float] = {}

    def time(self, name: Any, run: Run) -> None:
        if name not in self.ahead_ms:
            self.ahead_ms[name] = self._time_to_queue(run) * AHEAD + AHEAD_MS
        pairs = self.events.setdefault(name, [])
        assert self.cache is not None
        self.cache.zero_()
        torch.cuda._sleep(int(self.ahead_ms[name] * self.cycles_per_ms))
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        if not start.query():
            pairs.append((start, end))

    def _time_to_queue(self, run: Run) -> float:
        torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e3

    def _cycles_per_ms(self) -> float:
        """How long a waiting kernel waits. The first one is slower: it is loaded."""
        cycles = 2_000_000
        for _ in range(2):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            torch.cuda._sleep(cycles)
            end.record()
            torch.cuda.synchronize(self.device)
        return cycles / start.elapsed_time(end)
