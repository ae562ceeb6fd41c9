"""How fast a run goes is no part of its config: these choices change rounding and the draws of dropout at most."""

from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch

from rfwp.config import BlocksConfig, FWPConfig, LSTMConfig, RunConfig
from rfwp.errors import InvalidInput, unknown, usable_device
from rfwp.train.distributed import World
from rfwp.train.step import Region

Compile = Literal["auto", "no", "blocks", "lengths"]
FEW_LENGTHS = 4
"""Up to so many lengths of batches, blocks are compiled for each of them; more take longer to compile than they save."""
WORTH_PACKING = 0.25
"""The part of all steps, padding included, that packing must save to be taken by itself."""


@dataclass(frozen=True)
class Speed:
    """auto: both on a GPU, neither on the CPU; blocks for each length or, of many, for all at once; no CUDA graphs with several
    processes, or with blocks that are computed twice."""

    compile: Compile = "auto"
    cuda_graph: Literal["auto"] | bool = "auto"
    checkpoint_blocks: bool = False
    """Keep the inputs of blocks only and compute the rest again in the backward pass: memory for time."""
    shard: bool = False
    """Part weights, gradients and the optimiser's state over the processes, where there are several."""
    pack: Literal["auto"] | bool = "auto"
    """Several sequences of a batch in one row, in place of padding; auto: where that saves a quarter of the steps of fast weight
    programmers. Other layers are slower with resets in a row."""

    def resolve(self, world: World, lengths: int = 1) -> tuple[Region, bool]:
        """What is compiled, and whether steps are replayed; `lengths`: how many the batches have, packed ones shapes."""
        if self.compile not in get_args(Compile):
            raise unknown("choice of compile", self.compile, get_args(Compile))
        self._check_switch("cuda_graph")
        gpu = world.device.type == "cuda"
        if self.cuda_graph is True and world.size > 1:
            raise InvalidInput("cuda_graph=True works in one process only; leave it on auto")
        if self.cuda_graph is True and self.checkpoint_blocks:
            raise InvalidInput("cuda_graph=True and checkpoint_blocks exclude each other; leave one of them away")
        if self.cuda_graph is True and not gpu:
            raise InvalidInput(f"cuda_graph=True needs a GPU, and this run is on {world.device}; leave it on auto")
        best = ("blocks" if lengths <= FEW_LENGTHS else "lengths") if gpu else "no"
        region = best if self.compile == "auto" else self.compile
        alone = world.size == 1 and not self.checkpoint_blocks
        graph = gpu and alone if self.cuda_graph == "auto" else self.cuda_graph
        return cast(Region, region), graph

    def packs(self, config: RunConfig, world: World, saved: float) -> bool:
        """Whether sequences share rows; `saved`: the part of all steps, padding included, that it would save."""
        self._check_switch("pack")
        core, parts = config.model.core, config.train.accumulate
        if self.pack is True and parts > 1:
            raise InvalidInput(f"pack=True does not go with train.accumulate={parts} parts of a batch; leave pack on auto")
        if self.pack is True and isinstance(core, LSTMConfig) and self.resolve(world)[1]:
            raise InvalidInput("pack=True cuts an LSTM at every reset, which CUDA graphs cannot record; leave pack on auto")
        if self.pack == "auto":
            fast_weights = isinstance(core, BlocksConfig) and isinstance(core.layer, FWPConfig)
            return fast_weights and parts == 1 and saved >= WORTH_PACKING
        return self.pack

    def _check_switch(self, name: str) -> None:
        """The command line's words are none of Python's: "no" would count as true."""
        value = getattr(self, name)
        if value != "auto" and not isinstance(value, bool):
            raise InvalidInput(f"{name}={value!r}; use True, False or 'auto'")


def find_device(name: str | torch.device) -> torch.device:
    """auto: a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = usable_device(name)
    if device.type == "meta":
        raise InvalidInput("device 'meta' has no values to train; use 'cpu' or 'cuda'")
    return device
