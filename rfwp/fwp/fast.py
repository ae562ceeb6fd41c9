"""Fast nets: the networks that are programmed (Sec. 3.1 and the appendix on ablations). No weights of their own.

Within a step the order is always: read the old value with the key, update the matrix, query the updated matrix.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rfwp.errors import InvalidInput
from rfwp.fwp.maps import identity, softmax
from rfwp.fwp.rules import Delta, Sum
from rfwp.fwp.types import Cell, FastMatrix, FastNet, Program


@dataclass(frozen=True)
class _Base:
    """No memory beside the matrices, no trained vectors, no unused outputs."""

    recurrent: ClassVar[bool] = False

    def vectors(self, d: int) -> dict[str, int]:
        return {}

    def parameters(self, d: int) -> dict[str, tuple[int, float]]:
        return {}

    def unused(self, d: int) -> int:
        return 0


@dataclass(frozen=True)
class Linear(_Base):
    """y_t = W_t q_t                                        (Linear Transformer, Delta Net, RDN)"""

    title: ClassVar[str] = "Linear Net"

    def matrices(self, d: int) -> tuple[FastMatrix, ...]:
        return (FastMatrix("W", d, d),)

    def step(self, cell: Cell) -> Tensor:
        return cell.read("W", cell.query("W"))


@dataclass(frozen=True)
class NormalisedLinear(_Base):
    """y_t = W_t q_t / (z_t · q_t + 1e-5),  z_t = z_{t-1} + k_t            (attention normalisation)

    z is a fast matrix of one row whose value is always 1, under the sum rule whatever rule W has.
    """

    title: ClassVar[str] = "Normalised Linear Net"

    def matrices(self, d: int) -> tuple[FastMatrix, ...]:
        return FastMatrix("W", d, d), FastMatrix("z", 1, d, query=False, programmed=False, rule=Sum())

    def step(self, cell: Cell) -> Tensor:
        # sums over time leave the range of float16: they are divided before they are rounded
        q, written = _precise(cell.query("W")), cell.program("W")
        key, value = _precise(written.key), _precise(written.value)
        beta = None if written.beta is None else _precise(written.beta)
        normaliser = cell.read("z", q, Program(None, key, torch.ones_like(value[..., :1]), None))
        return (cell.read("W", q, Program(None, key, value, beta)) / (normaliser + 1e-5)).to(written.value.dtype)


@dataclass(frozen=True)
class MLP(_Base):
    """h_k = W_k φ(h_{k-1}),  h_0 = q_t,  y_t = h_depth                     (Delta MLP as printed)"""

    title: ClassVar[str] = "Deep MLP"

    depth: int = 2
    inner: int = 4
    """Hidden width in multiples of the head size."""

    def __post_init__(self) -> None:
        _at_least_one(self, depth=self.depth, inner=self.inner)

    def matrices(self, d: int) -> tuple[FastMatrix, ...]:
        sizes = [d] + [self.inner * d] * (self.depth - 1) + [d]
        return tuple(FastMatrix(f"W{i}", sizes[i + 1], sizes[i], query=i == 0) for i in range(self.depth))

    def step(self, cell: Cell) -> Tensor:
        h = cell.query("W0")
        for i in range(self.depth):
            h = cell.read(f"W{i}", h)
        return h


@dataclass(frozen=True)
class ResidualMLP(_Base):
    """h <- h + W_b φ(W_a φ(LN(h))) for each block,  h = q_t at first,  y_t = h     (Delta MLP as the authors ran it)

    Differs from the paper: layer norm and residual connection around two fast layers, an inner width of 4 d instead of
    2048 in all. The norms are trained, one a block, shared by all heads.
    """

    title: ClassVar[str] = "Deep MLP"

    blocks: int = 1
    inner: int = 4

    def __post_init__(self) -> None:
        _at_least_one(self, blocks=self.blocks, inner=self.inner)

    def matrices(self, d: int) -> tuple[FastMatrix, ...]:
        wide = self.inner * d
        pairs = [
            (FastMatrix(f"A{i}", wide, d, query=i == 0), FastMatrix(f"B{i}", d, wide, query=False)) for i in range(self.blocks)
        ]
        return tuple(matrix for pair in pairs for matrix in pair)

    def parameters(self, d: int) -> dict[str, tuple[int, float]]:
        gains = {f"gain{i}": (d, 1.0) for i in range(self.blocks)}
        return gains | {f"bias{i}": (d, 0.0) for i in range(self.blocks)}

    def step(self, cell: Cell) -> Tensor:
        h = cell.query("A0")
        for i in range(self.blocks):
            gain, bias = (cell.parameter(f"{name}{i}").to(h.dtype) for name in ("gain", "bias"))
            # on CUDA, other than on the CPU, autocast makes it float32
            normed = F.layer_norm(h, h.shape[-1:], gain, bias).to(h.dtype)
            h = h + cell.read(f"B{i}", cell.read(f"A{i}", normed))
        return h


@dataclass(frozen=True)
class AuthorsMLP(ResidualMLP):
    """ResidualMLP with the authors' slow projection, of which half of the key and value outputs are never used.

    Only with these dead weights do the parameter counts of the paper's table come out. For training, take ResidualMLP:
    it computes the same function without them.
    """

    def unused(self, d: int) -> int:
        return 2 * self.blocks * (d + self.inner * d)


@dataclass(frozen=True)
class DeltaNet(_Base):
    """[q', k', v', b'] = F_t φ(q_t);  W_t by the delta rule from φ(k'), v', σ(b');  y_t = W_t φ(q')   (Delta Delta Net)"""

    title: ClassVar[str] = "Delta Net"

    def matrices(self, d: int) -> tuple[FastMatrix, ...]:
        return FastMatrix("F", 3 * d + 1, d), FastMatrix("W", d, d, query=False, programmed=False, rule=Delta())

    def step(self, cell: Cell) -> Tensor:
        d = cell.head_size
        q, k, v, b = cell.read("F", cell.query("F")).split((d, d, d, 1), dim=-1)
        return cell.read("W", q, Program(None, k, v, b.squeeze(-1)))


@dataclass(frozen=True)
class RNN(_Base):
    """y_t = W_t q_t + R_t softmax(y_{t-1})                                 (Delta RNN, version B)"""

    title: ClassVar[str] = "RNN"
    recurrent: ClassVar[bool] = True
    version: ClassVar[str] = "B"

    def matrices(self, d: int) -> tuple[FastMatrix, ...]:
        return FastMatrix("W", d, d), FastMatrix("R", d, d, query=False, key_map=softmax)

    def vectors(self, d: int) -> dict[str, int]:
        return {"y": d}

    def step(self, cell: Cell) -> Tensor:
        return cell.read("W", cell.query("W")) + cell.read("R", cell.previous("y"))


@dataclass(frozen=True)
class RNNVersionA(RNN):
    """y_t = softmax(W_t q_t + R_t y_{t-1})                                 (Delta RNN, version A)"""

    title: ClassVar[str] = "RNN (version A)"
    version: ClassVar[str] = "A"

    def matrices(self, d: int) -> tuple[FastMatrix, ...]:
        return FastMatrix("W", d, d), FastMatrix("R", d, d, query=False, key_map=softmax, query_map=identity)

    def step(self, cell: Cell) -> Tensor:
        return softmax(super().step(cell))


LSTM_GATES = ("u", "f", "o")


@dataclass(frozen=True)
class LSTM(_Base):
    """The fast LSTM with tied input and forget gates (Delta LSTM, version D):

    u = z_u + R_u s,  f = σ(z_f + R_f s),  o = σ(z_o + R_o s),  z_g = W_g q_g,  s = softmax(y_{t-1})
    c_t = f ⊙ c_{t-1} + (1 - f) ⊙ u,  y_t = o ⊙ c_t

    Differs from the paper: one query a gate instead of one for all; `shared_query=True` is the printed equation.
    """

    title: ClassVar[str] = "LSTM"
    recurrent: ClassVar[bool] = True
    version: ClassVar[str] = "D"
    recurrent_query_map: ClassVar = staticmethod(softmax)

    shared_query: bool = False

    def matrices(self, d: int) -> tuple[FastMatrix, ...]:
        pairs = [
            (
                FastMatrix(f"W_{g}", d, d, query=g == "u" or not self.shared_query),
                FastMatrix(f"R_{g}", d, d, query=False, key_map=softmax, query_map=self.recurrent_query_map),
            )
            for g in LSTM_GATES
        ]
        return tuple(matrix for pair in pairs for matrix in pair)

    def vectors(self, d: int) -> dict[str, int]:
        return {"y": d, "c": d}

    def step(self, cell: Cell) -> Tensor:
        y = cell.previous("y")
        z = [cell.read(f"W_{g}", cell.query("W_u" if self.shared_query else f"W_{g}")) for g in LSTM_GATES]
        r = [cell.read(f"R_{g}", y) for g in LSTM_GATES]
        y, c = lstm_cell(self.version, torch.stack(z, dim=-2), torch.stack(r, dim=-2), cell.previous("c"))
        cell.keep("c", c)
        return y


@dataclass(frozen=True)
class LSTMVersionA(LSTM):
    """As version B, but s = y_{t-1} and y_t = softmax(o ⊙ c_t): closest to the original LSTM."""

    title: ClassVar[str] = "LSTM (version A)"
    version: ClassVar[str] = "A"
    recurrent_query_map: ClassVar = staticmethod(identity)


@dataclass(frozen=True)
class LSTMVersionB(LSTM):
    """As version D, with u = σ(z_u + R_u s)."""

    title: ClassVar[str] = "LSTM (version B)"
    version: ClassVar[str] = "B"


@dataclass(frozen=True)
class LSTMVersionC(LSTM):
    """As version B, with y_t = o ⊙ c_t + z_u: a residual connection from the feedforward part."""

    title: ClassVar[str] = "LSTM (version C)"
    version: ClassVar[str] = "C"


LSTMS = (LSTM, LSTMVersionA, LSTMVersionB, LSTMVersionC)


def lstm_cell(version: str, z: Tensor, r: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The gates of the fast LSTM. z = W_t q_t and r = R_t s, both (..., 3, V) in the order u, f, o; c (..., V)."""
    u, f, o = (z + r).unbind(-2)
    f, o = f.sigmoid(), o.sigmoid()
    if version != "D":
        u = u.sigmoid()
    c = f * c + (1 - f) * u
    y = o * c
    if version == "A":
        y = softmax(y)
    if version == "C":
        y = y + z[..., 0, :]
    return y, c


def _precise(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _at_least_one(net: FastNet, **fields: int) -> None:
    for name, value in fields.items():
        if value < 1:
            raise InvalidInput(f"{type(net).__name__}: {name}={value}; use at least 1")


FAST: dict[str, type[FastNet]] = {
    "linear": Linear,
    "normalised_linear": NormalisedLinear,
    "mlp": MLP,
    "residual_mlp": ResidualMLP,
    "authors_mlp": AuthorsMLP,
    "delta_net": DeltaNet,
    "rnn": RNN,
    "rnn_a": RNNVersionA,
    "lstm": LSTM,
    "lstm_a": LSTMVersionA,
    "lstm_b": LSTMVersionB,
    "lstm_c": LSTMVersionC,
}
