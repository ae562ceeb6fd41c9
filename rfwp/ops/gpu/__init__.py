"""The ops as Triton kernels. Nothing here imports triton before `OPS` is asked for."""

import os
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor

OPS: dict[str, ModuleType]
"""One module an op; the first look at it imports triton."""

LARGEST = {"sum": 512, "delta": 512, "delta_rnn": 128, "delta_lstm": 128, "recurrent_delta": 128, "attention": 128}
"""The largest key and value size of each op: its fast matrices stay in registers."""


INSTALLED = find_spec("triton") is not None
_capabilities: dict[torch.device, tuple[int, int]] = {}


def unsupported(op: str, like: Tensor, K: int, V: int) -> str | None:
    """Why this backend cannot run such inputs here, or None."""
    if not INSTALLED:
        return "triton is not installed; it comes with PyTorch's CUDA builds, or: pip install triton"
    device = like.device
    if device.type != "cuda":
        if os.environ.get("TRITON_INTERPRET") != "1":
            return f"it runs on CUDA devices and the inputs are on {device.type}"
    elif _capability(device) < (8, 0):
        return f"{torch.cuda.get_device_name(device)} is too old: compute capability 8.0 (A100, RTX 30) or newer is needed"
    if like.dtype == torch.float64:
        return "it has no float64; float32, bfloat16 and float16 are supported"
    if max(K, V) > LARGEST[op]:
        return f"head sizes up to {LARGEST[op]} are supported, saw K={K}, V={V}"
    return None


def _capability(device: torch.device) -> tuple[int, int]:
    """Asked once a device: PyTorch takes as long for the answer as for a small op."""
    if device not in _capabilities:
        _capabilities[device] = torch.cuda.get_device_capability(device)
    return _capabilities[device]


# what torch.compiler.assume_constant_result does, without importing the compiler (a second, and triton with it)
_capability._dynamo_marked_constant = True  # type: ignore[attr-defined]


def __getattr__(name: str) -> dict[str, ModuleType]:
    if name != "OPS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rfwp.ops.gpu import attention, delta, delta_lstm, delta_rnn, recurrent_delta, sum

    globals()["OPS"] = ops = {
        "sum": sum,
        "delta": delta,
        "delta_rnn": delta_rnn,
        "delta_lstm": delta_lstm,
        "recurrent_delta": recurrent_delta,
        "attention": attention,
    }
    return ops
