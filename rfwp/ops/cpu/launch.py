"""Compiling kernels once and running them on torch's number of threads.

A kernel is a function (first, last, *arguments) that handles the groups of pairs from first up to last. It holds no lock of
Python, so the threads are Python's own: no second OpenMP beside torch's, nothing that only one caller may enter at a time,
and a process that was forked simply starts its own.
"""

import contextlib
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numba
import torch
from numba import njit, types
from torch import Tensor

from rfwp.ops.cpu.lanes import LANES

CHUNKS = 4
"""Pieces of work a thread: more of them even out threads that the machine slows down."""

log = logging.getLogger("rfwp")
_compiling = threading.Lock()
_kernels: dict[tuple[Any, ...], Any] = {}


def wide(state: Tensor, *tensors: Tensor) -> list[Tensor]:
    """Inputs in the dtype of the state: half precision is computed in float32."""
    return [x.to(state.dtype) for x in tensors]


def mask(reset: Tensor | None, x: Tensor) -> Tensor:
    """`reset` (B, T) as it was given, or all False: one compiled kernel serves both."""
    return torch.zeros(x.shape[:2], dtype=torch.bool) if reset is None else reset.bool()


def groups_of(x: Tensor) -> int:
    """How many groups of LANES pairs the inputs (B, T, H, n) make."""
    return -(-x.shape[0] * x.shape[2] // LANES)


def launch(kernel: Callable[..., None], groups: int, *arguments: Tensor | int) -> None:
    """Run `kernel` over all groups; tensors go in as arrays that share their memory."""
    arrays = [a.numpy() if isinstance(a, Tensor) else a for a in arguments]
    run = _compiled(kernel, arrays)
    threads = min(torch.get_num_threads(), groups)
    if threads == 1:
        run(0, groups, *arrays)
        return
    pieces = min(groups, CHUNKS * threads)
    edges = [groups * i // pieces for i in range(pieces + 1)]
    for done in _pool(threads).map(lambda first, last: run(first, last, *arrays), edges[:-1], edges[1:]):
        assert done is None


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="rfwp-cpu")


# a forked process inherits the pool but not its threads
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _compiled(kernel: Callable[..., None], arrays: list[Any]) -> Any:
    """One compilation a dtype: every array is taken with any strides, whatever strides come first."""
    key = (kernel, *((a.dtype.char, a.ndim) if hasattr(a, "dtype") else int for a in arrays))
    if key not in _kernels:
        kinds = [types.Array(numba.from_dtype(a.dtype), a.ndim, "A") if hasattr(a, "dtype") else types.intp for a in arrays]
        signature = types.void(types.intp, types.intp, *kinds)
        with _compiling, _cache_folder() as folder:
            if key not in _kernels:
                _kernels[key] = njit(signature, nogil=True, error_model="numpy", cache=folder is not None)(kernel)
    return _kernels[key]


@contextlib.contextmanager
def _cache_folder() -> Iterator[Path | None]:
    """A folder for compiled kernels that is named after their source, set for numba while it compiles ours.

    numba itself would look at the kernel's own file only and miss a change in the files that it uses.
    """
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    try:
        base = numba.config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(base) / "rfwp" / digest.hexdigest()[:16]
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        log.warning("compiled kernels cannot be kept (%s); set NUMBA_CACHE_DIR to a folder that can be written", error)
        yield None
        return
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(folder)
    try:
        yield folder
    finally:
        numba.config.CACHE_DIR = before
