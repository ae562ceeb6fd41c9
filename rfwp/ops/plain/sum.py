"""`sum` chunk-parallel in plain PyTorch: matrix products inside chunks, a short loop over chunks. Derived in ops/README.md."""

import torch
from torch import Tensor

from rfwp.ops.plain.chunks import at, count, join, masks, only, split

checkpoints = count


def forward(q: Tensor, k: Tensor, v: Tensor, state: Tensor, reset: Tensor | None, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    B, T = q.shape[:2]
    Q, K, V = (split(x, state.dtype) for x in (q, k, v))
    mask = masks(reset, B, T, q.device)
    written = only(mask.end, V).mT @ K  # N B H V K
    states, W = [], state
    for n in range(len(Q)):
        states.append(W)
        W = only(at(mask.through, n), W) + written[n]
    starts = torch.stack(states)
    y = only(mask.start, Q @ starts.mT) + only(mask.causal, Q @ K.mT) @ V
    return join(y, T, v.dtype), W.contiguous(), saved(starts, keep)


def backward(
    dy: Tensor, dstate: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Tensor, reset: Tensor | None, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    B, T = q.shape[:2]
    Q, K, V, dY = (split(x, state.dtype) for x in (q, k, v, dy))
    mask = masks(reset, B, T, q.device)
    W = starts.transpose(0, 1)
    ends, dW = loop_back(dstate, mask.through, dY.mT @ only(mask.start, Q))
    A = only(mask.causal, Q @ K.mT)
    dA = only(mask.causal, dY @ V.mT)
    dQ = only(mask.start, dY @ W) + dA @ K
    dK = dA.mT @ Q + only(mask.end, V @ ends)
    dV = A.mT @ dY + only(mask.end, K @ ends.mT)
    return join(dQ, T, q.dtype), join(dK, T, k.dtype), join(dV, T, v.dtype), dW


def loop_back(dW: Tensor, through: Tensor, added: Tensor, G: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """dW <- dW Gᵀ_n + added_n from the last chunk to the first, where the state passes `through`; G = I if None.

    Returns dW at every chunk's end (N B H V K), and at the very start.
    """
    ends = []
    for n in reversed(range(len(added))):
        ends.append(dW)
        dW = only(at(through, n), dW if G is None else dW @ G[n].mT) + added[n]
    return torch.stack(ends[::-1]), dW.contiguous()


def saved(starts: Tensor, keep: bool) -> Tensor:
    """The state at every chunk's start, (B N H V K), or nothing when no backward pass will follow."""
    return starts.transpose(0, 1).contiguous() if keep else starts.new_empty(starts.shape[1], 0, *starts.shape[2:])
