"""Check the CPU kernels against the float64 references, then time them beside nn.LSTM.

python tools/check_cpu.py [--threads 2] [--repeats 5] [--no-time]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rfwp import ops
from rfwp.ops import cpu

VERSIONS = {"sum": [""], "delta": [""], "recurrent_delta": [""], "delta_rnn": ["A", "B"], "delta_lstm": ["A", "B", "C", "D"]}
LIMIT = 1e-5
Tensors = tuple[Tensor, ...]


def example(op: str, B: int, T: int, H: int, K: int, V: int, dtype: torch.dtype) -> tuple[Tensors, Tensors]:
    """Inputs as slices of one projection, the way a layer makes them, and a state."""
    shapes: dict[str, list[tuple[int, ...]]] = {
        "sum": [(B, H, V, K)],
        "delta": [(B, H, V, K)],
        "delta_rnn": [(B, H, V, V), (B, H, V)],
        "delta_lstm": [(B, H, 3, V, V), (B, H, V), (B, H, V)],
        "recurrent_delta": [(B, H, V, K), (B, H, V)],
    }
    state = tuple(torch.randn(shape, dtype=dtype) / shape[-1] ** 0.5 for shape in shapes[op])
    if op == "delta_lstm":
        z, k, v, beta = torch.randn(B, T, H, 3, 3 * V + 1, dtype=dtype).split((V, V, V, 1), dim=-1)
        return (z, k.softmax(-1), v, beta.squeeze(-1).sigmoid()), state
    first = V if op == "delta_rnn" else K
    q, k, v, beta = torch.randn(B, T, H, 2 * first + V + 1, dtype=dtype).split((first, first, V, 1), dim=-1)
    beta = beta.squeeze(-1)
    if op == "recurrent_delta":
        maps = [torch.randn(shape, dtype=dtype) / V**0.5 for shape in ((H, K, V), (H, K, V), (H, V, V), (H, V))]
        return (q, k, v, beta, *maps), state
    if op == "delta_rnn":
        return (q, k.softmax(-1), v, beta.sigmoid()), state
    if op == "sum":
        return (q.softmax(-1), k.softmax(-1), v), state
    return (q.softmax(-1), k.softmax(-1), v, beta.sigmoid()), state


def run(op: str, version: str, inputs: Tensors, state: Tensors, reset: Tensor | None, arriving: Tensors | None) -> list[Tensor]:
    """Outputs, final states and all gradients of the kernel; no gradients where none arrive."""
    module, options = cpu.OPS[op], [version] if version else []
    n = 1 + len(state)
    found = module.forward(*inputs, *state, reset, arriving is not None, *options)
    if arriving is None:
        return list(found[:n])
    kept = found[n:] if op in ("sum", "delta") else (found[0], *found[n:])
    return [*found[:n], *module.backward(*arriving, *inputs, *state, reset, *kept, *options)]


def truth(op: str, version: str, inputs: Tensors, state: Tensors, reset: Tensor | None, arriving: Tensors) -> list[Tensor]:
    """The same by autograd through the reference in float64."""
    leaves = [x.double().requires_grad_() for x in (*inputs, *state)]
    given: Any = tuple(leaves[len(inputs) :])
    options = {"version": version} if version else {}
    single = len(state) == 1
    call = getattr(ops, op)
    y, final = call(*leaves[: len(inputs)], state=given[0] if single else given, reset=reset, backend="reference", **options)
    outputs = [y, final] if single else [y, *final]
    gradients = torch.autograd.grad(outputs, leaves, [g.double() for g in arriving])
    return [x.detach() for x in (*outputs, *gradients)]


def check(op: str, version: str) -> float:
    """The worst error over odd sizes, relative to the largest number of each tensor."""
    worst = 0.0
    for B, T, H, K, V in ((1, 1, 1, 16, 16), (3, 7, 2, 3, 5), (2, 33, 3, 8, 16), (9, 70, 2, 16, 16), (2, 40, 1, 32, 24)):
        for resets in (False, True):
            inputs, state = example(op, B, T, H, K, V, torch.float32)
            reset = (torch.rand(B, T) < 0.1) if resets else None
            shapes = [x.shape for x in run(op, version, inputs, state, reset, None)]
            arriving = tuple(torch.randn(shape) for shape in shapes)
            ours = run(op, version, inputs, state, reset, arriving)
            again = run(op, version, inputs, state, reset, arriving)
            assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True)), "two runs differ"
            for a, b in zip(ours, truth(op, version, inputs, state, reset, arriving), strict=True):
                worst = max(worst, ((a - b).abs().max() / b.abs().max().clamp(min=1e-3)).item())
    return worst


def lstm_step(B: int, T: int) -> Callable[[], None]:
    lstm, x = nn.LSTM(128, 256, batch_first=True), torch.randn(B, T, 128, requires_grad=True)

    def step() -> None:
        y, _ = lstm(x)
        y.backward(torch.ones_like(y))

    return step


def op_step(op: str, B: int, T: int, H: int, d: int) -> Callable[[], None]:
    inputs, state = example(op, B, T, H, d, d, torch.float32)
    version = VERSIONS[op][-1]
    arriving = tuple(torch.randn(x.shape) for x in run(op, version, inputs, state, None, None))

    def step() -> None:
        run(op, version, inputs, state, None, arriving)

    return step


def measure(repeats: int, B: int = 64, T: int = 450, H: int = 16, d: int = 16) -> None:
    """Interleaved, so that what else the machine does falls on all of them."""
    steps = {"nn.LSTM(128, 256)": lstm_step(B, T)} | {op: op_step(op, B, T, H, d) for op in VERSIONS}
    wall: dict[str, list[float]] = {name: [] for name in steps}
    busy: dict[str, list[float]] = {name: [] for name in steps}
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            start, used = time.perf_counter(), time.process_time()
            step()
            if repeat > 0:  # the first one warms up
                wall[name].append(time.perf_counter() - start)
                busy[name].append(time.process_time() - used)
    lstm, lstm_busy = (statistics.median(table["nn.LSTM(128, 256)"]) for table in (wall, busy))
    print(f"\nforward + backward, B={B} T={T} H={H} d={d}, float32, {torch.get_num_threads()} threads, median of {repeats}")
    print(f"{'':20}{'wall s':>9}{'/ LSTM':>9}{'CPU s':>9}{'/ LSTM':>9}")
    for name in steps:
        w, c = statistics.median(wall[name]), statistics.median(busy[name])
        print(f"{name:20}{w:9.3f}{w / lstm:9.2f}{c:9.3f}{c / lstm_busy:9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-time", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    failed = False
    print(f"{'worst relative error against the float64 reference':52}{'limit':>9}{'first call s':>14}")
    for op, versions in VERSIONS.items():
        for version in versions:
            start = time.perf_counter()
            inputs, state = example(op, 1, 1, 1, 4, 4, torch.float32)
            shapes = [x.shape for x in run(op, version, inputs, state, None, None)]
            run(op, version, inputs, state, None, tuple(torch.randn(shape) for shape in shapes))
            first = time.perf_counter() - start
            error = check(op, version)
            failed |= not error <= LIMIT
            print(f"{op + ' ' + version:30}{error:22.1e}{LIMIT:9.0e}{first:14.1f}{'' if error <= LIMIT else '  FAILED'}")
    if failed:
        raise SystemExit("a kernel is wrong; nothing is timed")
    if not arguments.no_time:
        measure(arguments.repeats)


if __name__ == "__main__":
    main()
