"""`delta_rnn` in plain PyTorch: a loop over time, the gradient by hand. Derived in ops/README.md."""

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


def _step(version: str, x: tuple[Tensor, ...], R: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """R_t, y_t and the recurrent query s."""
    z, k, v, beta = x
    s = y if version == "A" else softmax(y)
    R = delta_rule(R, k, v, beta)
    y = z + read(R, s)
    return R, softmax(y) if version == "A" else y, s


def forward(
    z: Tensor, k: Tensor, v: Tensor, beta: Tensor, R: Tensor, y: Tensor, reset: Tensor | None, keep: bool, version: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    outputs, kept = [], []
    for t, x in enumerate(over_time(R.dtype, z, k, v, beta)):
        if keep and t % SEGMENT == 0:
            kept.append((R, y))
        R, y, _ = _step(version, x, forget(R, reset, t), forget(y, reset, t))
        outputs.append(y)
    ckR, cky = checkpointed(kept, (R, y))
    return torch.stack(outputs, dim=1).to(z.dtype), R.contiguous(), y.contiguous(), ckR, cky


def backward(
    dy: Tensor,
    dR: Tensor,
    dy_T: Tensor,
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R0: Tensor,
    y0: Tensor,
    reset: Tensor | None,
    y: Tensor,
    ckR: Tensor,
    cky: Tensor,
    version: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    x, dys = over_time(R0.dtype, z, k, v, beta), dy.to(R0.dtype).unbind(1)
    found, carry = [], dy_T  # carry: the gradient that reaches y_t from later steps
    for n, span in segments_back(len(x)):
        R_t, y_t, seen = ckR[:, n], cky[:, n], []
        for t in span:
            R, y_ = forget(R_t, reset, t), forget(y_t, reset, t)
            R_t, y_t, s = _step(version, x[t], R, y_)
            seen.append((R, s, R_t, y_t))
        for t in reversed(span):
            R, s, R_t, y_t = seen.pop()
            _, *written = x[t]
            dz = dys[t] + carry
            if version == "A":
                dz = softmax_back(dz, y_t)
            ds = read(R_t.mT, dz)
            dR, dk, dv, dbeta = delta_rule_back(dR + outer(dz, s), R, *written)
            found.append((dz, dk, dv, dbeta))
            carry = forget(ds if version == "A" else softmax_back(ds, s), reset, t)
            dR = forget(dR, reset, t)
    dz, dk, dv, dbeta = gradients(found, z, k, v, beta)
    return dz, dk, dv, dbeta, dR.contiguous(), carry.contiguous()
