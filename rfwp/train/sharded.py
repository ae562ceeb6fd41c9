"""Models that are too large for one GPU: every process holds a part of all weights and of the optimiser's state (FSDP).

>>> world = join(device)                                    # under torchrun
>>> model = shard(checkpoint_blocks(model), world)           # from the CPU: a whole model may be too large for the device
>>> optimiser = make_optimiser(model, config)               # after sharding: it holds parts too
>>> save_sharded(run / "last", model, optimiser, {"step": 7}, world)
>>> found = load_sharded(run / "last", model, optimiser, world)     # on any number of processes

A checkpoint is a folder that all processes write into, each its own part. It is moved into place by a rename when all parts and
state.json, which has their checksums, are on the disk; so the folder must be on a disk that all machines share.
"""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from rfwp.errors import InvalidFile, InvalidInput
from rfwp.layers import Block
from rfwp.models import SequenceModel
from rfwp.models.core import Stack
from rfwp.train.checkpoint import PREVIOUS, STATE, Damaged, sync, write_file
from rfwp.train.distributed import World
from rfwp.train.optim import PREFIX, optimiser_tensors, restore_optimiser

WEIGHT, EXTRA = "model.", "extra."
"""Names in a checkpoint: weights, the optimiser's state (`adam.`), and what the caller adds."""


@dataclass(frozen=True)
class Loaded:
    """What a checkpoint holds beside weights and optimiser."""

    state: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)


def checkpoint_blocks(model: SequenceModel, on: bool = True) -> SequenceModel:
    """Keep the inputs of blocks only and compute the rest again in the backward pass: memory for time."""
    if not isinstance(model.core, Stack):
        raise InvalidInput(f"checkpoint_blocks: the core is {type(model.core).__name__} and has no blocks; leave it off")
    model.core.checkpoint_blocks = on
    return model


def shard(model: SequenceModel, world: World) -> SequenceModel:
    """Part the weights over the devices of all processes, in place: blocks one by one, then what is left. One process keeps them.

    Gradients are added up over the processes in the backward pass, so a loss is this process's share of it, and
    `World.sum_gradients` is not called.
    """
    if world.size == 1:
        return model.to(world.device)
    # nothing in rfwp changes what a module gives back
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    mesh = init_device_mesh(world.device.type, (world.size,))
    for module in [*(m for m in model.modules() if isinstance(m, Block)), model]:
        fully_shard(module, mesh=mesh)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
    # the weights of the embedding and the head are gathered for these, as for a call of the model
    for method in ("loss", "hidden", "logits", "nll"):
        register_fsdp_forward_method(model, method)
    return model


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights as one process would have them, on the CPU; all processes call this, one after another tensor is gathered."""
    return {name: _whole(tensor.detach()).cpu() for name, tensor in model.state_dict().items()}


# --- Checkpoints ---


def save_sharded(
    path: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    state: Mapping[str, Any],
    world: World,
    tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint as `path`; what stood there becomes `previous` beside it. A failure leaves both as they were.

    state    counters and numbers, for JSON; those of the first process count
    tensors  further tensors, the same in all processes, such as the states of all random generators
    """
    new = path.with_name(f".{path.name}-new")
    _together(world, path, lambda: _prepare(new) if world.first else None)
    parts = {f"{WEIGHT}{name}": tensor.detach() for name, tensor in model.state_dict().items()}
    parts |= optimiser_tensors(model, optimiser) | {f"{EXTRA}{name}": tensor for name, tensor in (tensors or {}).items()}
    try:
        writer = dcp.FileSystemWriter(new, single_file_per_rank=True, sync_files=True)
        with _no_warning():
            _together(world, path, lambda: dcp.save(parts, storage_writer=writer, no_dist=world.size == 1))
        # each process reads what it has just written, which is still in its machine's memory
        digests = _together(world, path, lambda: {p.name: _digest(p) for p in _own_files(new, world)})
        files = {name: digest for part in digests for name, digest in part.items()}
        rates = [float(group["lr"]) for group in optimiser.param_groups]
        content = {"state": dict(state), "rates": rates, "processes": world.size, "files": files}
        _together(world, path, lambda: _publish(new, path, content) if world.first else None)
    finally:
        if world.first:
            shutil.rmtree(new, ignore_errors=True)


def load_sharded(
    path: Path,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    world: World,
    say: Callable[[str], None] = lambda line: None,
) -> Loaded | None:
    """Weights and optimiser from `path`, or from `previous` beside it if that one is damaged; None if neither is there.

    The number of processes may be another than when it was written. Damage is said, and an error if nothing whole is left.
    """
    problems = []
    for folder in (path, path.with_name(PREVIOUS)):
        if not folder.exists():
            continue
        try:
            content = _check(folder, world)
        except Damaged as problem:
            problems.append(f"{folder} is damaged ({problem})")
            continue
        if problems and world.first:
            say(f"{'; '.join(problems)}; using {folder}")
        return _read(folder, content, model, optimiser, world)
    if problems:
        raise InvalidFile(f"{'; '.join(problems)}, and no other checkpoint is there; delete {path.parent} to start again")
    return None


def _read(folder: Path, content: dict[str, Any], model: nn.Module, optimiser: torch.optim.Optimizer, world: World) -> Loaded:
    reader = dcp.FileSystemReader(folder)
    saved = {
        name: about
        for name, about in reader.read_metadata().state_dict_metadata.items()
        if isinstance(about, TensorStorageMetadata)
    }
    places = {f"{WEIGHT}{name}": tensor.detach() for name, tensor in model.state_dict().items()}
    expected = {name: tuple(tensor.shape) for name, tensor in places.items()}
    found = {name: tuple(about.size) for name, about in saved.items() if name.startswith(WEIGHT)}
    if expected != found:
        name = min(name for name in {**expected, **found} if expected.get(name) != found.get(name))
        shapes = f"{found.get(name, 'nothing')} there and {expected.get(name, 'nothing')} in the model"
        raise InvalidFile(f"{folder} is of another model: {name.removeprefix(WEIGHT)} is {shapes}")
    parameters = dict(model.named_parameters())
    for name, about in saved.items():
        if not name.startswith(WEIGHT):
            _, _, parameter = name.removeprefix(PREFIX).partition(".")
            places[name] = _place(about, parameters.get(parameter) if name.startswith(PREFIX) else None)
    # the weights are read to where they are
    with _no_warning():
        dcp.load(places, storage_reader=reader, no_dist=world.size == 1)
    restore_optimiser(model, optimiser, places, content["rates"][0])
    for group, rate in zip(optimiser.param_groups, content["rates"], strict=True):
        group["lr"] = rate
    return Loaded(content["state"], {n.removeprefix(EXTRA): t for n, t in places.items() if n.startswith(EXTRA)})


def _place(about: TensorStorageMetadata, like: Tensor | None) -> Tensor:
    """Room for a tensor: parted as the weight that it belongs to, or whole and on the CPU."""
    if like is not None and about.size == like.shape:
        return torch.empty_like(like.detach(), dtype=about.properties.dtype)
    return torch.empty(about.size, dtype=about.properties.dtype)


# --- Files ---


def _prepare(new: Path) -> None:
    if new.exists():
        shutil.rmtree(new)
    new.mkdir(parents=True)


def _own_files(folder: Path, world: World) -> list[Path]:
    """Of a checkpoint that was just written: the parts of this process, and for the first one what describes them all."""
    return [p for p in folder.iterdir() if p.name.startswith(f"__{world.rank}_") or (world.first and p.name == ".metadata")]


def _publish(new: Path, path: Path, content: dict[str, Any]) -> None:
    """state.json, which vouches for the others, and then the rename."""
    write_file(new / STATE, _json({**content, "sha256": hashlib.sha256(_json(content)).hexdigest()}))
    sync(new)
    earlier, old = path.with_name(PREVIOUS), path.with_name(f".{path.name}-old")
    shutil.rmtree(old, ignore_errors=True)
    # a folder cannot be renamed onto another: first make room, then move up one after the other
    if path.exists():
        if earlier.exists():
            os.rename(earlier, old)
        os.rename(path, earlier)
    os.rename(new, path)
    sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _check(folder: Path, world: World) -> dict[str, Any]:
    """What state.json says, if all files have their checksums; the processes share the work and come to the same end."""
    content, problem = {}, ""
    try:
        content = json.loads((folder / STATE).read_bytes())
        expected = content.pop("sha256")
        if hashlib.sha256(_json(content)).hexdigest() != expected:
            raise Damaged(f"{STATE} does not have its checksum")
        for name, digest in sorted(content["files"].items())[world.rank :: world.size]:
            if _digest(folder / name) != digest:
                raise Damaged(f"{name} does not have its checksum")
    except Damaged as error:
        problem = str(error)
    except FileNotFoundError as error:
        problem = f"{Path(error.filename).name} is missing"
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        problem = f"{STATE} was not written whole"
    if problems := [p for p in _gather(world, problem) if p]:
        raise Damaged(problems[0])
    return content


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, indent=2, sort_keys=True) + "\n").encode()


# --- Several processes ---


def _together(world: World, path: Path, act: Callable[[], Any]) -> list[Any]:
    """What `act` gives in every process; an error in one of them is an error in all, so that none waits for ever."""
    result, problem = None, ""
    try:
        result = act()
    except (OSError, CheckpointException) as error:
        problem = getattr(error, "strerror", None) or " ".join(str(error).split())
    found = _gather(world, (result if isinstance(result, dict) else None, problem))
    if problems := [problem for _, problem in found if problem]:
        raise InvalidFile(f"cannot write {path}: {problems[0]}; earlier checkpoints in {path.parent} are as they were")
    return [result for result, _ in found]


def _gather(world: World, thing: Any) -> list[Any]:
    if world.size == 1:
        return [thing]
    found = [None] * world.size
    dist.all_gather_object(found, thing)
    return found


@contextmanager
def _no_warning() -> Iterator[None]:
    """That there is one process only is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        yield


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
