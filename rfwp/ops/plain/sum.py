"""`sum` chunk-parallel in plain PyTorch: matrix products inside chunks, a short loop over chunks. Derived in ops/README.md."""

import torch
from torch import Tensor

from rfwp.ops.plain.chunks import count, join, masks, split

checkpoints = count


def forward(q: Tensor, k: Tensor, v: Tensor, state: Tensor, reset: Tensor | None, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    B, T = q.shape[:2]
    Q, K, V = (split(x, state.dtype) for x in (q, k, v))
    mask = masks(reset, B, T, Q)
    written = (mask.end * V).mT @ K  # N B H V K
    states, W = [], state
    for n in range(len(Q)):
        states.append(W)
        W = mask.through[n % len(mask.through)] * W + written[n]
    starts = torch.stack(states)
    y = (mask.start * Q) @ starts.mT + (Q @ K.mT * mask.causal) @ V
    return join(y, T, v.dtype), W.contiguous(), _saved(starts, keep)


def backward(
    dy: Tensor, dstate: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Tensor, reset: Tensor | None, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    B, T = q.shape[:2]
    Q, K, V, dY = (split(x, state.dtype) for x in (q, k, v, dy))
    mask = masks(reset, B, T, Q)
    W = starts.transpose(0, 1)
    ends, dW = loop_back(dstate, mask.through, dY.mT @ (mask.start * Q))
    A = Q @ K.mT * mask.causal
    dA = dY @ V.mT * mask.causal
    dQ = mask.start * (dY @ W) + dA @ K
    dK = dA.mT @ Q + mask.end * (V @ ends)
    dV = A.mT @ dY + mask.end * (K @ ends.mT)
    return join(dQ, T, q.dtype), join(dK, T, k.dtype), join(dV, T, v.dtype), dW


def loop_back(dW: Tensor, transition: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
    """dW <- dW · transition_n + added_n from the last chunk to the first.

    Returns dW at every chunk's end (N B H V K), and at the very start.
    """
    ends = []
    for n in reversed(range(len(added))):
        ends.append(dW)
        step = transition[n % len(transition)]
        dW = (dW @ step if step.shape[-1] > 1 else dW * step) + added[n]
    return torch.stack(ends[::-1]), dW.contiguous()


def _saved(starts: Tensor, keep: bool) -> Tensor:
    """The state at every chunk's start, (B N H V K), or nothing when no backward pass will follow."""
    return starts.transpose(0, 1).contiguous() if keep else starts.new_empty(starts.shape[1], 0, *starts.shape[2:])
