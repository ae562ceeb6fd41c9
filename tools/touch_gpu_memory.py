"""Run every GPU kernel once on small odd shapes, each tensor in an allocation of its own; for compute-sanitizer.

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTHONPATH=.
    compute-sanitizer --tool memcheck --error-exitcode 1 python tools/touch_gpu_memory.py

Run it once without compute-sanitizer first: kernels are then compiled.
"""

import argparse

import torch

from rfwp import FWP
from rfwp.bench.contenders import OPS, example, run_op
from rfwp.bench.shapes import OpShape

DEVICE = torch.device("cuda")
LAYERS = ("linear_transformer", "delta_net", "delta_rnn", "delta_lstm", "rdn")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[8, 16, 24, 64, 128], help="head sizes")
    parser.add_argument("--precision", nargs="+", default=["high"], choices=["high", "highest"], help="of float32 products")
    options = parser.parse_args()
    for precision in options.precision:
        torch.set_float32_matmul_precision(precision)
        for d in options.sizes:
            for dtype in (torch.float32, torch.bfloat16):
                print(f"d = {d}, {dtype}, {precision}:", end="", flush=True)
                for op in OPS:
                    touch_op(op, d, dtype)
                for name in LAYERS:
                    touch_layer(name, d, dtype)
                print(" ran", flush=True)


def touch_op(op: str, d: int, dtype: torch.dtype) -> None:
    """Forward and backward, for one step and for a few, with state and resets."""
    print(f" {op}", end="", flush=True)
    for T in (1, 37):
        inputs, state = example(op, OpShape(2, T, 2, d), dtype, DEVICE)
        reset = torch.rand(2, T, device=DEVICE) < 0.2
        outputs = run_op(op, "gpu", inputs, tuple(s.requires_grad_() for s in state), reset)
        # an error shows only here, and must not be taken for that of the next op
        torch.cuda.synchronize()
        torch.autograd.grad([x.float().sum() for x in outputs], [*inputs, *state])
        torch.cuda.synchronize()


def touch_layer(name: str, d: int, dtype: torch.dtype) -> None:
    """The kernels that read a slow net's output as it is."""
    print(f" {name}", end="", flush=True)
    layer = FWP(name, 2 * d, 2, backend="gpu", device=DEVICE, dtype=dtype)
    y, _ = layer(torch.randn(2, 37, 2 * d, device=DEVICE, dtype=dtype))
    y.float().sum().backward()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
