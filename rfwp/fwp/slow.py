"""Slow nets: the only part with trained weights. They write the program of the fast net at every step (Secs. 2.1 and 3.2)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rfwp.errors import InvalidInput
from rfwp.fwp.rules import forget_rows
from rfwp.fwp.types import SlowNet, State


@dataclass(frozen=True)
class Feedforward:
    """u_t = W_slow x_t"""

    title: ClassVar[str] = "Feedforward"
    feeds_back: ClassVar[bool] = False
    own_state: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class Recurrent:
    """u_t = W_slow x_t + R_slow tanh(y_{t-1}): recurrent through the fast net's output (RDN).

    y_{t-1} is the fast net's own output, before the output scale and the output projection.
    Differs from the paper: R_slow is block diagonal, one (outputs × d) matrix a head.
    """

    title: ClassVar[str] = "Recurrent"
    feeds_back: ClassVar[bool] = True
    own_state: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True)
class LSTM:
    """u_t = W_slow h_t,  h_t = LSTM(x_t, h_{t-1}): recurrent in itself, the other level of Sec. 3.2."""

    title: ClassVar[str] = "LSTM"
    feeds_back: ClassVar[bool] = False
    own_state: ClassVar[tuple[str, ...]] = ("slow_h", "slow_c")


SLOW: dict[str, type[SlowNet]] = {"feedforward": Feedforward, "recurrent": Recurrent, "lstm": LSTM}


class SlowModule(nn.Module):
    """The trained weights of a slow net: x (B, T, width) -> u (B, T, H, outputs), the fast net's program.

    `live` outputs a head are read by the fast net; a few fast nets ask for more outputs than that (`outputs`).
    """

    def __init__(self, kind: SlowNet, width: int, heads: int, outputs: int, live: int, d: int, device=None, dtype=None):
        super().__init__()
        if not isinstance(kind, tuple(SLOW.values())):
            known = ", ".join(SLOW)
            raise InvalidInput(
                f"no trained weights are known for the slow net {kind!r}; use one of: {known}, or replace layer.slow"
            )
        factory = {"device": device, "dtype": dtype}
        self.kind, self.heads, self.outputs, self.live, self.d = kind, heads, outputs, live, d
        self.W = nn.Linear(width, heads * outputs, bias=False, **factory)
        if isinstance(kind, LSTM):
            self.lstm = nn.LSTMCell(width, width, **factory)
        if isinstance(kind, Recurrent):
            self.R = nn.Parameter(torch.empty(heads, live, d, **factory))
            self._draw_R()

    def reset_parameters(self) -> None:
        """Draw all weights again: R ~ N(0, 1/sqrt(d)), as in the authors' code; all others have PyTorch's default."""
        self.W.reset_parameters()
        if isinstance(self.kind, LSTM):
            self.lstm.reset_parameters()
        if isinstance(self.kind, Recurrent):
            self._draw_R()

    def _draw_R(self) -> None:
        nn.init.normal_(self.R, std=self.d**-0.5)

    def forward(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        """Everything that needs no fast net output, for all steps at once."""
        own: State = {}
        if isinstance(self.kind, LSTM):
            x, own = self._run_lstm(x, state, reset)
        u = self.W(x).unflatten(-1, (self.heads, self.outputs))  # B T H P
        return u[..., : self.live], own

    def feed_back(self, u: Tensor, y: Tensor) -> Tensor:
        """u_t + R tanh(y_{t-1}), y (B, H, V)"""
        return u + torch.einsum("hpv,bhv->bhp", self.R.to(u.dtype), torch.tanh(y)) if isinstance(self.kind, Recurrent) else u

    def _run_lstm(self, x: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        h, c = state["slow_h"], state["slow_c"]
        cell = self.lstm
        drive = F.linear(x, cell.weight_ih, cell.bias_ih)  # B T 4*width, the part without recurrence in one product
        outputs = []
        for t in range(x.shape[1]):
            if reset is not None:
                h, c = forget_rows(h, reset[:, t]), forget_rows(c, reset[:, t])
            i, f, g, o = (drive[:, t] + F.linear(h.to(x.dtype), cell.weight_hh, cell.bias_hh)).chunk(4, dim=-1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        return torch.stack(outputs, dim=1).to(x.dtype), {"slow_h": h, "slow_c": c}
