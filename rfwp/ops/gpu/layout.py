"""Sizes and strides for the kernels of `sum` and `delta`, which count heads in two levels: H/G groups of G gates.

Inputs are (B, T, H/G, G, d) or, without gates, (B, T, H, d). The strides of both are written down as five here: a view with one
dimension more would cost a microsecond a tensor, in every call.
"""

from typing import NamedTuple

import torch
from torch import Tensor

Strides = tuple[tuple[int, ...], ...]


class Sizes(NamedTuple):
    B: int
    T: int
    H: int
    """All heads, those of all gates."""
    G: int
    """Gates, or 1."""
    K: int
    V: int


def sizes_of(q: Tensor, v: Tensor) -> Sizes:
    B, T, H, *gates, K = q.shape
    G = gates[0] if gates else 1
    return Sizes(B, T, H * G, G, K, v.shape[-1])


def vector_strides(x: Tensor) -> tuple[int, ...]:
    """Of (B, T, H/G, G, d) as they are, of (B, T, H, d) as if it had one gate."""
    s = x.stride()
    return s if len(s) == 5 else (s[0], s[1], s[2], s[3] * x.shape[3], s[3])


def rate_strides(x: Tensor) -> tuple[int, ...]:
    """The same for a rate, which has no features."""
    s = x.stride()
    return s if len(s) == 4 else (*s, 1)


def output_strides(x: Tensor, G: int) -> tuple[int, ...]:
    """The same for y and its gradient, (B, T, H, V) also with gates."""
    if G == 1:
        return vector_strides(x)
    s = x.stride()
    return s[0], s[1], s[2] * G, s[2], s[3]


def room(x: Tensor) -> Tensor:
    """A contiguous tensor of the same shape, with anything in it."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)
