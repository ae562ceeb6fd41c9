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

LAYERS = ("linear_transformer", "delta_net", "delta_rnn", "delta_lstm", "rdn")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[8, 16, 24, 64, 128], help="head sizes")
    options = parser.parse_args()
    device = torch.device("cuda")
    torch.set_float32_matmul_precision("high")
    for d in options.sizes:
        for dtype in (torch.float32, torch.bfloat16):
            for op in OPS:
                for T in (1, 37):
                    inputs, state = example(op, OpShape(2, T, 2, d), dtype, device)
                    reset = torch.rand(2, T, device=device) < 0.2
                    outputs = run_op(op, "gpu", inputs, tuple(s.requires_grad_() for s in state), reset)
                    torch.autograd.grad([x.float().sum() for x in outputs], [*inputs, *state])
            for name in LAYERS:
                layer = FWP(name, 2 * d, 2, backend="gpu", device=device, dtype=dtype)
                y, _ = layer(torch.randn(2, 37, 2 * d, device=device, dtype=dtype))
                y.float().sum().backward()
            torch.cuda.synchronize()
            print(f"d = {d}, {dtype}: {len(OPS)} ops and {len(LAYERS)} layers ran", flush=True)


if __name__ == "__main__":
    main()
