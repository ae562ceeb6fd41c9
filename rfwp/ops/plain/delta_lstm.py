"""`delta_lstm` in plain PyTorch: a loop over time, the gradient by hand. Derived in ops/README.md."""

import torch
from torch import Tensor

from rfwp.fwp.fast import lstm_cell
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


def lstm_cell_back(
    version: str, dy: Tensor, dc: Tensor, z: Tensor, r: Tensor, c_before: Tensor, y: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of z, r and c_{t-1} from those of y_t and c_t, for y_t = `lstm_cell(version, z, r, c_before)`."""
    u, f, o = (z + r).unbind(-2)
    f, o = f.sigmoid(), o.sigmoid()
    if version != "D":
        u = u.sigmoid()
    c = f * c_before + (1 - f) * u
    dh = softmax_back(dy, y) if version == "A" else dy  # h = o ⊙ c
    dc = dc + dh * o
    du = dc * (1 - f)
    if version != "D":
        du = du * u * (1 - u)
    dr = torch.stack((du, dc * (c_before - u) * f * (1 - f), dh * c * o * (1 - o)), dim=-2)
    dz = torch.stack((du + dy, *dr.unbind(-2)[1:]), dim=-2) if version == "C" else dr
    return dz, dr, dc * f


def forward(
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R: Tensor,
    y: Tensor,
    c: Tensor,
    reset: Tensor | None,
    keep: bool,
    version: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    outputs, kept = [], []
    for t, (z_t, *written) in enumerate(over_time(R.dtype, z, k, v, beta)):
        if keep and t % SEGMENT == 0:
            kept.append((R, y, c))
        R, y, c = (forget(state, reset, t) for state in (R, y, c))
        R = delta_rule(R, *written)
        y, c = lstm_cell(version, z_t, read(R, _query(y, version)), c)
        outputs.append(y)
    ckR, cky, ckc = checkpointed(kept, (R, y, c))
    return torch.stack(outputs, dim=1).to(z.dtype), R.contiguous(), y.contiguous(), c.contiguous(), ckR, cky, ckc


def backward(
    dy: Tensor,
    dR: Tensor,
    dy_T: Tensor,
    dc: Tensor,
    z: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    R0: Tensor,
    y0: Tensor,
    c0: Tensor,
    reset: Tensor | None,
    y: Tensor,
    ckR: Tensor,
    cky: Tensor,
    ckc: Tensor,
    version: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    x, dys = over_time(R0.dtype, z, k, v, beta), dy.to(R0.dtype).unbind(1)
    found, carry = [], dy_T  # carry: the gradient that reaches y_t from later steps
    for n, span in segments_back(len(x)):
        R_t, y_t, c_t, seen = ckR[:, n], cky[:, n], ckc[:, n], []
        for t in span:
            z_t, *written = x[t]
            R, y_, c = (forget(state, reset, t) for state in (R_t, y_t, c_t))
            R_t, s = delta_rule(R, *written), _query(y_, version)
            r = read(R_t, s)
            y_t, c_t = lstm_cell(version, z_t, r, c)
            seen.append((R, s, c, R_t, r, y_t))
        for t in reversed(span):
            R, s, c, R_t, r, y_t = seen.pop()
            z_t, *written = x[t]
            dz, dr, dc = lstm_cell_back(version, dys[t] + carry, dc, z_t, r, c, y_t)
            ds = read(R_t.mT, dr).sum(-2)
            dR, dk, dv, dbeta = delta_rule_back(dR + outer(dr, s), R, *written)
            found.append((dz, dk, dv, dbeta))
            carry = ds if version == "A" else softmax_back(ds, s.squeeze(-2))
            dR, carry, dc = (forget(gradient, reset, t) for gradient in (dR, carry, dc))
    dz, dk, dv, dbeta = gradients(found, z, k, v, beta)
    return dz, dk, dv, dbeta, dR.contiguous(), carry.contiguous(), dc.contiguous()


def _query(y: Tensor, version: str) -> Tensor:
    """The recurrent query, one for all three gates."""
    return (y if version == "A" else softmax(y)).unsqueeze(-2)  # B H 1 V
