"""Look inside a fast weight programmer while it reads: what it writes into its fast weights and reads from them at every step."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rfwp.errors import InvalidInput
from rfwp.fwp.composition import Composition
from rfwp.fwp.rules import read
from rfwp.fwp.scan import StepCell
from rfwp.fwp.types import FastMatrix, Program, State
from rfwp.layers.fwp import FWP
from rfwp.models.sequence import SequenceModel


@dataclass(frozen=True)
class MatrixTrace:
    """One fast matrix of a layer at every step, all heads: what was written to it, what it was then, what was read."""

    weights: Tensor  # (T, H, V, K), after the step's write
    keys: Tensor  # (T, H, K), after the feature map
    values: Tensor  # (T, H, V)
    queries: Tensor  # (T, H, K), after the feature map
    reads: Tensor  # (T, H, V)
    """W_t q_t"""
    betas: Tensor | None  # (T, H)
    """The write strength, from 0 to 1; None under a rule that has none."""

    @property
    def before(self) -> Tensor:
        """The fast weights that each step found: W_{t-1} (T, H, V, K)"""
        return torch.cat((torch.zeros_like(self.weights[:1]), self.weights[:-1]))

    @property
    def recalled(self) -> Tensor:
        """What stood under the key before the write: W_{t-1} k_t (T, H, V)"""
        return read(self.before, self.keys)

    @property
    def writes(self) -> Tensor:
        """u_t (T, H, V) with W_t = W_{t-1} + u_t ⊗ k_t: the value, or for the delta rule β (v - W_{t-1} k)"""
        return self.values if self.betas is None else self.betas.unsqueeze(-1) * (self.values - self.recalled)

    def shares(self, step: int) -> Tensor:
        """How much of what a step read was written at each step up to it: (step + 1, H), with sum 1 over the steps.

        W_t q_t = Σ_i u_i (k_i · q_t), of which the part of step i along W_t q_t counts. A later write that takes back an
        earlier one has a negative share. Zero where nothing was read.
        """
        until = slice(step + 1)
        match = torch.einsum("thk,hk->th", self.keys[until], self.queries[step])
        along = torch.einsum("thv,hv->th", self.writes[until], self.reads[step])
        size = self.reads[step].square().sum(-1)
        return torch.where(size > 0, match * along / size, 0.0)


@dataclass(frozen=True)
class LayerTrace:
    """One layer at every step."""

    composition: Composition
    matrices: Mapping[str, MatrixTrace]
    outputs: Tensor  # (T, H, V)
    """The fast net's output y_t, before the output projection."""


@dataclass(frozen=True)
class Trace:
    """A model that reads T tokens."""

    tokens: Tensor  # (T,)
    logits: Tensor  # (T, outputs)
    layers: tuple[LayerTrace, ...]

    @property
    def probabilities(self) -> Tensor:
        """What the model expects at every step: (T, outputs)"""
        return self.logits.softmax(-1)


@torch.no_grad()
def trace(model: SequenceModel, tokens: Tensor | Sequence[int]) -> Trace:
    """Let a model read tokens (T,) from an empty state and record every step of every layer.

    >>> steps = rfwp.trace(model, task.encode("x = 3 ; x ++ ; print x ;"))
    >>> steps.probabilities[-1].argmax()                  # what it says at the end
    >>> steps.layers[0].matrices["W"].betas[4]            # how strongly each head of layer 0 writes at step 4
    >>> steps.layers[0].matrices["W"].weights[4, 2]       # the fast weights of head 2 then

    It runs the reference, one step at a time, so its logits are the model's up to rounding. The model is not changed.
    """
    recorded, recorders = _recorded(model)
    tokens = torch.as_tensor(tokens, device=next(model.parameters()).device)
    if tokens.dim() != 1:
        raise InvalidInput(f"trace: tokens have shape {tuple(tokens.shape)}, expected (T,): one sequence")
    logits, _ = recorded(tokens.unsqueeze(0))
    return Trace(tokens, logits.squeeze(0), tuple(recorder.record for recorder in recorders))


def _recorded(model: SequenceModel) -> tuple[SequenceModel, list["_Recorder"]]:
    """The same model, its weights shared, with a recorder in the place of each layer."""
    if not isinstance(model, SequenceModel):
        raise InvalidInput(f"trace takes a SequenceModel, saw {type(model).__name__}; for example rfwp.load('code-execution-5')")
    blocks = getattr(model.core, "blocks", ())
    other = next((block.layer for block in blocks if not isinstance(block.layer, FWP)), None if blocks else model.core)
    if other is not None:
        raise InvalidInput(
            f"trace shows fast weights, and this model has none: its layers are {type(other).__name__}; "
            "take a fast weight programmer, for example code-execution-5/delta-rnn"
        )
    twin = copy.deepcopy(model, memo={id(parameter): parameter for parameter in model.parameters()}).eval()
    recorders = []
    for block in twin.core.blocks:  # type: ignore[union-attr]
        block.layer = _Recorder(block.layer)
        recorders.append(block.layer)
    return twin, recorders


class _Recorder(nn.Module):
    """A layer that runs step by step and keeps all it does."""

    record: LayerTrace

    def __init__(self, layer: FWP):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, state: State | None, reset: Tensor | None) -> tuple[Tensor, State]:
        layer = self.layer
        state = layer.initial_state(x.shape[0])
        u, _ = layer.slow(x, state, None)
        y, matrices = _scan(layer, u.to(torch.promote_types(u.dtype, torch.float32)), state)
        self.record = LayerTrace(layer.composition, matrices, y.squeeze(0))
        y = y.flatten(-2).to(u.dtype)
        return layer.out(y * layer.head_size**-0.5 if layer.scale_output else y), state


def _scan(layer: FWP, u: Tensor, state: State) -> tuple[Tensor, dict[str, MatrixTrace]]:
    """`rfwp.fwp.scan` with every step kept."""
    matrices = {matrix.name: matrix for matrix in layer.composition.fast.matrices(layer.head_size)}
    parameters = dict(layer.fast.items())
    reads: dict[str, list[_Read]] = {name: [] for name in matrices}
    outputs = []
    for t in range(u.shape[1]):
        u_t = layer.slow.feed_back(u[:, t], state["y"]) if layer.composition.slow.feeds_back else u[:, t]
        cell = _RecordingCell(layer.composition, u_t, state, layer.head_size, parameters, matrices)
        y = layer.composition.fast.step(cell)
        state = cell.new | ({"y": y} if "y" in state else {})
        outputs.append(y)
        for name, done in cell.reads.items():
            reads[name].append(done)
    return torch.stack(outputs, dim=1), {name: _stack(steps) for name, steps in reads.items()}


_Read = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]
"""The parts of a `MatrixTrace`, of one step."""


class _RecordingCell(StepCell):
    """A step of the reference that keeps what was written and read."""

    def __init__(
        self,
        composition: Composition,
        u: Tensor,
        state: State,
        head_size: int,
        parameters: Mapping[str, Tensor],
        matrices: Mapping[str, FastMatrix],
    ):
        super().__init__(composition, u, state, head_size, parameters)
        self.matrices, self.reads = matrices, dict[str, _Read]()

    def read(self, name: str, query: Tensor, program: Program | None = None) -> Tensor:
        program, matrix = program or self.programs[name], self.matrices[name]
        key, query = self.composition.map_key(matrix, program.key), self.composition.map_query(matrix, query)
        beta = None if program.beta is None else program.beta.sigmoid()
        W = self.composition.rule_of(matrix).update(self.old[name], key, program.value, beta)
        self.new[name] = W
        y = read(W, query)
        self.reads[name] = (W, key, program.value, query, y, beta)
        return y


def _stack(steps: list[_Read]) -> MatrixTrace:
    """One row of the batch, all steps."""
    weights, keys, values, queries, reads, betas = zip(*steps, strict=True)
    return MatrixTrace(
        weights=torch.cat(weights),
        keys=torch.cat(keys),
        values=torch.cat(values),
        queries=torch.cat(queries),
        reads=torch.cat(reads),
        betas=None if betas[0] is None else torch.cat(betas),
    )
