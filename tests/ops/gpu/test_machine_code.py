"""The kernels as machine code, which needs a compiler but no GPU."""

import os
import subprocess
import sys

import pytest

KERNELS = {
    "sum 16 float32": ["delta_small forward_kernel", "delta_small backward_kernel"],
    "delta 16 float32": ["delta_small forward_kernel", "delta_small backward_kernel"],
    "delta 64 bfloat16": [
        "delta_chunk _prepare_kernel",
        "delta_chunk _forward_kernel",
        "delta_parallel _walk_kernel",
        "delta_parallel _chunks_kernel",
    ],
    "delta_rnn 16 float32": ["delta_rnn _run", "delta_rnn _back"],
    "delta_lstm 16 float32": ["delta_lstm _run", "delta_lstm _back"],
    "recurrent_delta 16 float32": ["recurrent_delta _run", "recurrent_delta _run", "recurrent_delta _back"],
}


@pytest.mark.parametrize("what", KERNELS)
def test_kernels_compile_and_keep_their_matrices_in_registers(what, tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.gpu.machine_code", *what.split()],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{kernel} spilled bytes: 0" for kernel in KERNELS[what]]
