"""The maths of `rfwp.fwp` over whole sequences: five ops, each with its reference beside it."""

from rfwp.ops.delta import delta

__all__ = ["delta"]
