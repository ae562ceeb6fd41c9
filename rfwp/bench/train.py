"""`rfwp bench train`: whole training steps of the paper's models, beside PyTorch's LSTM and attention and the floor."""

import gc
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from rfwp.bench.language import LANGUAGE_MODELS, language_batches, language_sizes, language_step
from rfwp.bench.models import MODELS, batches, build_model, loss_of
from rfwp.bench.options import Mode, TrainOptions
from rfwp.bench.records import Outcome, Row, append, one_line
from rfwp.bench.shapes import ModelShape, model_shape
from rfwp.bench.timing import Run, find_device, peak_memory, set_threads, time_together
from rfwp.config import LSTMConfig
from rfwp.environment import environment
from rfwp.errors import InvalidInput, unknown
from rfwp.train.step import WARM_UP, Region, TrainStep

log = logging.getLogger("rfwp")

LOSS_LIMIT: dict[Mode, float] = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 3e-2}
"""Largest relative difference of any loss of a short training from plain steps on the reference."""
CHECK_STEPS = 2 * (WARM_UP + 4)
TOP = 15
"""Lines of a profile."""


@dataclass(frozen=True)
class Setting:
    """One model, and how its step runs."""

    model: str
    precision: Mode
    region: Region
    graph: bool

    def __str__(self) -> str:
        return f"{self.model} {self.precision} {self.how}"

    @property
    def how(self) -> str:
        compiled = "eager" if self.region == "no" else f"compiled {self.region}"
        return compiled + (" + graph" if self.graph else "")

    def step(self, shape: ModelShape, device: torch.device, backend: str, lr: float = 3e-4) -> TrainStep:
        if shape.vocabulary:
            return language_step(self.model, shape, device, backend, lr, self.precision, self.region, self.graph)
        model = build_model(self.model, shape, device, backend)
        optimiser = torch.optim.Adam(model.parameters(), lr=lr, fused=True)
        return TrainStep(model, optimiser, loss_of, precision=self.precision, compile=self.region, cuda_graph=self.graph)


def bench_train(options: TrainOptions, say: Callable[[str], None] = log.info) -> Outcome:
    """Check if asked, then time, shape by shape; the rows are also added to the JSON lines."""
    device = find_device(options.device)
    set_threads(options)
    shapes = {name: model_shape(name) for name in options.shape or ("code",)}
    if options.quick:
        shapes = {name: model_shape(name) for name in ("lm-quick" if shape.vocabulary else "quick" for shape in shapes.values())}
    outcome, where = Outcome([], [], [], []), environment(device, options.commit)
    chosen = {name: choose(options, device, LANGUAGE_MODELS if shape.vocabulary else MODELS) for name, shape in shapes.items()}
    for name, shape in shapes.items():
        settings = chosen[name]
        failed = _check_all(settings, shape, device, options, outcome.failures, say) if options.check else {}
        # large models do not find room together
        for together in [[setting] for setting in settings] if shape.vocabulary else [settings]:
            done = len(outcome.rows)
            _bench_shape(together, failed, name, shape, device, options, outcome, say)
            # at once: who stops a long benchmark keeps what it has found
            outcome.files[:] = [append(outcome.rows[done:], where, options.out)]
    return outcome


def choose(options: TrainOptions, device: torch.device, known: Mapping[str, Any] = MODELS) -> list[Setting]:
    """Every model in every precision in every way to run it."""
    for name in options.models:
        if name not in known:
            raise unknown("model", name, known)
    gpu = device.type == "cuda"
    precisions: tuple[Mode, ...] = options.precision or (("tf32", "bf16") if gpu else ("fp32",))
    regions: list[Region] = [("blocks" if gpu else "no") if c == "auto" else c for c in options.compile]
    graphs = [gpu if g == "auto" else g == "yes" for g in options.graph]
    if any(graphs) and not gpu:
        raise InvalidInput("--graph yes needs a GPU, saw none; leave it away")
    if not (regions and graphs):
        raise InvalidInput("--compile and --graph need at least one value each; leave them away for the best ones")
    found = []
    for precision, region, graph in itertools.product(precisions, regions, graphs):
        for model in options.models or known:
            # the compiler would write an LSTM out step by step; cuDNN's is one call
            fused = isinstance(known[model], LSTMConfig)
            found.append(Setting(model, precision, "no" if fused else region, graph))
    return list(dict.fromkeys(found))


def _bench_shape(
    settings: list[Setting],
    failed: dict[Setting, str],
    name: str,
    shape: ModelShape,
    device: torch.device,
    options: TrainOptions,
    outcome: Outcome,
    say: Callable[[str], None],
) -> None:
    """All settings of one shape in turns."""
    data = language_batches(shape, device) if shape.vocabulary else batches(shape, device)
    runs: dict[Setting, Run] = {}
    rows: dict[Setting, Row] = {}
    for setting in settings:
        sizes = language_sizes(setting.model, shape) if shape.vocabulary else shape.sizes
        row = Row(f"train step {setting.model}", name, sizes, setting.precision, setting.how, note=failed.get(setting, ""))
        if setting not in failed:
            say(f"{name}: {setting}")
            try:
                runs[setting], peak = _prepare(setting, shape, data, device, options.backend)
                row = replace(row, peak_mb=peak)
            except torch.OutOfMemoryError:
                row = replace(row, note="out of memory")
            except Exception as error:
                outcome.failures.append(f"{name} {setting}: {one_line(error)}")
                row = replace(row, note=f"failed: {one_line(error)}")
        rows[setting] = row
    timings = time_together(runs, device, 0.05 if options.quick else options.seconds, flush=False)
    if options.profile:
        outcome.texts.extend(f"{name}: {key}\n{profile(run, device)}" for key, run in runs.items())
    for key, timing in timings.items():
        rows[key] = replace(rows[key], ms=timing, tokens_per_s=shape.tokens / timing.median * 1e3)
    outcome.rows.extend(_with_floor(row, list(rows.values())) for row in rows.values())


def _prepare(
    setting: Setting, shape: ModelShape, data: list[tuple[torch.Tensor, torch.Tensor]], device: torch.device, backend: str
) -> tuple[Run, float | None]:
    """A warm step that takes another batch every time, and the memory of model, optimiser and step at its peak."""
    gc.collect()  # models of the last shape
    if device.type == "cuda":
        torch.cuda.empty_cache()
    built: list[TrainStep] = []
    turn = itertools.cycle(data)

    def run() -> torch.Tensor:
        return built[0](*next(turn))

    def first() -> None:
        built.append(setting.step(shape, device, backend))
        for _ in range(WARM_UP + 2):
            loss = run()
        if not loss.isfinite():
            raise ArithmeticError("the loss is not finite")

    return run, peak_memory(first, device)


def _with_floor(row: Row, rows: list[Row]) -> Row:
    """Relative to the fastest floor in the same precision."""
    floors = [r.ms.median for r in rows if r.what.endswith(" floor") and r.dtype == row.dtype and r.ms is not None]
    if row.ms is None or not floors:
        return row
    return replace(row, floor_ratio=row.ms.median / min(floors))


# --- Checks ---


def _check_all(
    settings: list[Setting],
    shape: ModelShape,
    device: torch.device,
    options: TrainOptions,
    failures: list[str],
    say: Callable[[str], None],
) -> dict[Setting, str]:
    """What must not be timed, with the reason."""
    failed = {}
    for setting in settings:
        say(f"check: {setting}")
        error, limit = loss_error(setting, shape, device, options.backend), LOSS_LIMIT[setting.precision]
        if limit < error < float("inf") and setting.precision != "fp32":
            # a model that magnifies rounding may be twice as far from float32 as its plain steps in this precision are
            plain = replace(setting, region="no", graph=False)
            limit = max(limit, 2 * loss_error(plain, shape, device, "reference"))
        problem = f"losses differ by {error:.1e} > {limit:.0e}"
        if error <= limit:
            problem = "" if dropout_is_random(setting, shape, device, options.backend) else "dropout repeats itself"
        if problem:
            failed[setting] = f"check failed: {problem}"
            failures.append(f"{setting}: {problem}")
    return failed


def loss_error(setting: Setting, shape: ModelShape, device: torch.device, backend: str) -> float:
    """The worst relative difference of any loss of a short training from plain float32 steps on the reference.

    Two lengths alternate and the learning rate changes halfway, so that recordings are switched and kept up to date.
    """
    small = replace(shape, B=4, T=24, layers=2, dropout=0.0)
    longer = replace(small, T=40)
    draw = language_batches if shape.vocabulary else batches
    data = [batch for pair in zip(draw(small, device), draw(longer, device), strict=True) for batch in pair]
    plain = replace(setting, precision="fp32", region="no", graph=False)
    losses = []
    for way, ops_backend in ((setting, backend), (plain, "reference")):
        step = way.step(longer, device, ops_backend, lr=1e-3)
        found = []
        for n, batch in zip(range(CHECK_STEPS), itertools.cycle(data), strict=False):
            if n == CHECK_STEPS - 4:
                step.optimiser.param_groups[0]["lr"] = 3e-3
            found.append(step(*batch))
        losses.append(torch.stack(found).double())
    error = ((losses[0] - losses[1]) / losses[1]).abs().max().item()
    return error if error == error else float("inf")


def dropout_is_random(setting: Setting, shape: ModelShape, device: torch.device, backend: str) -> bool:
    """With a learning rate of 0 only dropout can make the losses of one batch differ."""
    if isinstance(MODELS.get(setting.model), LSTMConfig):
        return True
    small = replace(shape, B=4, T=24, layers=2, dropout=0.5)
    step = setting.step(small, device, backend, lr=0.0)
    batch = (language_batches if shape.vocabulary else batches)(small, device)[0]
    losses = [step(*batch).item() for _ in range(WARM_UP + 5)]
    return len(set(losses)) == len(losses)


def profile(run: Run, device: torch.device, steps: int = 3) -> str:
    """The kernels that take most of the time of a step: ms a step, calls a step, name."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(steps):
            run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    which = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    events = sorted(profiler.key_averages(), key=lambda e: -getattr(e, which))[:TOP]
    lines = [f"{getattr(e, which) / steps / 1e3:10.3f} ms {e.count / steps:8.1f} x  {e.key[:100]}" for e in events]
    return "\n".join(lines)
