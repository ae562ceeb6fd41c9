"""Feature maps φ: what keys and queries pass through before they touch a fast weight matrix (Sec. 2.2)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

FeatureMap = Callable[[Tensor], Tensor]
CPU_VECTOR = 16
"""Float32 numbers that a CPU computes with at once."""


def identity(x: Tensor) -> Tensor:
    """φ(x) = x"""
    return x


def softmax(x: Tensor) -> Tensor:
    """φ(x)_i = exp(x_i) / Σ_j exp(x_j): positive and summing to one, as the delta rule wants it."""
    if x.device.type == "cpu" and x.shape[-1] < CPU_VECTOR:
        # PyTorch takes such short rows one number at a time, which is up to ten times slower than all rows side by side
        return F.softmax(x.movedim(-1, 0).contiguous(), dim=0, dtype=_precise(x)).to(x.dtype).movedim(0, -1).contiguous()
    return F.softmax(x, dim=-1, dtype=_precise(x)).to(x.dtype)


def elu(x: Tensor) -> Tensor:
    """φ(x) = elu(x) + 1: positive, not normalised (Linear Transformer)."""
    # autocast takes exp to float32
    return _elu_plus_one(_packed(x)).to(x.dtype)


def elu_sum(x: Tensor) -> Tensor:
    """φ(x)_i = (elu(x_i) + 1) / Σ_j (elu(x_j) + 1): positive and summing to one (Delta Net)."""
    positive = _elu_plus_one(_packed(x).to(_precise(x)))
    return (positive / positive.sum(-1, keepdim=True)).to(x.dtype)


def elu_sum_eps(x: Tensor) -> Tensor:
    """φ(x)_i = (elu(x_i) + 1) / (Σ_j (elu(x_j) + 1) + 1e-5): the authors' guard in Atari, Delta MLP and Delta Delta Net."""
    positive = _elu_plus_one(_packed(x).to(_precise(x)))
    return (positive / (positive.sum(-1, keepdim=True) + 1e-5)).to(x.dtype)


def _elu_plus_one(x: Tensor) -> Tensor:
    """x + 1 above zero, exp(x) below: elu itself, exp(x) - 1, has no digits left of a small exp(x), and 0 / 0 would follow."""
    return F.relu(x) + x.clamp(max=0).exp()


def _packed(x: Tensor) -> Tensor:
    """On a CPU without gaps: PyTorch takes a slice of a larger tensor one number at a time, which is several times slower."""
    return x.contiguous() if x.device.type == "cpu" else x


def _precise(x: Tensor) -> torch.dtype:
    """Normalise half-precision inputs in float32."""
    return torch.promote_types(x.dtype, torch.float32)


MAPS: dict[str, FeatureMap] = {
    "identity": identity,
    "softmax": softmax,
    "elu": elu,
    "elu_sum": elu_sum,
    "elu_sum_eps": elu_sum_eps,
}
