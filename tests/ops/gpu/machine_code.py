"""Run as a program: compile for an H100 every kernel that the ops launch on small inputs, without a GPU; print their names.

What the interpreter cannot see shows here: types and layouts that do not compile, registers that do not suffice, and some
faults of the compiler.
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
from tests.ops.gpu.uniform_registers import unset

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
    module, code = self.fn.__module__.rpartition(".")[2], kernel.asm["cubin"]
    sys.stdout.write(f"{module} {self.fn.__name__} spilled bytes: {spilled(code)}\n")
    for instruction in unset(dumped(code, "-sass")):
        sys.stdout.write(f"{module} {self.fn.__name__} reads what was not written: {instruction}\n")


def spilled(code: bytes) -> int:
    """Bytes of a thread's registers that live in memory."""
    return int(re.search(r"STACK:(\d+)", dumped(code, "--dump-resource-usage")).group(1))


def dumped(code: bytes, what: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        return subprocess.run([CUOBJDUMP, what, file.name], capture_output=True, text=True, check=True).stdout


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


def attention(d: int, dtype: torch.dtype) -> None:
    """Its three kernels, with dropout."""
    JITFunction.run = compile_instead
    torch.set_float32_matmul_precision("high")
    u = torch.zeros(2, 40, 3, 16, d, dtype=dtype)
    seed, (q, k, v) = torch.zeros(1, dtype=torch.int64), u.unbind(2)
    y, lse = gpu.OPS["attention"].forward(q, k, v, seed, True, 0.125)
    gpu.OPS["attention"].backward(torch.zeros_like(y), q, k, v, seed, y, lse, 0.125, torch.zeros_like(u).unbind(2))


if __name__ == "__main__":
    op, d, dtype = sys.argv[1], int(sys.argv[2]), getattr(torch, sys.argv[3])
    if op == "attention":
        attention(d, dtype)
    else:
        assert op in OPS
        main(op, d, dtype)
