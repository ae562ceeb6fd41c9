"""Update rules: the elementary programming instructions of a fast weight programmer (Sec. 2.2). Pure functions.

Shapes: W (..., V, K), k (..., K), v (..., V), beta (...).
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor


def sum_rule(W: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """W_t = W_{t-1} + v ⊗ k"""
    return W + v.unsqueeze(-1) * k.unsqueeze(-2)


def delta_rule(W: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """W_t = W_{t-1} + beta (v - v_bar) ⊗ k,  v_bar = W_{t-1} k"""
    v_bar = read(W, k)
    return W + (beta.unsqueeze(-1) * (v - v_bar)).unsqueeze(-1) * k.unsqueeze(-2)


def read(W: Tensor, q: Tensor) -> Tensor:
    """y = W q"""
    return (W @ q.unsqueeze(-1)).squeeze(-1)


def forget_rows(state: Tensor, rows: Tensor) -> Tensor:
    """Zero the rows (B,) of a state (B, ...) that are True: not by a product, so that no NaN comes back."""
    return torch.where(rows.view(-1, *[1] * (state.dim() - 1)), torch.zeros_like(state), state)


class Rule(Protocol):
    """What a composition needs to know of a rule: its name, whether it needs a learning rate, and the rule itself."""

    title: ClassVar[str]
    has_beta: ClassVar[bool]

    def update(self, W: Tensor, k: Tensor, v: Tensor, beta: Tensor | None) -> Tensor: ...


@dataclass(frozen=True)
class Sum:
    """W_t = W_{t-1} + v ⊗ k                                              (Linear Transformer)"""

    title: ClassVar[str] = "Sum"
    has_beta: ClassVar[bool] = False

    def update(self, W: Tensor, k: Tensor, v: Tensor, beta: Tensor | None = None) -> Tensor:
        return sum_rule(W, k, v)


@dataclass(frozen=True)
class Delta:
    """W_t = W_{t-1} + beta (v - W_{t-1} k) ⊗ k                           (Delta Net and all others)"""

    title: ClassVar[str] = "Delta"
    has_beta: ClassVar[bool] = True

    def update(self, W: Tensor, k: Tensor, v: Tensor, beta: Tensor | None = None) -> Tensor:
        assert beta is not None
        return delta_rule(W, k, v, beta)


RULES: dict[str, type[Rule]] = {"sum": Sum, "delta": Delta}
