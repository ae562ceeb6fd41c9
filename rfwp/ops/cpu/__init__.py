"""The ops as compiled CPU kernels: a real training path for machines without a GPU.

The compiler is numba: it comes as a wheel with LLVM inside, so that the user's machine needs none, compiles at the first
call and keeps the result. It is optional, and nothing here imports it before `OPS` is asked for.
"""

from importlib.util import find_spec
from types import ModuleType

from torch import Tensor

OPS: dict[str, ModuleType]
"""One module an op; the first look at it imports numba."""


INSTALLED = find_spec("numba") is not None


def unsupported(like: Tensor) -> str | None:
    """Why this backend cannot run such inputs here, or None."""
    if not INSTALLED:
        return 'numba is not installed; pip install "rfwp[cpu]"'
    if like.device.type != "cpu":
        return f"the inputs are on {like.device.type}"
    return None


def __getattr__(name: str) -> dict[str, ModuleType]:
    if name != "OPS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rfwp.ops.cpu import delta, delta_lstm, delta_rnn, recurrent_delta, sum

    globals()["OPS"] = ops = {
        "sum": sum,
        "delta": delta,
        "delta_rnn": delta_rnn,
        "delta_lstm": delta_lstm,
        "recurrent_delta": recurrent_delta,
    }
    return ops
