import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from rfwp.ops import cpu
from tests.ops.cases import CASES, example
from tests.ops.cpu.kernels import arriving_gradients, run

DELTA = CASES[1]


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def results(seed: int = 0) -> list[torch.Tensor]:
    given = example(DELTA, 33, seed=seed, dtype=torch.float32, grad=False, B=20, H=3, K=8, V=8)
    return run(DELTA, given, given.reset, arriving_gradients(DELTA, given))


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_one_and_two_threads_give_the_same_bits():
    before = torch.get_num_threads()
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(results())
    torch.set_num_threads(before)
    assert same(found[0], found[1])
    assert same(found[0], found[2])


@pytest.mark.usefixtures("two_threads")
def test_callers_in_several_threads_do_not_disturb_each_other():
    expected = [results(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as callers:
        found = list(callers.map(results, [0, 1, 2, 3] * 4))
    assert all(same(a, b) for a, b in zip(found, expected * 4, strict=True))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.usefixtures("two_threads")
def test_a_forked_process_starts_its_own_threads():
    given = example(DELTA, 7, dtype=torch.float32, grad=False, B=20, H=3, K=8, V=8)

    def forward(queue=None):
        y, *_ = cpu.OPS["delta"].forward(*given.inputs, *given.state, given.reset, False)
        if queue is not None:
            queue.put(y.numpy().tobytes())
        return y

    expected = forward()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=forward, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=60) == expected.numpy().tobytes()
    finally:
        child.join(timeout=60)
    assert child.exitcode == 0


def test_a_folder_that_cannot_be_written_only_costs_a_compilation(tmp_path):
    """A home that cannot be written to: the kernel runs, and a warning says what was not kept."""
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    code = """
import logging, torch
logging.basicConfig(level="WARNING")
from rfwp.ops import cpu
q = torch.randn(1, 2, 1, 3)
y, *_ = cpu.OPS["sum"].forward(q, q, q, torch.zeros(1, 1, 3, 3), None, False)
torch.testing.assert_close(y[0, 0, 0], q[0, 0, 0] * q[0, 0, 0].square().sum())
"""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(blocked), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "compiled kernels cannot be kept" in done.stderr


def test_looking_at_the_backend_does_not_import_numba():
    code = """
import sys, torch
from rfwp.ops import cpu
assert cpu.unsupported(torch.zeros(1)) is None
assert "numba" not in sys.modules
cpu.OPS
assert "numba" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_numba_the_backend_says_so(monkeypatch):
    monkeypatch.setattr(cpu, "INSTALLED", False)
    assert cpu.unsupported(torch.zeros(1)) == 'numba is not installed; pip install "rfwp[cpu]"'


def test_tensors_elsewhere_are_refused():
    assert cpu.unsupported(torch.zeros(1, device="meta")) == "the inputs are on meta"
