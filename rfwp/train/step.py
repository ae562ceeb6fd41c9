"""One training step as fast as it goes: loss, gradients, clipping and optimiser, compiled and replayed where that pays.

What is done where:
  precision   tf32 and bf16 allow TF32 for the time of a step and put PyTorch's switches back; bf16 is also autocast
              around the loss, so weights, gradients and optimiser stay in float32.
  compile     "blocks" compiles `Block.forward` once for all blocks of one shape, which takes seconds and not minutes;
              "lengths" does so once for all lengths, and with resets once for all numbers of rows too, where "blocks" does it
              for each; "model" compiles the whole loss.
              Nothing is compiled in a model without blocks, such as an LSTM.
  cuda_graph  the first steps at a new shape are ordinary steps on a side stream; then one whole step, optimiser
              included, is recorded, and from there on it is replayed: one launch a step, whatever the model.
  lengths     with `pad` the time dimension is filled up to `bucket(T)`, so that few shapes are compiled and recorded.
  parts       a batch may be cut into parts that go one after another; their losses and gradients add up to one step.
  overflow    with clipping and a fused optimiser, a step whose gradient has no finite norm leaves weights and optimiser as they
              are, and is counted.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rfwp.errors import InvalidInput, unknown
from rfwp.layers import Block

Precision = Literal["fp32", "tf32", "bf16"]
Region = Literal["no", "blocks", "lengths", "model"]

WARM_UP = 3
"""Ordinary steps at a new shape before it is recorded: kernels are compiled and tuned, libraries make their handles."""
GRAPHS = 1024
"""Compiled graphs that one function may have: every bucket, kind of block and precision needs its own."""


def bucket(T: int) -> int:
    """The next of 8, 16, 24, ... 128, 144, ... 256, 288, ...: eight lengths a doubling, so padding adds an eighth at most.

    >>> [bucket(T) for T in (1, 9, 129, 450, 513)]
    [8, 16, 144, 480, 576]
    """
    if T < 1:
        raise InvalidInput(f"bucket: T={T}; a sequence has at least one step")
    step = max(8, 1 << max(0, (T - 1).bit_length() - 4))
    return -(-T // step) * step


class TrainStep:
    """θ ← optimiser(θ, clip(∇ loss(θ; batch)))

    >>> optimiser = torch.optim.Adam(model.parameters(), lr=3e-4, fused=True)
    >>> step = TrainStep(model, optimiser, lambda model, x, y: model.loss(x, y)[0], precision="tf32", cuda_graph=True)
    >>> loss = step(tokens, targets)                # a tensor on the model's device, without waiting for it

    The batch is any number of tensors. `pad` gives one filling value a tensor, for example pad=(0, -1) for tokens and
    targets where -1 is ignored: their second dimension is filled up to `bucket(T)`. A causal model then has the same
    loss. Without `pad` every length is a shape of its own.
    With parts=n every tensor of the batch is cut into n along its first dimension; a tensor without dimensions goes to each
    part as it is. loss_fn gives a part's share of the loss, and the shares add up. `reduce` is called between gradients and
    clipping: there several processes add up theirs.
    `state` holds tensors, batch first, that each step reads and replaces, such as what the segment before has left: loss_fn
    then gets a part's rows of them as its last argument, a tuple, and gives back its loss and what comes in their place. They
    stay where they are in memory, so recordings find them, and the caller may set them to zero between steps.
    `left_out` says how many steps were left out since it was asked last, because their gradients overflowed: only with `clip`.
    The learning rate may change from step to step, also by a scheduler; with cuda_graph the optimiser's other numbers
    are fixed at the first recording, and gradients are not to be read from outside.
    """

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        loss_fn: Callable[..., Any],
        *,
        precision: Precision = "fp32",
        compile: bool | Region = False,  # noqa: A002
        cuda_graph: bool = False,
        clip: float | None = None,
        pad: Sequence[float] | None = None,
        parts: int = 1,
        reduce: Callable[[], None] | None = None,
        state: Sequence[Tensor] | None = None,
        compiler: str | Callable[..., Any] = "inductor",
    ):
        if precision not in get_args(Precision):
            raise unknown("precision", precision, get_args(Precision))
        region: Region = ("blocks" if compile else "no") if isinstance(compile, bool) else compile
        if region not in get_args(Region):
            raise unknown("region to compile", region, get_args(Region))
        if clip is not None and not clip > 0:
            raise InvalidInput(f"TrainStep: clip={clip} would stop all learning; use a positive norm, or None for no clipping")
        if parts < 1:
            raise InvalidInput(f"TrainStep: parts={parts}; a batch has at least one part")
        if reduce is not None and cuda_graph:
            raise InvalidInput("TrainStep: reduce and cuda_graph exclude each other; use cuda_graph=False")
        self.model, self.optimiser, self.loss_fn = model, optimiser, loss_fn
        self.parts, self.reduce, self.state = parts, reduce, state
        self.precision, self.region, self.cuda_graph, self.clip, self.pad = precision, region, cuda_graph, clip, pad
        self.device = next(model.parameters()).device
        self._overflows = torch.zeros((), device=self.device)
        self._blocks: list[Block] = []
        if region in ("blocks", "lengths"):
            self._blocks = [m for m in model.modules() if isinstance(m, Block)]
        compiled = partial(torch.compile, fullgraph=True, dynamic=None if region == "lengths" else False, backend=compiler)
        self._forwards = {kind: compiled(kind.forward) for kind in {type(block) for block in self._blocks}}
        if region == "model":
            self.loss_fn = compiled(loss_fn)
        if cuda_graph and self.device.type != "cuda":
            where = f"this one is on {self.device}"
            raise InvalidInput(f"TrainStep: cuda_graph=True needs a model on a GPU, {where}; use cuda_graph=False")
        self._replay = Replay(self.device, optimiser, self._step) if cuda_graph else None

    def __call__(self, *batch: Tensor) -> Tensor:
        """Take one step and give back its loss, detached."""
        batch = self._padded(batch)
        with switched(self.precision), self._compiled_blocks():
            if self._replay is not None:
                return self._replay(*batch)
            return self._step(*(x.to(self.device, non_blocking=True) for x in batch))

    def _step(self, *batch: Tensor) -> Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        parts, states = self._cut(batch), self._cut(tuple(self.state or ()))
        losses = [self._gradients(part, state) for part, state in zip(parts, states, strict=True)]
        if self.reduce is not None:
            self.reduce()
        if self.clip is not None:
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip, foreach=True)
            if self.optimiser.defaults.get("fused"):
                # where optimisers look for what a gradient scaler has found: they then leave the step out
                self.optimiser.found_inf = self._overflow(norm)  # type: ignore[attr-defined]
        self.optimiser.step()
        self.optimiser.found_inf = None  # type: ignore[attr-defined]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _overflow(self, norm: Tensor) -> Tensor:
        """1 for a gradient without a finite norm, which would spoil all weights at once; counted."""
        # of a model in parts
        whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        overflow = (~whole.isfinite()).float()
        self._overflows += overflow
        return overflow

    def left_out(self) -> int:
        """Steps since the last call that changed nothing, because their gradients had no finite norm; waits for the device."""
        count = int(self._overflows.item())
        self._overflows.zero_()
        return count

    def _gradients(self, part: tuple[Tensor, ...], state: tuple[Tensor, ...]) -> Tensor:
        """Add the gradients of one part to those that are there, and replace its state."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            result = self.loss_fn(self.model, *part) if self.state is None else self.loss_fn(self.model, *part, state)
        loss, new = (result, ()) if self.state is None else result
        if not isinstance(loss, Tensor) or loss.dim() != 0:
            seen = f"a tensor {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise InvalidInput(f"TrainStep: loss_fn gave {seen}, expected one number as a tensor; try .mean()")
        loss.backward()
        # not before: the backward pass still needs the old one
        for old, tensor in zip(state, new, strict=True):
            old.copy_(tensor.detach())
        return loss.detach()

    def _cut(self, batch: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
        if self.parts == 1:
            return [batch]
        for x in batch:
            if x.dim() and x.shape[0] % self.parts:
                raise InvalidInput(f"TrainStep: {x.shape[0]} rows cannot be cut into {self.parts} equal parts")
        cut = [x.chunk(self.parts) if x.dim() else (x,) * self.parts for x in batch]
        return [tuple(x[n] for x in cut) for n in range(self.parts)]

    def _padded(self, batch: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self.pad is None:
            return batch
        if len(self.pad) != len(batch):
            raise InvalidInput(f"TrainStep: pad has {len(self.pad)} values for {len(batch)} tensors; give one a tensor")
        for x in batch:
            if x.dim() != 2:
                raise InvalidInput(f"TrainStep: pad needs tensors of (B, T), saw one of {tuple(x.shape)}")
        return tuple(F.pad(x, (0, bucket(x.shape[1]) - x.shape[1]), value=v) for x, v in zip(batch, self.pad, strict=True))

    def _run_block(self, block: Block, x: Tensor, state: Any = None, reset: Tensor | None = None) -> Any:
        if self.region == "lengths":
            torch._dynamo.maybe_mark_dynamic(x, 1)
            if reset is not None:
                # sequences that share rows: their number varies too
                torch._dynamo.maybe_mark_dynamic(x, 0)
                torch._dynamo.maybe_mark_dynamic(reset, [0, 1])
        return self._forwards[type(block)](block, x, state, reset)

    @contextmanager
    def _compiled_blocks(self) -> Iterator[None]:
        """The compiled forward pass for the time of a step; outside of steps the model is as it was."""
        if self.region == "no":
            yield
            return
        for block in self._blocks:
            block.forward = partial(self._run_block, block)  # type: ignore[method-assign]
        # every bucket and kind of block is meant to have a graph; PyTorch would give up after eight
        many = torch._dynamo.config.patch(recompile_limit=GRAPHS, accumulated_recompile_limit=GRAPHS)
        try:
            with many, warnings.catch_warnings():
                # the compiler looks at .grad of a block's input
                warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
                yield
        finally:
            for block in self._blocks:
                del block.forward


@dataclass
class Recording:
    """What belongs to one shape of the batch: the buffers that a replay reads, the loss that it writes."""

    inputs: tuple[Tensor, ...]
    steps: int = 0
    graph: torch.cuda.CUDAGraph | None = None
    loss: Tensor | None = None


class Replay:
    """Records `step` as a CUDA graph for each shape of its batch.

    All steps count: the ones that warm up are steps of the training too, so the losses are those of plain steps. Dropout
    stays random, since a recording draws from PyTorch's default generator, whose offset every replay moves on.
    Recordings share their memory: each reads its own inputs, the weights and the optimiser's state, and nothing else.
    """

    def __init__(self, device: torch.device, optimiser: torch.optim.Optimizer, step: Callable[..., Tensor]):
        self.device, self.optimiser, self.step = device, optimiser, step
        self.recordings: dict[tuple[Any, ...], Recording] = {}
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.rates = hold_rates(optimiser, device)

    def __call__(self, *batch: Tensor) -> Tensor:
        self._update_rates()
        recording = self._recording(batch)
        for held, x in zip(recording.inputs, batch, strict=True):
            held.copy_(x, non_blocking=True)
        if recording.steps < WARM_UP:
            recording.steps += 1
            return self._on_the_side(recording)
        if recording.graph is None:
            self._record(recording)
        assert recording.graph is not None and recording.loss is not None
        recording.graph.replay()
        return recording.loss.clone()  # the next replay writes over it

    def _recording(self, batch: tuple[Tensor, ...]) -> Recording:
        key = tuple((x.shape, x.dtype) for x in batch)
        if key not in self.recordings:
            self.recordings[key] = Recording(tuple(torch.empty(x.shape, dtype=x.dtype, device=self.device) for x in batch))
        return self.recordings[key]

    def _on_the_side(self, recording: Recording) -> Tensor:
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            loss = self.step(*recording.inputs)
        current.wait_stream(self.stream)
        return loss.clone()

    def _record(self, recording: Recording) -> None:
        # gradients must be allocated while recording, so that replays find them
        self.optimiser.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        # thread_local: a data loader may pin memory in its own thread meanwhile
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            recording.loss = self.step(*recording.inputs)
        recording.graph = graph

    def _update_rates(self) -> None:
        """A recording reads the learning rate from a tensor; a number that somebody put in its place is moved there."""
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            if group["lr"] is not rate:
                rate.fill_(float(group["lr"]))
                group["lr"] = rate


def hold_rates(optimiser: torch.optim.Optimizer, device: torch.device) -> list[Tensor]:
    """Make the optimiser fit for recording: learning rates and step counts on the device. The rates' tensors come back."""
    for group in optimiser.param_groups:
        if "capturable" not in group:
            raise InvalidInput(f"TrainStep: {type(optimiser).__name__} cannot be recorded in a CUDA graph; use Adam or AdamW")
        group["capturable"] = True
        group["lr"] = torch.tensor(float(group["lr"]), device=device)
    for state in optimiser.state.values():
        if "step" in state:
            state["step"] = torch.as_tensor(state["step"], dtype=torch.float32, device=device)
    return [group["lr"] for group in optimiser.param_groups]


@contextmanager
def switched(precision: Precision) -> Iterator[None]:
    """float32 products in TF32 or in full, also inside cuDNN, for the time of a step."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@contextmanager
def precision_of(precision: Precision, device: torch.device) -> Iterator[None]:
    """Everything inside in the precision of a training."""
    with switched(precision), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
        yield
