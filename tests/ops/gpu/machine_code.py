"""Run as a program: compile for an H100 every kernel that the ops launch on small inputs, without a GPU; print their names.

What the interpreter cannot see shows here: types and layouts that do not compile, and registers that do not suffice.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

from rfwp.bench.contenders import OPS, example
from rfwp.bench.shapes import OpShape
from rfwp.ops import gpu

TARGET = GPUTarget("cuda", 90, 32)
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def compile_instead(self: JITFunction, *args: object, grid: object, warmup: bool, **options: object) -> None:
    """What a launch does, up to the launch."""
    backend = make_backend(TARGET)
    binder = create_function_from_signature(self.signature, self.params, backend)
    settings = options | {"debug": False, "instrumentation_mode": ""}
    bound, specialised, given = binder(*args, **settings)
    parsed, signature, constants, attributes = self._pack_args(backend, settings, bound, specialised, given)
    source = ASTSource(self, signature, constants, attributes)
    kernel = triton.compile(source, target=TARGET, options=parsed.__dict__)
    module, bytes_ = self.fn.__module__.rpartition(".")[2], spilled(kernel.asm["cubin"])
    sys.stdout.write(f"{module} {self.fn.__name__} spilled bytes: {bytes_}\n")


def spilled(code: bytes) -> int:
    """Bytes of a thread's registers that live in memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        usage = subprocess.run([CUOBJDUMP, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True)
    return int(re.search(r"STACK:(\d+)", usage.stdout).group(1))


def main(op: str, d: int, dtype: torch.dtype) -> None:
    JITFunction.run = compile_instead
    torch.set_float32_matmul_precision("high")
    module, options = gpu.OPS[op], {"delta_rnn": ("B",), "delta_lstm": ("D",)}.get(op, ())
    inputs, state = example(op, OpShape(2, 40, 2, d), dtype, torch.device("cpu"))
    inputs = tuple(x.detach() for x in inputs)
    y, *rest = module.forward(*inputs, *state, None, True, *options)
    final, kept = rest[: len(state)], rest[len(state) :]
    known = (y,) if op in ("delta_rnn", "delta_lstm", "recurrent_delta") else ()
    module.backward(torch.zeros_like(y), *final, *inputs, *state, None, *known, *kept, *options)


if __name__ == "__main__":
    assert sys.argv[1] in OPS
    main(sys.argv[1], int(sys.argv[2]), getattr(torch, sys.argv[3]))
