"""Check and time the Triton kernels of recurrent_delta, delta_rnn and delta_lstm on a CUDA machine.

Run: PYTHONPATH=. python3 tools/check_gpu_recurrent.py [--ops recurrent_delta delta_rnn ...] [--no-check] [--no-time]

Checks outputs, final states and every gradient against the float64 reference (on the CPU, in parallel processes, which also
fill Triton's compile cache), with every allocation filled with NaN first and every run repeated bit by bit. Then times
forward and forward + backward for several numbers of warps. The last lines are a table; the exit status is 1 if a check failed.
"""

import argparse
import importlib
import os
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from types import ModuleType
from typing import NamedTuple

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import Tensor

OPS = {"recurrent_delta": ("",), "delta_rnn": ("B", "A"), "delta_lstm": ("D", "A", "B", "C")}
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
LONG = 16384


class Case(NamedTuple):
    B: int
    T: int
    d: int
    state: bool
    reset: bool
    dtype: torch.dtype = torch.float32
    raw: bool = False
    """k and beta before their activations, and gradients written into views of one tensor."""


CASES = (
    Case(3, 450, 16, True, False),
    Case(1, 1000, 16, False, True),
    Case(3, 7, 16, True, True),
    Case(3, 63, 16, True, True, torch.bfloat16),
    Case(3, 1, 8, True, False),
    Case(1, 450, 8, False, True),
    Case(1, 63, 24, True, True),
    Case(3, 63, 32, True, False),
    Case(1, 450, 32, False, True),
    Case(3, 63, 48, False, True, torch.bfloat16),
    Case(1, 63, 48, True, False),
    Case(3, 63, 64, True, True),
    Case(1, 450, 64, False, False),
    Case(1, 63, 128, True, True),
    Case(1, 63, 128, False, False, torch.bfloat16),
    Case(3, 450, 16, True, False, raw=True),
    Case(1, 63, 24, True, True, raw=True),
    Case(3, 63, 16, True, True, torch.bfloat16, raw=True),
    Case(1, 63, 64, True, True, raw=True),
    Case(1, 33, 128, True, False, raw=True),
)

SHAPES = ((64, 450, 16, 16), (96, 256, 8, 16), (32, 1024, 8, 64))
VARIANTS = {16: ((1, 8), (1, 0), (2, 8), (4, 8)), 64: ((2, 8), (4, 8), (8, 8), (16, 8))}
"""Head size -> (warps, steps that the prefetch runs ahead) to time; the warps serve both directions."""


def kernels(op: str) -> ModuleType:
    return importlib.import_module(f"rfwp.ops.gpu.{op}")


def inputs(
    op: str, B: int, T: int, H: int, d: int, dtype: torch.dtype, state: bool, device: str, raw: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """The op's tensors, slices of one projection (and of one R), and its states."""
    make = {"device": device, "generator": torch.Generator(device).manual_seed(B * T + d)}
    if op == "recurrent_delta":
        x = torch.randn(B, T, H, 3 * d + 1, **make).to(dtype)
        R = (torch.randn(H, 3 * d + 1, d, **make) / d**0.5).to(dtype)
        tensors = [*slices(x, d), R[:, :d], R[:, d : 2 * d], R[:, 2 * d : 3 * d], R[:, -1]]
        states = [torch.randn(B, H, d, d, **make), torch.randn(B, H, d, **make)]
    else:
        gates = (3,) if op == "delta_lstm" else ()
        x = torch.randn(B, T, H, *gates, 3 * d + 1, **make)
        if not raw:
            x[..., d : 2 * d] = x[..., d : 2 * d].softmax(-1)
            x[..., -1] = x[..., -1].sigmoid()
        tensors = slices(x.to(dtype), d)
        states = [torch.randn(B, H, *gates, d, d, **make), *(torch.randn(B, H, d, **make) for _ in range(1 + len(gates)))]
    return tensors, states if state else [torch.zeros_like(s) for s in states]


def slices(x: Tensor, d: int) -> list[Tensor]:
    return [x[..., :d], x[..., d : 2 * d], x[..., 2 * d : 3 * d], x[..., -1]]


def both_ways(
    op: str,
    version: str,
    tensors: list[Tensor],
    states: list[Tensor],
    reset: Tensor | None,
    gradients: list[Tensor],
    raw: bool = False,
):
    """y, final states, then the gradients of all inputs and states."""
    kernel, extra = kernels(op), [version] if version else []
    options = {"raw": True} if raw and version else {}
    out = None
    if raw:
        first = tensors[0]
        out = tuple(slices(first.new_empty(*first.shape[:-1], 3 * first.shape[-1] + 1), first.shape[-1]))
    y, *rest = kernel.forward(*tensors, *states, reset, True, *extra, **options)
    finals, saved = rest[: len(states)], rest[len(states) :]
    return y, *finals, *kernel.backward(*gradients, *tensors, *states, reset, y, *saved, *extra, **options, out=out)


def reference(
    op: str,
    version: str,
    tensors: list[Tensor],
    states: list[Tensor],
    reset: Tensor | None,
    gradients: list[Tensor],
    raw: bool = False,
):
    loop = getattr(importlib.import_module(f"rfwp.ops.{op}"), f"{op}_reference")
    leaves = [x.detach().cpu().double().requires_grad_() for x in (*tensors, *states)]
    n = len(tensors)
    given = leaves[:n]
    if raw and version:
        z, k, v, beta = given
        given = [z, k.softmax(-1), v, beta.sigmoid()]
    extra = {"version": version} if version else {}
    y, finals = loop(*given, state=tuple(leaves[n:]), reset=None if reset is None else reset.cpu(), **extra)
    grads = torch.autograd.grad((y, *finals), leaves, [g.cpu().double() for g in gradients], materialize_grads=True)
    return y, *finals, *grads


def error(x: Tensor, expected: Tensor) -> float:
    """Relative to the norm; not a number counts as infinite."""
    size = expected.norm().item()
    e = (x.cpu().double() - expected).norm().item() / (size if size > 1e-12 else 1.0)
    return e if e == e else float("inf")


def check(op: str, version: str, case: Case) -> tuple[str, float, float, bool]:
    """(case, largest error of y and states, largest error of gradients, passed)"""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # fills every allocation with NaN
    B, T, d, state, with_reset, dtype, raw = case
    tensors, states = inputs(op, B, T, 2, d, dtype, state, "cuda", raw)
    generator = torch.Generator("cuda").manual_seed(1)
    reset = torch.rand(B, T, device="cuda", generator=generator) < 0.05 if with_reset else None
    y = tensors[2][..., 0, :] if op == "delta_lstm" else tensors[2]
    gradients = [torch.randn(x.shape, device="cuda", generator=generator).to(x.dtype) for x in (y, *states)]
    ours = both_ways(op, version, tensors, states, reset, gradients, raw)
    again = both_ways(op, version, tensors, states, reset, gradients, raw)
    same = all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))
    errors = [error(a, b) for a, b in zip(ours, reference(op, version, tensors, states, reset, gradients, raw), strict=True)]
    forward, backward = max(errors[: 1 + len(states)]), max(errors[1 + len(states) :])
    limit = 1e-4 if T == LONG else LIMIT[dtype]
    marks = " ".join(mark for mark, on in (("state", state), ("reset", with_reset), ("raw", raw)) if on)
    name = f"{op} {version or '-'} B={B} T={T} d={d} {marks} {str(dtype)[6:]}"
    name += "" if same else " NOT BIT-IDENTICAL"
    return name, forward, backward, same and max(forward, backward) <= limit


def compile_variant(op: str, d: int, warps: int, ahead: int, dtype: torch.dtype) -> None:
    """Fill Triton's cache with what will be timed."""
    kernel = kernels(op)
    usual = kernel.FORWARD_WARPS, kernel.BACKWARD_WARPS, kernel.steps.AHEAD
    set_variant(op, warps, ahead)
    time_one(op, (1, 40, 1, d), dtype, run=False)
    kernel.FORWARD_WARPS, kernel.BACKWARD_WARPS, kernel.steps.AHEAD = usual


def set_variant(op: str, warps: int, ahead: int) -> None:
    kernel = kernels(op)
    kernel.FORWARD_WARPS = kernel.BACKWARD_WARPS = ((128, warps),)
    kernel.steps.AHEAD = ahead


def time_one(op: str, shape: tuple[int, int, int, int], dtype: torch.dtype, run: bool = True) -> tuple[float, ...]:
    """Median ms of forward without and with checkpoints, of backward, and of both, on raw inputs, as layers run them."""
    from triton.testing import do_bench

    tensors, states = inputs(op, *shape, dtype, True, "cuda", True)
    kernel, extra = kernels(op), [OPS[op][0], True] if OPS[op][0] else []
    d = shape[-1]
    out = tuple(slices(tensors[0].new_empty(*tensors[0].shape[:-1], 3 * d + 1), d))
    y, *rest = kernel.forward(*tensors, *states, None, True, *extra)
    saved = rest[len(states) :]
    gradients = [torch.randn_like(x) for x in (y, *states)]

    def forward(keep: bool):
        return lambda: kernel.forward(*tensors, *states, None, keep, *extra)

    def backward():
        return kernel.backward(*gradients, *tensors, *states, None, y, *saved, *extra, out=out)

    def training():
        kernel.forward(*tensors, *states, None, True, *extra)
        backward()

    if not run:
        forward(False)()
        backward()
        return ()
    return tuple(
        do_bench(f, warmup=25, rep=100, return_mode="median") for f in (forward(False), forward(True), backward, training)
    )


def variants(ops: list[str]):
    for op in ops:
        for d, settings in VARIANTS.items():
            for warps, ahead in settings:
                yield op, d, warps, ahead


def check_all(ops: list[str], with_time: bool, only_long: bool) -> list[str]:
    """Failed cases. Also compiles what will be timed."""
    failures = []
    started = time.time()
    worst: dict[str, list[float]] = {}
    with ProcessPoolExecutor(max(1, min(14, os.cpu_count() or 1)), mp_context=get_context("spawn")) as pool:
        jobs = {}
        for op in ops:
            jobs[pool.submit(check, op, OPS[op][0], Case(1, LONG, 16, True, False))] = f"{op} long"
        # the largest heads first: their kernels take longest to compile, and the pool ends together
        for case in () if only_long else sorted(CASES, key=lambda case: -case.d):
            for op in ops:
                for version in OPS[op]:
                    jobs[pool.submit(check, op, version, case)] = f"{op} {version} {case}"
        if with_time:
            for op, d, warps, ahead in variants(ops):
                jobs[pool.submit(compile_variant, op, d, warps, ahead, torch.float32)] = f"compile {op} {d} {warps} {ahead}"
        for job in as_completed(jobs):
            try:
                result = job.result()
            except Exception:
                failures.append(f"{jobs[job]}: {traceback.format_exc(limit=-3)}")
                print("FAILED", failures[-1], flush=True)
                continue
            if result is not None:
                name, forward, backward, passed = result
                print(f"{'ok    ' if passed else 'FAILED'} {name}: forward {forward:.1e} gradients {backward:.1e}", flush=True)
                key = f"{' '.join(name.split()[:2])} {name.split()[-1]}{' long' if str(LONG) in name else ''}"
                worst[key] = [max(a, b) for a, b in zip(worst.get(key, [0, 0]), (forward, backward), strict=True)]
                if not passed:
                    failures.append(f"{name}: forward {forward:.1e} gradients {backward:.1e}")
    print(f"\nchecked in {time.time() - started:.0f} s; largest relative errors (forward, gradients):")
    for key, (forward, backward) in sorted(worst.items()):
        print(f"  {key:40s} {forward:.1e} {backward:.1e}")
    return failures


def count_compilations(ops: list[str]) -> None:
    """Lengths that a specialisation on T or on a stride would tell apart must not compile anew."""
    for op in ops:
        kernel = kernels(op)
        counts = []
        for T in (33, 48, 64, 1, 450):
            time_one(op, (2, T, 3, 16), torch.float32, run=False)
            counts.append(sum(len(c[0]) for k in (kernel._run, kernel._back) for c in k.device_caches.values()))
        verdict = "ok" if len(set(counts)) == 1 else "RECOMPILED FOR T"
        print(f"{op}: compiled kernels after T = 33, 48, 64, 1, 450: {counts} {verdict}")


def time_all(ops: list[str]) -> list[str]:
    rows = []
    for op, d, warps, ahead in variants(ops):
        set_variant(op, warps, ahead)
        for shape in SHAPES:
            if shape[-1] == d:
                times = time_one(op, shape, torch.float32)
                columns = " ".join(f"{ms:9.3f}" for ms in times)
                rows.append(f"{op:16s} {shape!s:20s} {warps:5d} {ahead:5d} {columns} {times[1] / shape[1] * 1e3:8.3f}")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="+", choices=list(OPS), default=list(OPS))
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--no-time", action="store_true")
    parser.add_argument("--only-long", action="store_true", help=f"of the checks only T = {LONG}")
    options = parser.parse_args()
    failures = [] if options.no_check else check_all(options.ops, not options.no_time, options.only_long)
    count_compilations(options.ops)
    rows = [] if options.no_time else time_all(options.ops)
    if rows:
        print(f"\n{'op':16s} {'B, T, H, d':20s} warps ahead   forward  fwd+keep  backward fwd+bwd ms  µs/step fwd")
        print("\n".join(rows))
    print(f"\n{len(failures)} failures" + "".join(f"\n  {x}" for x in failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
