"""The kernels as machine code, which needs a compiler but no GPU."""

import os
import subprocess
import sys

import pytest

from tests.ops.gpu.uniform_registers import unset

ATTENTION = ["attention _forward_kernel", "attention _query_kernel", "attention _key_kernel"]
LARGE = ["delta_large_forward output_kernel", "delta_large_backward back_kernel", "delta_large_backward chunks_kernel"]
KERNELS = {
    "sum 16 float32": ["delta_small forward_kernel", "delta_small backward_kernel"],
    "delta 16 float32": ["delta_small forward_kernel", "delta_small backward_kernel"],
    "delta 64 bfloat16": [
        "delta_chunk _prepare_kernel",
        "delta_chunk _forward_kernel",
        "delta_parallel _walk_kernel",
        "delta_parallel _chunks_kernel",
    ],
    "sum 128 bfloat16": ["delta_large_forward map_kernel", "delta_large_forward walk_kernel", *LARGE],
    "delta 128 bfloat16": ["delta_large_forward prepare_kernel", "delta_large_forward walk_kernel", *LARGE],
    "delta 128 float32": [*["delta_large_forward prepare_kernel"] * 2, "delta_large_forward walk_kernel", *LARGE],
    "delta_rnn 16 float32": ["delta_rnn _run", "delta_rnn _back"],
    "delta_lstm 16 float32": ["delta_lstm _run", "delta_lstm _back"],
    "attention 16 float32": ATTENTION,
    "attention 32 float32": ATTENTION,
    "attention 64 float32": ATTENTION,
    "attention 16 bfloat16": ATTENTION,
    "attention 32 bfloat16": ATTENTION,
    "attention 64 bfloat16": ATTENTION,
    "recurrent_delta 16 float32": ["recurrent_delta _run", "recurrent_delta _run", "recurrent_delta _back"],
}
SPILLED = {("delta 128 float32", "delta_large_backward chunks_kernel"): 144}
"""Where that was measured to be faster."""


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
    assert done.stdout.splitlines() == [f"{kernel} spilled bytes: {SPILLED.get((what, kernel), 0)}" for kernel in KERNELS[what]]


LOOP = """
        /*0000*/                   {first} ;
        /*0010*/                   @P0 BRA 0x30 ;
        /*0020*/                   UMOV UR5, 0x1 ;
        /*0030*/                   UIADD3 UR4, UR4, 0x40, URZ ;
        /*0040*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0050*/                   @P1 BRA 0x30 ;
        /*0060*/                   EXIT ;
"""


@pytest.mark.parametrize(
    ("first", "faults"),
    [("ULDC.128 UR4, c[0x0][0x210]", 0), ("ULDC.64 UR6, c[0x0][0x210]", 2), ("UMOV UR4, 0x2", 1), ("S2UR UR6, SR_CTAID.X", 2)],
)
def test_registers_that_a_path_did_not_write_are_found(first, faults):
    assert len(unset(LOOP.format(first=first))) == faults
