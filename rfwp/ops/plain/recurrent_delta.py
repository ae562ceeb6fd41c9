"""`recurrent_delta` in plain PyTorch: a loop over time, the gradient by hand. Derived in ops/README.md.

The four recurrent maps are stacked into one matrix R (H P V), P = K + K + V + 1, and act in one product a step.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from rfwp.fwp.maps import softmax
from rfwp.fwp.rules import delta_rule, read
from rfwp.ops.plain.steps import (
    SEGMENT,
    checkpointed,
    count,
    delta_rule_back,
    gradients,
    outer,
    over_time,
    segments_back,
    softmax_back,
)
from rfwp.ops.state import forget

checkpoints = count


class _Program(NamedTuple):
    """What the slow net writes at a step, after its activations."""

    s: Tensor  # B H V, tanh(y_{t-1})
    q: Tensor  # B H K
    k: Tensor  # B H K
    v: Tensor  # B H V
    beta: Tensor  # B H


def _stack(R_q: Tensor, R_k: Tensor, R_v: Tensor, R_beta: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.cat((R_q, R_k, R_v, R_beta.unsqueeze(-2)), dim=-2).to(dtype)  # H P V


def _program(R: Tensor, y: Tensor, x: tuple[Tensor, ...]) -> _Program:
    s = torch.tanh(y)
    q, k, v, beta = x
    r = torch.einsum("hpv,bhv->bhp", R, s)
    r_q, r_k, r_v, r_beta = r.split((q.shape[-1], k.shape[-1], v.shape[-1], 1), dim=-1)
    return _Program(s, softmax(q + r_q), softmax(k + r_k), v + r_v, (beta + r_beta.squeeze(-1)).sigmoid())


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R_q: Tensor,
    R_k: Tensor,
    R_v: Tensor,
    R_beta: Tensor,
    W: Tensor,
    y: Tensor,
    reset: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    R = _stack(R_q, R_k, R_v, R_beta, W.dtype)
    outputs, kept = [], []
    for t, x in enumerate(over_time(W.dtype, q, k, v, beta)):
        if keep and t % SEGMENT == 0:
            kept.append((W, y))
        W, y = forget(W, reset, t), forget(y, reset, t)
        p = _program(R, y, x)
        W = delta_rule(W, p.k, p.v, p.beta)
        y = read(W, p.q)
        outputs.append(y)
    ckW, cky = checkpointed(kept, (W, y))
    return torch.stack(outputs, dim=1).to(v.dtype), W.contiguous(), y.contiguous(), ckW, cky


def backward(
    dy: Tensor,
    dW: Tensor,
    dy_T: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R_q: Tensor,
    R_k: Tensor,
    R_v: Tensor,
    R_beta: Tensor,
    W0: Tensor,
    y0: Tensor,
    reset: Tensor | None,
    y: Tensor,
    ckW: Tensor,
    cky: Tensor,
) -> tuple[Tensor, ...]:
    R = _stack(R_q, R_k, R_v, R_beta, W0.dtype)
    x, dys = over_time(W0.dtype, q, k, v, beta), dy.to(W0.dtype).unbind(1)
    found, carry = [], dy_T  # carry: the gradient that reaches y_t from later steps
    for n, span in segments_back(len(x)):
        W_t, y_t, seen = ckW[:, n], cky[:, n], []
        for t in span:
            W = forget(W_t, reset, t)
            p = _program(R, forget(y_t, reset, t), x[t])
            W_t = delta_rule(W, p.k, p.v, p.beta)
            y_t = read(W_t, p.q)
            seen.append((W, p, W_t))
        for t in reversed(span):
            W, p, W_t = seen.pop()
            dW, du = _step_back(dys[t] + carry, dW, W, p, W_t)
            found.append((du, p.s))
            ds = torch.einsum("hpv,bhp->bhv", R, du)
            carry = forget(ds * (1 - p.s * p.s), reset, t)
            dW = forget(dW, reset, t)
    dU, S = gradients(found, W0, W0)  # B T H P, B T H V
    dR = torch.einsum("bthp,bthv->hpv", dU, S)
    inputs, maps = _split(dU, -1, q, k, v, beta), _split(dR, -2, R_q, R_k, R_v, R_beta)
    return *inputs, *maps, dW.contiguous(), carry.contiguous()


def _step_back(dy: Tensor, dW: Tensor, W: Tensor, p: _Program, W_t: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of W_{t-1} and of the program before its activations, (B, H, P)."""
    dq = softmax_back(read(W_t.mT, dy), p.q)
    dW, dk, dv, dbeta = delta_rule_back(dW + outer(dy, p.q), W, p.k, p.v, p.beta)
    db = dbeta * p.beta * (1 - p.beta)
    return dW, torch.cat((dq, softmax_back(dk, p.k), dv, db.unsqueeze(-1)), dim=-1)


def _split(dx: Tensor, dim: int, *inputs: Tensor) -> list[Tensor]:
    """P -> K, K, V and 1, whose dimension goes: one gradient an input, none a view of another."""
    q, k, v, _ = inputs
    *vectors, beta = dx.split((q.shape[dim], k.shape[dim], v.shape[dim], 1), dim=dim)
    parts = (*vectors, beta.squeeze(dim))
    return [d.to(x.dtype).clone(memory_format=torch.contiguous_format) for d, x in zip(parts, inputs, strict=True)]
