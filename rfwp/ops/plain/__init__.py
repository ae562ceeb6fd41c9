"""The ops in plain PyTorch with hand-written gradients: what runs wherever no kernel does."""

from types import ModuleType

from rfwp.ops.plain import delta, sum

OPS: dict[str, ModuleType] = {"sum": sum, "delta": delta}
