"""Arguments for the kernels of `sum` and `delta`, and the float64 reference with all its gradients."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.tolerances import FLOAT32


class Arguments(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    W: Tensor
    reset: Tensor | None
    dy: Tensor
    dW_T: Tensor


def arguments(B: int, T: int, H: int, K: int, V: int, *, reset: bool = False, state: bool = True, seed: int = 0) -> Arguments:
    """Keys of norm 1 and learning rates in (0, 1); resets at the first step of the last row, in the middle, and more."""
    g = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(B, T, H, K, generator=g) for _ in range(2))
    v, dy = (torch.randn(B, T, H, V, generator=g) for _ in range(2))
    W, dW_T = (torch.randn(B, H, V, K, generator=g) for _ in range(2))
    beta = torch.rand(B, T, H, generator=g)
    forget = torch.rand(B, T, generator=g) < 0.1
    forget[-1, 0] = forget[0, T // 2] = True
    k = k / k.norm(dim=-1, keepdim=True)
    return Arguments(q, k, v, beta, W if state else torch.zeros_like(W), forget if reset else None, dy, dW_T)


def expected(reference: Callable[..., Any], inputs: Sequence[Tensor], a: Arguments) -> list[Tensor]:
    """y, the final W and the gradient of every input and of the first W, in float64."""
    *leaves, W = (x.detach().double().requires_grad_() for x in (*inputs, a.W))
    y, W_T = reference(*leaves, state=W, reset=a.reset)
    gradients = torch.autograd.grad((y, W_T), [*leaves, W], (a.dy.double(), a.dW_T.double()))
    return [y.detach(), W_T.detach(), *gradients]


def check(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert one.is_contiguous()
        torch.testing.assert_close(one.double(), other, **FLOAT32)
