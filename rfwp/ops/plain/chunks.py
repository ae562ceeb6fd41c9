"""Cutting sequences into chunks, with resets: what the chunk-parallel forms of `sum` and `delta` share.

Inside a chunk the steps between two resets form a segment. Steps see each other only within a segment, only the first
segment sees the state at the chunk's start, and only the last one reaches the state at its end.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 32
"""Steps a chunk. Work inside a chunk grows with its square, the number of sequential steps falls with it."""


def count(T: int) -> int:
    return -(-T // CHUNK)


def length(T: int) -> int:
    """C, the steps of a chunk; a sequence shorter than one chunk is not filled up."""
    return min(CHUNK, T)


def split(x: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, T, H, D) -> (N, B, H, C, D), the last chunk filled up with zeros."""
    B, T, H, D = x.shape
    N, C = count(T), length(T)
    x = F.pad(x.to(dtype), (0, 0, 0, 0, 0, N * C - T))
    return x.reshape(B, N, C, H, D).permute(1, 0, 3, 2, 4).contiguous()


def join(x: Tensor, T: int, dtype: torch.dtype) -> Tensor:
    """(N, B, H, C, D) -> (B, T, H, D)"""
    N, B, H, C, D = x.shape
    return x.permute(1, 0, 3, 2, 4).reshape(B, N * C, H, D)[:, :T].to(dtype).contiguous()


class Masks(NamedTuple):
    """Who sees whom, as bools that broadcast over heads and features."""

    causal: Tensor  # (N B 1 C C), j <= i in the same segment
    start: Tensor  # (N B 1 C 1), step sees the state at the chunk's start
    end: Tensor  # (N B 1 C 1), step reaches the state at the chunk's end
    through: Tensor  # (N B 1 1 1), the state passes through the whole chunk


def masks(reset: Tensor | None, B: int, T: int, device: torch.device) -> Masks:
    N, C = count(T), length(T)
    lower = torch.ones(C, C, dtype=torch.bool, device=device).tril()
    if reset is None:
        yes = torch.ones(1, 1, 1, 1, 1, dtype=torch.bool, device=device)
        return Masks(lower.view(1, 1, 1, C, C), yes, yes, yes)
    padded = F.pad(reset.to(torch.int64), (0, N * C - T)).view(B, N, 1, C).transpose(0, 1)
    segment = padded.cumsum(-1).unsqueeze(-1)  # N B 1 C 1
    last = segment[..., -1:, :]
    return Masks((segment == segment.mT) & lower, segment == 0, segment == last, last == 0)


def only(mask: Tensor, x: Tensor) -> Tensor:
    """Zero where the mask is False, whatever is there: 0 · NaN would bring a forgotten state back."""
    return torch.where(mask, x, 0)


def at(mask: Tensor, n: int) -> Tensor:
    """The mask of chunk n; without resets one serves all."""
    return mask[n if len(mask) > 1 else 0]
