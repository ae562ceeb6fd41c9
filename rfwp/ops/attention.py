"""Causal softmax attention over a whole sequence, for the Transformer baseline: where PyTorch has no fast kernel of its own.

That is float32 with small heads. Like the ops of programmed.py it runs from one projection u (B, T, 3, H, d), which holds
q, k and v, and gives one gradient of it; only the gpu backend has it. Elsewhere layers take scaled_dot_product_attention.
"""

import torch
from torch import Tensor

from rfwp.ops import gpu
from rfwp.ops.backend import full_precision, implementation, needs_checkpoints
from rfwp.ops.registration import register

FASTEST = 64
"""The largest head at which it is taken by itself. Beyond it registers do not suffice in float32."""
LEVELS = 2**16
"""A random number of so many values decides whether a probability is dropped."""


def unsupported(u: Tensor, dropout: float) -> str | None:
    """Why it cannot run on u here, or None."""
    if round(dropout * LEVELS) >= LEVELS:
        return f"dropout={dropout} keeps nothing"
    return gpu.unsupported("attention", u, u.shape[-1], u.shape[-1])


def is_fastest(u: Tensor, dropout: float) -> bool:
    """Whether it can run and is expected to be faster than what PyTorch has."""
    fits = u.device.type == "cuda" and u.dtype == torch.float32 and u.shape[-1] <= FASTEST
    return fits and unsupported(u, dropout) is None


def attention(u: Tensor, dropout: float = 0.0) -> Tensor:
    """y_t = Σ_{s ≤ t} m_ts p_ts v_s / (1 - dropout),  p_t = softmax_s(q_t · k_s / sqrt(d)),  m_ts = 0 with probability dropout

    u (B, T, 3, H, d) holds q, k, v; y (B, T, H, d). The dropout is rounded to a multiple of 2^-16.
    """
    dropout = round(dropout * LEVELS) / LEVELS
    # drawn by torch's generator and outside of the kernel: a replayed CUDA graph then draws anew
    seed = torch.randint(0, 2**62, (1,), device=u.device) if dropout else None
    y, _ = _run(u, seed, needs_checkpoints(u), dropout)
    return y


def attention_reference(u: Tensor, kept: Tensor | None = None, dropout: float = 0.0) -> Tensor:
    """The definition; kept (B, H, T, T) is the m of dropout."""
    q, k, v = u.transpose(1, 3).unbind(2)  # B H T d
    scores = q @ k.mT / q.shape[-1] ** 0.5
    later = torch.ones_like(scores, dtype=torch.bool).triu(1)
    p = scores.masked_fill(later, float("-inf")).softmax(-1)
    if kept is not None:
        p = p * kept / (1 - dropout)
    return (p @ v).transpose(1, 2)


def _forward(u: Tensor, seed: Tensor | None, keep: bool, dropout: float) -> tuple[Tensor, Tensor]:
    with full_precision(u):
        return implementation("attention", "gpu").forward(*u.unbind(2), seed, keep, dropout)


def _forward_shapes(u, seed, keep, dropout):
    B, T, _, H, d = u.shape
    return u.new_empty(B, T, H, d), u.new_empty((B, H, T) if keep else (0,), dtype=torch.float32)


def _backward(dy: Tensor, u: Tensor, seed: Tensor | None, y: Tensor, lse: Tensor, dropout: float) -> list[Tensor]:
    du = u.new_empty(u.shape)
    with full_precision(u):
        implementation("attention", "gpu").backward(dy, *u.unbind(2), seed, y, lse, dropout, du.unbind(2))
    return [du]


def _backward_shapes(dy, u, seed, y, lse, dropout):
    return [u.new_empty(u.shape)]


_run = register("attention", _forward, _forward_shapes, _backward, _backward_shapes, tensors=1, outputs=1, keeps_y=True)
