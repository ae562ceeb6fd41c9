"""What the sequential ops share: time in segments, and the gradients of their common steps. Derived in ops/README.md.

Forward keeps a copy of the state at the start of every segment. Backward takes the segments from the last to the first:
it runs each forward again from its copy, then back.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rfwp.fwp.rules import read

SEGMENT = 32
"""Steps a segment. Memory is T / SEGMENT copies of the state plus SEGMENT states while one segment runs back."""


def count(T: int) -> int:
    return -(-T // SEGMENT)


def segments_back(T: int) -> Iterator[tuple[int, range]]:
    """Number and steps of every segment, the last one first."""
    for n in reversed(range(count(T))):
        yield n, range(n * SEGMENT, min(T, (n + 1) * SEGMENT))


def over_time(dtype: torch.dtype, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """(B, T, ...) each -> for every step the tuple of their (B, ...), in the dtype of the state."""
    return list(zip(*(x.to(dtype).unbind(1) for x in tensors), strict=True))


def checkpointed(kept: Sequence[tuple[Tensor, ...]], state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The kept states as (B, N, ...) each; N = 0 when no backward pass will follow."""
    if not kept:
        return tuple(s.new_empty(s.shape[0], 0, *s.shape[1:]) for s in state)
    return tuple(torch.stack(copies, dim=1) for copies in zip(*kept, strict=True))


def gradients(found: Sequence[tuple[Tensor, ...]], *inputs: Tensor) -> tuple[Tensor, ...]:
    """One tuple a step, the last step first -> (B, T, ...) in the dtype of the input that each belongs to."""
    return tuple(torch.stack(dx, dim=1).to(x.dtype) for dx, x in zip(zip(*reversed(found), strict=True), inputs, strict=True))


def outer(x: Tensor, y: Tensor) -> Tensor:
    """x ⊗ y"""
    return x.unsqueeze(-1) * y.unsqueeze(-2)


def softmax_back(dp: Tensor, p: Tensor) -> Tensor:
    """The gradient of x where p = softmax(x): p ⊙ (dp - dp · p)"""
    return p * (dp - (dp * p).sum(-1, keepdim=True))


def delta_rule_back(dW: Tensor, W: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of W_{t-1}, k, v, beta where W_t = W_{t-1} + e ⊗ k,  e = beta (v - W_{t-1} k); here W is W_{t-1}.

    de = dW_t k,  dk = dW_tᵀ e - W_{t-1}ᵀ (beta de),  dv = beta de,  dbeta = de · (v - W_{t-1} k),
    dW_{t-1} = dW_t - (beta de) ⊗ k
    """
    error = v - read(W, k)
    de = read(dW, k)
    dv = beta.unsqueeze(-1) * de
    dk = read(dW.mT, beta.unsqueeze(-1) * error) - read(W.mT, dv)
    return dW - outer(dv, k), dk, dv, (de * error).sum(-1)
