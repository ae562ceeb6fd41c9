"""Look inside a fast weight programmer while it reads: what it writes into its fast weights and reads from them at every step."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from rfwp.errors import InvalidInput
from rfwp.fwp.composition import Composition
from rfwp.fwp.rules import forget_rows, read
from rfwp.fwp.scan import StepCell
from rfwp.fwp.types import FastMatrix, Program, State
from rfwp.layers.fwp import FWP
from rfwp.models.agent import Agent
from rfwp.models.sequence import SequenceModel

M = TypeVar("M", bound=SequenceModel | Agent)


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
    start: Tensor  # (1, H, V, K)
    """What the first step found: zeros, unless the model went on from a state."""
    restarts: Tensor  # (T,)
    """Whether the memory was emptied before the step."""

    @property
    def before(self) -> Tensor:
        """The fast weights that each step found: W_{t-1} (T, H, V, K)"""
        return forget_rows(torch.cat((self.start, self.weights[:-1])), self.restarts)

    def change(self, step: int) -> Tensor:
        """W_t - W_{t-1} of one step (H, V, K)"""
        if bool(self.restarts[step]):
            return self.weights[step]
        return self.weights[step] - (self.weights[step - 1] if step else self.start[0])

    @property
    def recalled(self) -> Tensor:
        """What stood under the key before the write: W_{t-1} k_t (T, H, V)"""
        return read(self.before, self.keys)

    @cached_property
    def writes(self) -> Tensor:
        """u_t (T, H, V) with W_t = W_{t-1} + u_t ⊗ k_t: the value, or for the delta rule β (v - W_{t-1} k)"""
        return self.values if self.betas is None else self.betas.unsqueeze(-1) * (self.values - self.recalled)

    def shares(self, step: int) -> Tensor:
        """How much of what a step read was written at each step up to it: (step + 1, H), with sum 1 over the steps.

        W_t q_t = Σ_i u_i (k_i · q_t), of which the part of step i along W_t q_t counts. A later write that takes back an
        earlier one has a negative share. Zero where nothing was read, and for what was written before the memory was emptied.
        What stood in the memory at the start has the rest of the sum.
        """
        until = slice(step + 1 or None)
        return shares(self.keys[until], self.writes[until], self.restarts[until], self.queries[step], self.reads[step])


def shares(keys: Tensor, writes: Tensor, restarts: Tensor, query: Tensor, read: Tensor) -> Tensor:
    """How much of a read (H, V) under a query (H, K) comes from each write: keys (T, H, K), writes (T, H, V) -> (T, H)"""
    match = torch.einsum("thk,hk->th", keys, query)
    along = torch.einsum("thv,hv->th", writes, read)
    size = read.square().sum(-1)
    emptied = restarts.long()
    # emptied after that write
    gone = emptied.sum() > emptied.cumsum(0)
    return torch.where(gone.unsqueeze(-1) | (size <= 0), 0.0, match * along / size)


@dataclass(frozen=True)
class LayerTrace:
    """One layer at every step."""

    composition: Composition
    matrices: Mapping[str, MatrixTrace]
    outputs: Tensor  # (T, H, V)
    """The fast net's output y_t, before the output projection."""


def join(parts: Sequence[LayerTrace]) -> LayerTrace:
    """One layer over stretches of time that follow each other."""
    first = parts[0]
    matrices = {name: _join([part.matrices[name] for part in parts]) for name in first.matrices}
    return LayerTrace(first.composition, matrices, torch.cat([part.outputs for part in parts]))


def _join(parts: Sequence[MatrixTrace]) -> MatrixTrace:
    tensors = {field.name: [getattr(part, field.name) for part in parts] for field in fields(MatrixTrace)}
    together = {name: None if part[0] is None else torch.cat(part) for name, part in tensors.items()}
    return MatrixTrace(**together | {"start": parts[0].start})  # type: ignore[arg-type]


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
    if not isinstance(model, SequenceModel):
        raise InvalidInput(f"trace takes a SequenceModel, saw {type(model).__name__}; for example rfwp.load('code-execution-5')")
    recorded = Recorded(model)
    tokens = torch.as_tensor(tokens, device=next(model.parameters()).device)
    if tokens.dim() != 1:
        raise InvalidInput(f"trace: tokens have shape {tuple(tokens.shape)}, expected (T,): one sequence")
    logits, _ = recorded.model(tokens.unsqueeze(0))
    return Trace(tokens, logits.squeeze(0), recorded.layers)


class Recorded(Generic[M]):
    """A twin of a model, with the same weights, that remembers what every layer did when it was last called on one row.

    >>> recorded = Recorded(agent)
    >>> output, state = recorded.model.step(observation, reward, state, done)
    >>> recorded.layers[0].matrices["W"].betas            # of this step
    """

    def __init__(self, model: M):
        check_fast_weights(model)
        # the weights are shared
        self.model: M = copy.deepcopy(model, memo={id(parameter): parameter for parameter in model.parameters()})
        self.model.eval()
        self._recorders = []
        for block in self.model.core.blocks:  # type: ignore[union-attr]
            block.layer = _Recorder(block.layer)
            self._recorders.append(block.layer)

    @property
    def layers(self) -> tuple[LayerTrace, ...]:
        return tuple(recorder.record for recorder in self._recorders)


def check_fast_weights(model: SequenceModel | Agent) -> None:
    """An error in one line for a model that has none."""
    blocks = getattr(model.core, "blocks", ())
    other = next((block.layer for block in blocks if not isinstance(block.layer, FWP)), None if blocks else model.core)
    if other is not None:
        raise InvalidInput(
            f"trace shows fast weights, and this model has none: its layers are {type(other).__name__}; "
            "take a fast weight programmer, for example code-execution-5/delta-rnn"
        )


class _Recorder(nn.Module):
    """A layer that runs step by step and keeps all it does."""

    record: LayerTrace

    def __init__(self, layer: FWP):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, state: State | None, reset: Tensor | None) -> tuple[Tensor, State]:
        layer = self.layer
        state = layer.initial_state(x.shape[0]) if state is None else state
        u, own = layer.slow(x, state, reset)
        y, new, matrices = _scan(layer, u.to(torch.promote_types(u.dtype, torch.float32)), state, reset)
        self.record = LayerTrace(layer.composition, matrices, y.squeeze(0))
        y = y.flatten(-2).to(u.dtype)
        return layer.out(y * layer.head_size**-0.5 if layer.scale_output else y), new | own


def _scan(layer: FWP, u: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State, dict[str, MatrixTrace]]:
    """`rfwp.fwp.scan` with every step kept."""
    start, restarts = state, u.new_zeros(u.shape[1], dtype=torch.bool) if reset is None else reset[0]
    matrices = {matrix.name: matrix for matrix in layer.composition.fast.matrices(layer.head_size)}
    parameters = dict(layer.fast.items())
    reads: dict[str, list[_Read]] = {name: [] for name in matrices}
    outputs = []
    for t in range(u.shape[1]):
        if reset is not None:
            state = {name: forget_rows(s, reset[:, t]) for name, s in state.items()}
        u_t = layer.slow.feed_back(u[:, t], state["y"]) if layer.composition.slow.feeds_back else u[:, t]
        cell = _RecordingCell(layer.composition, u_t, state, layer.head_size, parameters, matrices)
        y = layer.composition.fast.step(cell)
        state = cell.new | ({"y": y} if "y" in state else {})
        outputs.append(y)
        for name, done in cell.reads.items():
            reads[name].append(done)
    return torch.stack(outputs, dim=1), state, {name: _stack(steps, start[name], restarts) for name, steps in reads.items()}


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


def _stack(steps: list[_Read], start: Tensor, restarts: Tensor) -> MatrixTrace:
    """One row of the batch, all steps."""
    weights, keys, values, queries, reads, betas = zip(*steps, strict=True)
    return MatrixTrace(
        weights=torch.cat(weights),
        keys=torch.cat(keys),
        values=torch.cat(values),
        queries=torch.cat(queries),
        reads=torch.cat(reads),
        betas=None if betas[0] is None else torch.cat(betas),
        start=start,
        restarts=restarts,
    )
