"""Arguments for the kernels of `sum` and `delta`, and the float64 reference with all its gradients."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rfwp.fwp.maps import MAPS
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


def raw(a: Arguments, phi: str, size: float = 1.0) -> Arguments:
    """Keys, queries and rates as the slow net writes them, before φ and sigmoid; some of them large.

    elu alone does not make keys of sum one: they stay small, as the delta rule grows with keys longer than one.
    """
    far = torch.where(torch.rand(a.k.shape, generator=torch.Generator().manual_seed(1)) < 0.1, size, 1.0)
    k = a.k - 2 if phi == "elu" else 3 * a.k * far
    return a._replace(q=a.q * far, k=k, beta=4 * a.beta - 2) if phi != "identity" else a


def activated(reference: Callable[..., Any], phi: str) -> Callable[..., Any]:
    """The reference of a rule, from raw inputs: φ of q and k, the sigmoid of beta if there is one."""

    def composed(q: Tensor, k: Tensor, v: Tensor, *beta: Tensor, **options: Any) -> Any:
        return reference(MAPS[phi](q), MAPS[phi](k), v, *(b.sigmoid() for b in beta), **options)

    return composed


def parts(u: Tensor, K: int, V: int, *, rates: bool = True) -> tuple[Tensor, ...]:
    """q, k, v and beta as views of one (B, T, H, [G,] 2K + V + 1)."""
    *tiles, beta = u.split([K, K, V, 1], -1)
    return (*tiles, beta.squeeze(-1)) if rates else tuple(tiles)


def check(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert one.is_contiguous()
        torch.testing.assert_close(one.double(), other, **FLOAT32)
