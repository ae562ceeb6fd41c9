"""Launches that do not ask Triton again which compiled variant of a kernel they need.

`kernel[grid](...)` looks at every argument of every call for it, 15 to 20 microseconds, longer than some kernels run.
Here it is found by all that Triton looks at, which are numbers as they are, and the dtype and alignment of every tensor.
"""

from typing import Any

from torch import Tensor

_variants: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}
MOST = 4096
"""Variants that are remembered: every length of a sequence has its own."""


def launch(kernel: Any, programs: int, *arguments: Any, **meta: Any) -> None:
    """kernel[(programs,)](*arguments, **meta), the first argument being a tensor on the current device."""
    seen = [(x.dtype, x.data_ptr() % 16) if isinstance(x, Tensor) else x for x in arguments]
    key = (kernel.fn, arguments[0].get_device(), *seen, *meta.values())
    known = _variants.get(key)
    if known is not None:
        variant, constants = known
        variant[(programs, 1, 1)](*arguments, *constants)
        return
    variant = kernel[(programs,)](*arguments, **meta)
    # the interpreter has none
    if variant is not None:
        if len(_variants) >= MOST:
            _variants.clear()
        _variants[key] = variant, tuple(meta[name] for name in kernel.arg_names[len(arguments) :])
