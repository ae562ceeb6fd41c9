"""Where chance comes from: seeds derived from the run's seed, and the states of PyTorch's generators in a checkpoint."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from rfwp.train.distributed import World


def derived(*parts: int | str) -> int:
    """A seed for one purpose, from the run's seed and what it is for."""
    digest = hashlib.sha256(" ".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator_states(world: World) -> dict[str, Tensor]:
    """`rng.cpu.0`, `rng.cuda.0`, ...: the generators of every process, as bytes."""
    states = {"cpu": torch.get_rng_state()}
    if world.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(world.device)
    return {f"rng.{kind}.{rank}": s for kind, state in states.items() for rank, s in enumerate(world.gather(state))}


def restore_generators(states: Mapping[str, Tensor], world: World, seed: int) -> None:
    """The states as they were; a process or device that was not there before begins with `seed`."""
    torch.manual_seed(seed)
    if (state := states.get(f"rng.cpu.{world.rank}")) is not None:
        torch.set_rng_state(state)
    if world.device.type == "cuda" and (state := states.get(f"rng.cuda.{world.rank}")) is not None:
        torch.cuda.set_rng_state(state, world.device)
