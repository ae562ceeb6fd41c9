"""`delta` chunk-parallel in plain PyTorch, in the WY form. Derived in ops/README.md.

Inside a chunk that starts with state W, the written vectors U solve (I + L) U = diag(β)(V - K Wᵀ), with L the strictly
lower part of diag(β) K Kᵀ. So U = U0 - P Wᵀ, and the state at the chunk's end is W G + S: only that runs over chunks.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from rfwp.ops.plain.chunks import Masks, at, count, join, masks, only, split
from rfwp.ops.plain.sum import loop_back, saved

checkpoints = count


class _Chunks(NamedTuple):
    """What does not depend on the state, for all chunks at once."""

    Q: Tensor  # N B H C K
    K: Tensor  # N B H C K
    V: Tensor  # N B H C V
    b: Tensor  # N B H C 1
    mask: Masks
    A: Tensor  # N B H C C, causal Q Kᵀ
    inverse: Tensor  # N B H C C, (I + L)^-1
    U0: Tensor  # N B H C V
    P: Tensor  # N B H C K
    G: Tensor  # N B H K K
    QP: Tensor  # N B H C K, what reads the state: y = A U0 + QP Wᵀ


def _prepare(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, reset: Tensor | None, dtype: torch.dtype) -> _Chunks:
    Q, K, V, b = (split(x, dtype) for x in (q, k, v, beta.unsqueeze(-1)))
    mask = masks(reset, q.shape[0], q.shape[1], q.device)
    L = only(mask.causal, b * (K @ K.mT)).tril(-1)
    eye = torch.eye(L.shape[-1], dtype=dtype, device=L.device)
    inverse = torch.linalg.solve_triangular(L + eye, eye.expand_as(L), upper=False, unitriangular=True)
    P = inverse @ only(mask.start, b * K)
    A = only(mask.causal, Q @ K.mT)
    G = only(mask.through, torch.eye(K.shape[-1], dtype=dtype, device=K.device)) - P.mT @ only(mask.end, K)
    return _Chunks(Q, K, V, b, mask, A, inverse, inverse @ (b * V), P, G, only(mask.start, Q) - A @ P)


def forward(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor, reset: Tensor | None, keep: bool
) -> tuple[Tensor, Tensor, Tensor]:
    c = _prepare(q, k, v, beta, reset, state.dtype)
    S = only(c.mask.end, c.U0).mT @ c.K
    states, W = [], state
    for n in range(len(S)):
        states.append(W)
        W = only(at(c.mask.through, n), W @ c.G[n]) + S[n]
    starts = torch.stack(states)
    y = c.A @ c.U0 + only(c.mask.start, c.QP @ starts.mT)
    return join(y, q.shape[1], v.dtype), W.contiguous(), saved(starts, keep)


def backward(
    dy: Tensor,
    dstate: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    state: Tensor,
    reset: Tensor | None,
    starts: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    c = _prepare(q, k, v, beta, reset, state.dtype)
    dY = split(dy, state.dtype)
    W = starts.transpose(0, 1)
    ends, dW = loop_back(dstate, c.mask.through, dY.mT @ c.QP, c.G)

    read_back = c.V - only(c.mask.start, c.K @ W.mT)  # v - W k, the state's part of it
    U = c.U0 - only(c.mask.start, c.P @ W.mT)
    dU = c.A.mT @ dY + only(c.mask.end, c.K @ ends.mT)
    dX = c.inverse.mT @ dU  # X = diag(β) read_back, U = (I + L)^-1 X
    dA = only(c.mask.causal, dY @ U.mT)
    dL = -only(c.mask.causal, dX @ U.mT).tril(-1)
    bdL = c.b * dL

    dQ = only(c.mask.start, dY @ W) + dA @ c.K
    dK = dA.mT @ c.Q + only(c.mask.end, U @ ends) + (bdL + bdL.mT) @ c.K - only(c.mask.start, c.b * (dX @ W))
    db = (dX * read_back).sum(-1, keepdim=True) + (dL * (c.K @ c.K.mT)).sum(-1, keepdim=True)
    T = q.shape[1]
    dbeta = join(db, T, beta.dtype).squeeze(-1)
    return join(dQ, T, q.dtype), join(dK, T, k.dtype), join(c.b * dX, T, v.dtype), dbeta, dW
