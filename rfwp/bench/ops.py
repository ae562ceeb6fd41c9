"""`rfwp bench ops`: every op on every backend that can run, beside its peers."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from rfwp.bench.check import LIMIT, LONG_LIMIT, check_peer, check_small, plain_output, relative_error
from rfwp.bench.contenders import DTYPES, OPS, Contender, affordable, backends, delta_peers, example, general_peers, ours
from rfwp.bench.options import Mode, OpsOptions
from rfwp.bench.records import Outcome, Row, append, one_line
from rfwp.bench.shapes import OpShape, op_shape, scaled
from rfwp.bench.timing import Run, find_device, once, peak_memory, recorded, set_threads, time_on_device, time_together
from rfwp.environment import environment, stem
from rfwp.errors import InvalidInput, MissingExtra, unknown
from rfwp.report.plots import plot_scaling
from rfwp.train.step import switched

log = logging.getLogger("rfwp")

TOO_LONG_MS = {"cpu": 10_000.0, "cuda": 4_000.0}
"""One repetition; while a size is scaled, what would take longer is left out."""


@dataclass
class Session:
    """What is known so far in one run."""

    options: OpsOptions
    device: torch.device
    rows: list[Row] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    errors: dict[tuple[str, str, int, Mode], float] = field(default_factory=dict)
    """Worst error of (op, backend, head size, dtype)."""
    last_ms: dict[tuple[str, str, Mode], tuple[OpShape, float]] = field(default_factory=dict)


def bench_ops(options: OpsOptions, say: Callable[[str], None] = log.info) -> Outcome:
    """Check, then time, shape by shape; the rows are also added to the JSON lines."""
    session = Session(options, find_device(options.device))
    set_threads(options)
    chosen, shapes = _choices(options)
    if options.graph and session.device.type != "cuda":
        raise InvalidInput("--graph needs a GPU, saw none; leave it away")
    torch.manual_seed(0)
    where = environment(session.device, options.commit)
    outcome = Outcome(session.rows, session.failures, [], [])
    for name, shape in shapes:
        for mode in options.dtype:
            say(f"{name} {shape} {mode}")
            done = len(session.rows)
            with switched(mode):
                _bench_shape(session, chosen, name, shape, mode)
            outcome.files[:] = [append(session.rows[done:], where, options.out)]
    if options.scaling != "no":
        try:
            path = options.out / f"{stem(where)}-{options.scaling}"
            outcome.files.extend(plot_scaling(session.rows, options.scaling, path, where["device"]))
        except MissingExtra as error:  # the lines are written; `rfwp bench plot` draws them anywhere
            outcome.texts.append(f"no plot: {error}")
    return outcome


def _choices(options: OpsOptions) -> tuple[list[str], list[tuple[str, OpShape]]]:
    for op in options.ops:
        if op not in OPS:
            raise unknown("op", op, OPS)
    if not options.dtype:
        raise InvalidInput("--dtype is empty; give fp32, tf32 or bf16")
    default = ("scaling",) if options.scaling != "no" else ("code", "lm", "wide")
    shapes = [(name, op_shape(name)) for name in options.shapes or default]
    if options.quick:
        shapes = [("quick", op_shape("quick"))]
    if options.scaling != "no":
        shapes = [(name, s) for name, shape in shapes for s in scaled(shape, options.scaling, options.quick)]
    return list(options.ops or OPS), shapes


def _bench_shape(session: Session, chosen: list[str], name: str, shape: OpShape, mode: Mode) -> None:
    """All contenders of one shape in turns."""
    contenders: dict[Contender, str] = {}
    for op in chosen:
        leaves, _ = example(op, shape, DTYPES[mode], session.device)
        wanted = session.options.backends or (("auto",) if session.options.scaling != "no" else ())
        found = [ours(op, backend, leaves) for backend in backends(op, wanted, leaves[0])]
        found += delta_peers(leaves, mode) if op == "delta" and session.options.peers else []
        truth = plain_output(op, leaves, shape)
        contenders |= {contender: _refusal(session, contender, truth, shape, mode) for contender in found}
    for contender in general_peers(shape, mode, session.device) if session.options.peers else []:
        contenders[contender] = _would_take_long(session, contender, shape, mode)
    _time(session, contenders, name, shape, mode)


def _refusal(session: Session, contender: Contender, truth: Tensor | None, shape: OpShape, mode: Mode) -> str:
    """Why a contender is not timed, or ''. `truth` is y at the shape that is timed, where it is known."""
    if contender.ours and not affordable(contender.name, shape, session.device):
        return "would take too long"
    if note := _would_take_long(session, contender, shape, mode):
        return note
    key = (contender.op, contender.name, shape.d, mode)
    try:
        if key not in session.errors:
            check = partial(check_small, contender.op, contender.name) if contender.ours else partial(check_peer, contender)
            session.errors[key] = check(shape.d, mode, session.device)
        if session.errors[key] > LIMIT[mode]:
            return _fail(session, contender, f"error {session.errors[key]:.1e} > {LIMIT[mode]:.0e}, d={shape.d} {mode}")
        there = 0.0 if truth is None else relative_error(contender.forward()[0], truth)
        if there > LONG_LIMIT[mode]:
            return _fail(session, contender, f"error {there:.1e} > {LONG_LIMIT[mode]:.0e}, y at {shape} {mode}")
    except InvalidInput as error:  # a size or dtype that the backend says it cannot do
        return str(error)
    except Exception as error:
        return _fail(session, contender, one_line(error))
    return ""


def _fail(session: Session, contender: Contender, why: str) -> str:
    """Only our own mistakes make the command fail."""
    text = f"{contender.op} on {contender.name}: {why}"
    if contender.ours and text not in session.failures:
        session.failures.append(text)
    return f"check failed: {why}"


def _would_take_long(session: Session, contender: Contender, shape: OpShape, mode: Mode) -> str:
    """From the last size that was timed, while one size is scaled."""
    last = session.last_ms.get(_key(contender, mode))
    if session.options.scaling == "no" or last is None:
        return ""
    before, ms = last
    power = 2 if contender.op == "attention" and session.options.scaling == "T" else 1
    growth = (getattr(shape, session.options.scaling) / getattr(before, session.options.scaling)) ** power
    return "would take too long" if ms * growth > TOO_LONG_MS[session.device.type] else ""


def _time(session: Session, contenders: dict[Contender, str], name: str, shape: OpShape, mode: Mode) -> None:
    """`contenders` come with the reason why they are not timed, or ''."""
    options, device = session.options, session.device
    runs: dict[Contender, Run] = {}
    peaks: dict[Contender, float | None] = {}
    for contender in [c for c, reason in contenders.items() if not reason]:
        try:
            run = _run(contender, options.backward)
            once(run, device)
            peaks[contender] = peak_memory(run, device)
            runs[contender] = recorded(run, device) if options.graph else run
        except torch.OutOfMemoryError:
            contenders[contender] = "out of memory"
        except Exception as error:
            contenders[contender] = _fail(session, contender, one_line(error))
    seconds = 0.05 if options.quick else options.seconds
    timings, on_device = time_together(runs, device, seconds), time_on_device(runs, device, seconds)
    passes = "forward + backward" if options.backward else "forward"
    for contender, reason in contenders.items():
        label = f"{contender.name}, graph" if options.graph else contender.name
        row = Row(f"{contender.op} {passes}", name, shape.sizes, mode, label, note=reason)
        if (timing := timings.get(contender)) is not None:
            session.last_ms[_key(contender, mode)] = (shape, timing.median)
            worst = session.errors.get((contender.op, contender.name, shape.d, mode))
            speed = shape.tokens / timing.median * 1e3
            alone = on_device.get(contender)
            row = replace(row, ms=timing, device_ms=alone, tokens_per_s=speed, peak_mb=peaks[contender], error=worst)
        session.rows.append(row)


def _run(contender: Contender, backward: bool) -> Run:
    if not backward:
        return contender.forward
    y = contender.forward()[0]
    return partial(contender.both, torch.randn_like(y))


def _key(contender: Contender, mode: Mode) -> tuple[str, str, Mode]:
    """The same contender at all sizes: an LSTM's name holds its sizes."""
    return contender.op, contender.name.split("(")[0], mode
