"""Check and time the Triton kernels of `delta` and `sum` on a CUDA machine.

    PYTHONPATH=. python tools/check_gpu_delta.py                      everything, compact tables last
    PYTHONPATH=. python tools/check_gpu_delta.py --parts check long   correctness only
    PYTHONPATH=. python tools/check_gpu_delta.py --parts time --shapes 16 64

Kernels are compiled by a pool of processes, which share Triton's cache on disk; timing runs alone afterwards.
"""

import argparse
import itertools
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, NamedTuple

import torch
from torch import Tensor

MODES = {
    "fp32": (torch.float32, "highest", 1e-5),
    "tf32": (torch.float32, "high", 2e-3),
    "bf16": (torch.bfloat16, "highest", 1e-2),
}
SIZES = [
    (8, 8),
    (16, 16),
    (24, 24),
    (32, 32),
    (48, 48),
    (64, 64),
    (128, 128),
    (96, 49),
    (128, 16),
    (16, 64),
    (64, 16),
    (16, 49),
    (32, 1),
    (256, 24),
    (512, 16),
]
LENGTHS = [1, 7, 63, 450, 1000]
NAMES = ("y", "W_T", "dq", "dk", "dv", "dbeta", "dW")


class Arguments(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    W: Tensor
    reset: Tensor | None
    dy: Tensor
    dW_T: Tensor


def arguments(B: int, T: int, H: int, K: int, V: int, dtype: torch.dtype, state: bool = False, reset: bool = False) -> Arguments:
    """q, k, v and beta are slices of one projection; keys of norm 1, learning rates in (0, 1)."""
    x = torch.randn(B, T, H, 2 * K + V + 1, device="cuda")
    q, k, v, beta = x.split([K, K, V, 1], -1)
    k.div_(k.norm(dim=-1, keepdim=True))
    q.div_(q.norm(dim=-1, keepdim=True))
    beta.sigmoid_()
    q, k, v, beta = x.to(dtype).split([K, K, V, 1], -1)
    W, dW_T = (torch.randn(B, H, V, K, device="cuda") for _ in range(2))
    forget = (torch.rand(B, T, device="cuda") < 0.05) if reset else None
    return Arguments(q, k, v, beta.squeeze(-1), W if state else W * 0, forget, torch.randn_like(v), dW_T if state else dW_T * 0)


def raw(a: Arguments, gates: int) -> Arguments:
    """The same as the slow net writes it, before φ and sigmoid: views of one tensor, in which gates lie behind one another."""
    B, T, H, K, V = *a.q.shape, a.v.shape[-1]
    u = torch.randn(B, T, H // gates, 2 * K + V + 1, gates, device="cuda", dtype=a.q.dtype).mT.contiguous()
    q, k, v, beta = u.split([K, K, V, 1], -1)
    return a._replace(q=q, k=k, v=v, beta=beta.squeeze(-1))


def reference(a: Arguments, rule: str, phi: str | None = None) -> list[Tensor]:
    """y, the final W and every gradient from the step-by-step definition in float64; with φ, from raw inputs."""
    from rfwp.fwp.maps import MAPS
    from rfwp.ops.delta import delta_reference
    from rfwp.ops.sum import sum_reference

    # thousands of tiny steps from a dozen processes: a core for each is faster than one GPU for all
    place = "cpu" if a.W.shape[-1] * a.W.shape[-2] <= 1024 else "cuda"
    torch.set_num_threads(1)
    inputs = [a.q, a.k, a.v, a.beta, a.W] if rule == "delta" else [a.q, a.k, a.v, a.W]
    *leaves, W = (x.detach().to(place).double().requires_grad_() for x in inputs)
    used = leaves
    if phi is not None:
        used = [x.flatten(2, 3) for x in leaves]
        used = [MAPS[phi](used[0]), MAPS[phi](used[1]), used[2], *(b.sigmoid() for b in used[3:])]
    y, W_T = (delta_reference if rule == "delta" else sum_reference)(
        *used, state=W, reset=None if a.reset is None else a.reset.to(place)
    )
    arriving = (a.dy.to(place).double(), a.dW_T.to(place).double())
    gradients = torch.autograd.grad((y, W_T), [*leaves, W], arriving)
    return [x.detach().cuda() for x in (y, W_T, *gradients)]


def kernels(a: Arguments, form: str, phi: str | None = None, **plan: Any) -> list[Tensor]:
    """The same from the kernels, their outputs filled with NaN before; with φ, gradients go into views of one tensor."""
    from rfwp.ops.gpu import delta, sum

    q, k, v, beta, W, reset, dy, dW_T = a
    options: dict[str, Any] = {}
    back: dict[str, Any] = {}
    if phi is not None:
        K, V = q.shape[-1], v.shape[-1]
        *tiles, rates = torch.full((*q.shape[:-1], 2 * K + V + 1), torch.nan, device="cuda", dtype=q.dtype).split(
            [K, K, V, 1], -1
        )
        options = {"phi": phi, "sigmoid": True} if form != "sum" else {"phi": phi}
        back = {"out": (*tiles, rates.squeeze(-1)) if form != "sum" else tuple(tiles)}
    torch.use_deterministic_algorithms(True, warn_only=True)
    if form == "sum":
        y, W_T, *kept = sum.forward(q, k, v, W, reset, True, **options)
        gradients: tuple[Tensor, ...] = sum.backward(dy, dW_T, q, k, v, W, reset, *kept, **options, **back)
    else:
        module = delta.FORMS[form]
        y, W_T, *kept = module.forward(q, k, v, beta, W, reset, True, **options, **plan)
        gradients = module.backward(dy, dW_T, q, k, v, beta, reset, *kept, **options, **back, **plan)
    torch.use_deterministic_algorithms(False)
    return [y, W_T, *gradients]


def error(actual: Tensor, expected: Tensor) -> float:
    size = expected.norm().item()
    difference = (actual.double() - expected).norm().item()
    return difference / size if size else float(difference > 0)


def _names(form: str) -> list[str]:
    """Of what a form gives back; the sum rule has no rates."""
    return [name for name in NAMES if form != "sum" or name != "dbeta"]


def compare(a: Arguments, forms: list[str], phi: str | None) -> list[tuple[str, float, str]]:
    """The error of every output and gradient of every form; NaN where two runs were not bit-identical."""
    found = []
    B, T = a.q.shape[:2]
    want = {rule: reference(a, rule, phi) for rule in ("delta", "sum")}
    for form in forms:
        if form == "chunk" and T < 8:  # never chosen: a single step is not worth a chunk
            continue
        got, again = kernels(a, form, phi), kernels(a, form, phi)
        expected = want["sum" if form == "sum" else "delta"]
        where = f"B={B} T={T} state={bool(a.W.any())} reset={a.reset is not None} phi={phi} gates={a.q.shape[3] if phi else 1}"
        for name, x, w in zip(_names(form), got, expected, strict=True):
            found.append((form, error(x, w) if bool(x.isfinite().all()) else float("nan"), f"{name} {where}"))
        if not all(torch.equal(x, z) for x, z in zip(got, again, strict=True)):
            found.append((form, float("nan"), f"not repeatable {where}"))
    return found


def check(K: int, V: int, mode: str) -> list[tuple[str, float, str]]:
    """The worst error of each form over all lengths, with where it was; 'repeat' counts runs that were not bit-identical."""
    dtype, precision, _ = MODES[mode]
    torch.set_float32_matmul_precision(precision)
    torch.manual_seed(K * 1000 + V)
    found = []
    forms = ["sum"] + (["chunk"] if K <= 128 else []) + (["sequential"] if mode != "tf32" else [])
    options = [(1, False, False), (3, True, True)]
    # every feature map in turn, with one gate and with three
    fused = itertools.cycle(itertools.product(("elu_sum", "softmax", "elu_sum_eps"), (3, 1)))
    for T in LENGTHS if K * V <= 4096 else LENGTHS[:-1]:
        for B, state, reset in options + ([(3, True, False), (1, False, True)] if T == 63 else []):
            a = arguments(B, T, 6, K, V, dtype, state, reset)
            found += compare(a, forms, None)
            if T <= 63 or K * V <= 256:
                phi, gates = next(fused)
                found += compare(raw(a, gates), forms, phi)
    worst = []
    for form in forms:
        mine = [f for f in found if f[0] == form]
        worst.append(max(mine, key=lambda f: float("inf") if f[1] != f[1] else f[1]))
    return worst


def check_long(K: int, form: str) -> list[tuple[str, float, str]]:
    torch.manual_seed(0)
    a = arguments(1, 16384, 1, K, K, torch.float32, state=True)
    want = reference(a, "sum" if form == "sum" else "delta")
    errors = [(error(x, w), name) for name, x, w in zip(_names(form), kernels(a, form), want, strict=True)]
    return [(form, *max(errors))]


SHAPES = {"16": (64, 450, 16, 16), "lm": (96, 256, 8, 16), "64": (32, 1024, 8, 64), "128": (8, 4096, 8, 128)}  # B T H d
TIMED = {"16": ["fp32", "tf32"], "lm": ["fp32", "tf32"], "64": ["bf16", "tf32", "fp32"], "128": ["bf16"]}
TARGETS = {"16": "0.8", "lm": "0.5", "64": "2.2 bf16, 3 tf32", "128": "2.30 (fla)"}


Variant = tuple[tuple[str, int], ...]  # fields of a Plan that differ from the chosen one


def variants(shape: str, mode: str) -> list[Variant]:
    grid: list[dict[str, int]]
    if SHAPES[shape][3] == 16:
        grid = [{}, {"ready": True}, {"ready": True, "parallel": True}, {"stages": 1}, {"stages": 3}, {"stages": 4}, {"warps": 2}]
        grid += [{"fused": True}, {"fused": True, "stages": 1}, {"fused": True, "stages": 3}, {"fused": True, "ready": True}]
    else:
        grid = [{}, {"stages": 1}, {"stages": 3}, {"fused": True}]
        grid += [{"C": C, "BV": BV, "warps": w, "parallel": True} for C, BV, w in itertools.product((64,), (16, 32, 64), (4, 8))]
        grid += [{"C": 32, "BV": BV, "warps": w, "parallel": True} for BV, w in ((32, 2), (32, 4), (64, 4))]
        grid += [{"C": 16, "BV": BV, "warps": w, "parallel": True} for BV, w in ((16, 1), (32, 1), (32, 2))]
        # large chunks have one copy of W each, chunks of 16 one in four
        grid = [g | {"every": 1 if g["C"] > 16 else 4} if "C" in g else g for g in grid]
        if mode == "fp32":
            grid = [g for g in grid if g.get("C", 16) == 16 or g.get("BV") != 64]
        if SHAPES[shape][3] == 128:
            # delta_large.py has launches of its own: what a plan changes is the form of smaller heads
            grid = [{}, {"fused": True}, {"large": False}, *(g | {"large": False} for g in grid if g)]
    return [tuple(g.items()) for g in grid]


def steps(shape: str, mode: str, variant: Variant | None) -> tuple[Callable[[], object], Callable[[], object]]:
    """Forward and backward of `delta` as functions without arguments; no variant is the sequential form."""
    from rfwp.ops.gpu import delta_chunk, delta_sequential

    B, T, H, d = SHAPES[shape]
    dtype, precision, _ = MODES[mode]
    torch.set_float32_matmul_precision(precision)
    q, k, v, beta, W, reset, dy, dW_T = arguments(B, T, H, d, d, dtype)
    if variant is None:
        kept = delta_sequential.forward(q, k, v, beta, W, reset, True)[2:]
        return (
            lambda: delta_sequential.forward(q, k, v, beta, W, reset, True),
            lambda: delta_sequential.backward(dy, dW_T, q, k, v, beta, reset, *kept),
        )
    changed = dict(variant)
    phi, sigmoid, fused = ("elu_sum", True, True) if changed.pop("fused", False) else ("identity", False, False)
    # the gradients of raw inputs go into one tensor, as they come from one
    *tiles, rates = torch.empty(B, T, H, 3 * d + 1, device="cuda", dtype=dtype).split([d, d, d, 1], -1)
    out = (tiles[0], tiles[1], tiles[2], rates.squeeze(-1)) if fused else None
    plan = delta_chunk.plan(d, d, dtype)._replace(**changed)  # type: ignore[arg-type]
    kept = delta_chunk.forward(q, k, v, beta, W, reset, True, phi, sigmoid, plan)[2:]
    return (
        lambda: delta_chunk.forward(q, k, v, beta, W, reset, True, phi, sigmoid, plan),
        lambda: delta_chunk.backward(dy, dW_T, q, k, v, beta, reset, *kept, phi, sigmoid, out, plan),
    )


def warm(shape: str, mode: str, variant: Variant | None) -> str:
    """Compile a variant into the cache on disk; what cannot be compiled is said."""
    try:
        forward, backward = steps(shape, mode, variant)
        forward()
        backward()
        torch.cuda.synchronize()
    except Exception as failure:
        return f"{type(failure).__name__}: {str(failure)[:80]}"
    return ""


def median(f: Callable[[], object], graph: bool) -> float:
    from triton.testing import do_bench, do_bench_cudagraph

    if graph:
        return float(do_bench_cudagraph(f, rep=30, return_mode="median"))
    return float(do_bench(f, warmup=10, rep=40, return_mode="median"))


def time_variant(shape: str, mode: str, variant: Variant | None) -> tuple[float, float, float]:
    """ms: forward and backward as replayed graphs, and both together as called from Python."""
    forward, backward = steps(shape, mode, variant)
    return median(forward, True), median(backward, True), median(lambda: (forward(), backward()), False)


def time_fla(shape: str, mode: str) -> list[tuple[str, float, float]]:
    """fla's kernels on the same shape, where fla can be imported: name, forward, forward + backward."""
    try:
        from fla.ops.delta_rule import chunk_delta_rule, fused_recurrent_delta_rule
    except ImportError:
        return []
    B, T, H, d = SHAPES[shape]
    a = arguments(B, T, H, d, d, MODES[mode][0])
    leaves = [x.detach().contiguous().requires_grad_() for x in (a.q, a.k, a.v, a.beta)]
    dy = a.dy.contiguous()
    rows = []
    for name, f in (("fla chunk", chunk_delta_rule), ("fla recurrent", fused_recurrent_delta_rule)):
        if mode != "bf16" and name == "fla chunk":
            continue

        def forward(f: Callable[..., tuple[Tensor, ...]] = f) -> Tensor:
            return f(*leaves)[0]

        def both(f: Callable[[], Tensor] = forward) -> object:
            return torch.autograd.grad(f(), leaves, dy)

        rows.append((name, median(forward, False), median(both, False)))
    return rows


def time_lengths() -> list[str]:
    """Forward + backward over T at 4 x T x 8 x 64 in bf16."""
    rows = []
    for T in (256, 1024, 4096, 16384, 65536):
        from rfwp.ops.gpu import delta

        q, k, v, beta, W, reset, dy, dW_T = arguments(4, T, 8, 64, 64, torch.bfloat16)
        kept = delta.forward(q, k, v, beta, W, reset, True)[2:]
        forward = median(lambda: delta.forward(q, k, v, beta, W, reset, True), False)  # noqa: B023
        backward = median(lambda: delta.backward(dy, dW_T, q, k, v, beta, W, reset, *kept), False)  # noqa: B023
        rows.append(
            f"T={T:6d}  forward {forward:8.3f} ms  backward {backward:8.3f} ms  {(forward + backward) / T * 1e6:7.1f} ns a step"
        )
    return rows


def _name(variant: Variant | None) -> str:
    return "sequential" if variant is None else " ".join(f"{k}={v}" for k, v in variant) or "chosen"


def kernel_times(shape: str, mode: str) -> list[str]:
    """Device time of each kernel of the chosen plan, in microseconds."""
    forward, backward = steps(shape, mode, ())
    forward(), backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(10):
            forward(), backward()
        torch.cuda.synchronize()
    averages = [(e.key.strip("_"), e.device_time_total / 10) for e in profile.key_averages() if e.device_time_total]
    return [f"  {name[:40]:40s} {us:9.1f} us" for name, us in averages]


def run_checks(pool: ProcessPoolExecutor, parts: list[str], modes: list[str], sizes: list[str]) -> list[str]:
    jobs = {}
    if "check" in parts:
        # the largest first, so that the pool ends together
        chosen = [(K, V) for K, V in SIZES if not sizes or f"{K}x{V}" in sizes]
        for (K, V), mode in itertools.product(sorted(chosen, key=lambda s: -s[0] * s[1]), modes):
            jobs[pool.submit(check, K, V, mode)] = (f"{K}->{V}", mode, MODES[mode][2])
    if "long" in parts:
        for d, form in itertools.product((16, 64), ("sum", "chunk", "sequential")):
            jobs[pool.submit(check_long, d, form)] = (f"T=16384 d={d}", "fp32", 1e-4)
    lines = []
    for job in as_completed(jobs):
        size, mode, limit = jobs[job]
        try:
            found = job.result()
        except Exception as failure:
            found = [("-", float("nan"), f"{type(failure).__name__}: {str(failure)[:200]}")]
        for form, worst, where in found:
            verdict = "ok" if worst <= limit else "FAIL"
            lines.append(f"{verdict:4s} {size:14s} {mode} {form:10s} worst {worst:.1e} (limit {limit:.0e}) {where}")
            print(lines[-1], flush=True)
    return lines


def run_timings(pool: ProcessPoolExecutor, shapes: list[str]) -> list[str]:
    wanted = [(s, m, v) for s in shapes for m in TIMED[s] for v in [None, *variants(s, m)]]
    failures = dict(zip(wanted, pool.map(warm, *zip(*wanted, strict=True)), strict=True))
    summary = []
    for shape, mode in dict.fromkeys((s, m) for s, m, _ in wanted):
        B, T, H, d = SHAPES[shape]
        head = f"delta ({B}, {T}, {H}, {d}) {mode}, target {TARGETS[shape]} ms"
        print(f"\n{head}\n  changed in the plan | forward, backward (graphs) | both (Python)", flush=True)
        rows = []
        for variant in [v for s, m, v in wanted if (s, m) == (shape, mode)]:
            if failures[shape, mode, variant]:
                print(f"  {_name(variant)}  {failures[shape, mode, variant]}", flush=True)
                continue
            rows.append((_name(variant), *time_variant(shape, mode, variant)))
            print("  {!s:72s} {:8.3f} {:8.3f} {:8.3f}".format(*rows[-1]), flush=True)
        summary.append(head)
        for name, column in (("forward", 1), ("backward", 2), ("both", 3)):
            summary.append(
                f"  best {name:8s} " + "   ".join(f"{r[column]:.3f} {r[0]}" for r in sorted(rows, key=lambda r: r[column])[:3])
            )
        summary += ["  sequential       {:.3f} + {:.3f}, both {:.3f}".format(*r[1:]) for r in rows if r[0] == "sequential"]
        summary += kernel_times(shape, mode)
        summary += [f"  {name}  forward {f:.3f}, both {b:.3f}" for name, f, b in time_fla(shape, mode)]
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--parts", nargs="+", default=["check", "long", "time", "lengths"], choices=["check", "long", "time", "lengths"]
    )
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES), help="which shapes to time")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=list(MODES), help="which precisions to check")
    parser.add_argument("--sizes", nargs="+", default=[], help="which keys x values to check, like 16x64; all if left away")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile and check")
    options = parser.parse_args()
    began = time.perf_counter()
    lines, summary = [], []
    with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        lines = run_checks(pool, options.parts, options.modes, options.sizes)
        print(f"checked after {time.perf_counter() - began:.0f} s", flush=True)
        if "time" in options.parts:
            summary = run_timings(pool, options.shapes)
    if "lengths" in options.parts:
        summary += ["delta (4, T, 8, 64) bf16, the chosen form", *(f"  {row}" for row in time_lengths())]
    bad = [line for line in lines if not line.startswith("ok")]
    print("\n".join(["", *summary, *bad]))
    print(f"{len(lines) - len(bad)} checks ok, {len(bad)} failed; {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
