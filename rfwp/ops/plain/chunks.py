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


def split(x: Tensor, dtype: torch.dtype) -> Tensor:
    """(B, T, H, D) -> (N, B, H, CHUNK, D), the last chunk filled up with zeros."""
    B, T, H, D = x.shape
    x = F.pad(x.to(dtype), (0, 0, 0, 0, 0, count(T) * CHUNK - T))
    return x.view(B, count(T), CHUNK, H, D).permute(1, 0, 3, 2, 4).contiguous()


def join(x: Tensor, T: int, dtype: torch.dtype) -> Tensor:
    """(N, B, H, CHUNK, D) -> (B, T, H, D)"""
    N, B, H, C, D = x.shape
    return x.permute(1, 0, 3, 2, 4).reshape(B, N * C, H, D)[:, :T].to(dtype).contiguous()


class Masks(NamedTuple):
    """Who sees whom; 1.0 or 0.0, broadcast over heads and features."""

    causal: Tensor  # (N B 1 C C), j <= i in the same segment
    start: Tensor  # (N B 1 C 1), step sees the state at the chunk's start
    end: Tensor  # (N B 1 C 1), step reaches the state at the chunk's end
    through: Tensor  # (N B 1 1 1), the state passes through the whole chunk


def masks(reset: Tensor | None, B: int, T: int, like: Tensor) -> Masks:
    N = count(T)
    lower = torch.ones(CHUNK, CHUNK, dtype=like.dtype, device=like.device).tril()
    if reset is None:
        one = torch.ones(1, 1, 1, 1, 1, dtype=like.dtype, device=like.device)
        return Masks(lower.view(1, 1, 1, CHUNK, CHUNK), one, one, one)
    padded = F.pad(reset.to(torch.int64), (0, N * CHUNK - T)).view(B, N, 1, CHUNK).transpose(0, 1)
    segment = padded.cumsum(-1).unsqueeze(-1)  # N B 1 C 1
    last = segment[..., -1:, :]
    same = (segment == segment.transpose(-1, -2)).to(like.dtype)
    return Masks(same * lower, (segment == 0).to(like.dtype), (segment == last).to(like.dtype), (last == 0).to(like.dtype))
