"""Models that are too large for one GPU: every process holds a part of all weights and of the optimiser's state (FSDP).

>>> world = join(device)                                    # under torchrun
>>> model = shard(checkpoint_blocks(model), world)           # whole on the CPU of the first process; `meta` will do in the others
>>> optimiser = make_optimiser(model, config)               # after sharding: it holds parts too
>>> save_sharded(run / "last", model, optimiser, {"step": 7}, world)
>>> found = load_sharded(run / "last", model, optimiser, world)     # on any number of processes

A checkpoint is a folder that all processes write into, each its own part, as safetensors and JSON: no pickle. It is moved into
place by a rename when all parts and state.json, which has their checksums, are on the disk; so the folder must be on a disk that
all machines share. The checkpoints of `rfwp.train.checkpoint`, which one process writes, are read like one of a single part.
"""

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from rfwp.errors import InvalidFile, InvalidInput, reason
from rfwp.layers import Block
from rfwp.models import SequenceModel
from rfwp.models.core import Stack
from rfwp.train.checkpoint import (
    OPTIMISER,
    PREVIOUS,
    STATE,
    Damaged,
    Loaded,
    NoneWhole,
    json_bytes,
    publish,
    reading,
    sync,
    tensor_names,
    write_file,
)
from rfwp.train.distributed import World
from rfwp.train.optim import PREFIX, optimiser_tensors, restore_optimiser


def checkpoint_blocks(model: SequenceModel, on: bool = True) -> SequenceModel:
    """Keep the inputs of blocks only and compute the rest again in the backward pass: memory for time."""
    if not isinstance(model.core, Stack):
        raise InvalidInput(f"checkpoint_blocks: the core is {type(model.core).__name__} and has no blocks; leave it off")
    model.core.checkpoint_blocks = on
    return model


def shard(model: SequenceModel, world: World) -> SequenceModel:
    """Part the weights over the devices of all processes, in place: blocks one by one, then what is left. One process keeps them.

    The weights are those of the first process, and it alone has to hold them whole: in the others the model may be on `meta`.
    Gradients are added up over the processes in the backward pass, so a loss is this process's share of it, and
    `World.sum_gradients` is not called.
    """
    if world.size == 1:
        return model.to(world.device)
    # nothing in rfwp changes what a module gives back
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    weights = model.state_dict() if world.first else {}
    model.to("meta")
    mesh = init_device_mesh(world.device.type, (world.size,))
    for module in [*(m for m in model.modules() if isinstance(m, Block)), model]:
        fully_shard(module, mesh=mesh)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            # a plain sum: gloo cannot scale in the same message
            part.set_force_sum_reduction_for_comms(True)
    # the weights of the embedding and the head are gathered for these, as for a call of the model
    for method in ("loss", "hidden", "logits", "nll"):
        register_fsdp_forward_method(model, method)
    model.to_empty(device=world.device)
    spread_weights(model, weights, world)
    return model


@torch.no_grad()
def spread_weights(model: nn.Module, weights: Mapping[str, Tensor], world: World) -> None:
    """Give every process its part of the weights that the first one has; one tensor at a time is whole on the devices."""
    for name, part in model.state_dict().items():
        if world.first:
            whole = weights[name].to(world.device).contiguous()
        else:
            whole = torch.empty(part.shape, dtype=part.dtype, device=world.device)
        dist.broadcast(whole, src=0)
        if isinstance(part, DTensor):
            # each process has the whole tensor and takes its part of it without a message
            own = distribute_tensor(whole, part.device_mesh, part.placements, src_data_rank=None)
            part.to_local().copy_(own.to_local())
        else:
            part.copy_(whole)


def whole_weights(model: nn.Module, keep: bool = True) -> dict[str, Tensor]:
    """The weights as one process would have them, on the CPU; nothing where `keep` is false. All processes call this together."""
    weights = {}
    for name, tensor in model.state_dict().items():
        # in every process, one tensor after another: the parts of all are gathered
        whole = _whole(tensor.detach())
        if keep:
            weights[name] = whole.cpu()
    return weights


def weights_are_finite(model: nn.Module, world: World) -> bool:
    """Of the parts of all processes; they come to the same end."""
    parts = [_part(tensor.detach()) for tensor in model.state_dict().values()]
    wrong = torch.stack([~part.isfinite().all() for part in parts]).any()
    return not world.sum(wrong.to(torch.int64)).item()


def is_sharded(folder: Path) -> bool:
    """Whether it holds a checkpoint that was written in parts."""
    return any(folder.glob(f"{_name(0)}*"))


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
    parts = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    parts |= optimiser_tensors(model, optimiser) | (others := {name: t.contiguous() for name, t in (tensors or {}).items()})
    try:
        writer = dcp.HuggingFaceStorageWriter(str(new), save_distributed=True)
        with _no_warning():
            _together(world, path, lambda: dcp.save(parts, storage_writer=writer, no_dist=world.size == 1))
        # each process reads what it has just written, which is still in its machine's memory
        digests = _together(world, path, lambda: {p.name: _digest(p) for p in new.glob(f"{_name(world.rank)}*")})
        files = {name: digest for part in digests for name, digest in part.items()}
        rates = [float(group["lr"]) for group in optimiser.param_groups]
        content = {**state, "rates": rates, "others": sorted(others), "processes": world.size, "files": files}
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
        raise NoneWhole(problems)
    return None


def _read(folder: Path, content: dict[str, Any], model: nn.Module, optimiser: torch.optim.Optimizer, world: World) -> Loaded:
    places = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    with reading(folder):
        reader = dcp.HuggingFaceStorageReader(str(folder))
        saved = reader.read_metadata().state_dict_metadata
        others = _others(folder, content)
    _check_weights(folder, places, {n: about for n, about in saved.items() if n not in others and not n.startswith(PREFIX)})
    for name in set(saved) - set(places):
        _, _, parameter = name.removeprefix(PREFIX).partition(".")
        places[name] = _place(saved[name], parameters.get(parameter) if name.startswith(PREFIX) else None)
    # the weights are read to where they are
    with reading(folder), _no_warning():
        try:
            dcp.load(places, storage_reader=reader, no_dist=world.size == 1)
        except CheckpointException as error:
            raise OSError(_reason(error)) from error
    # one that was written in one part has one rate
    rates = content.get("rates") or [content["lr"]] * len(optimiser.param_groups)
    restore_optimiser(model, optimiser, places, rates[0])
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        group["lr"] = rate
    state = {name: value for name, value in content.items() if name not in ("rates", "others", "processes", "files")}
    return Loaded(state, {name: places[name] for name in others if name in places})


def _others(folder: Path, content: dict[str, Any]) -> set[str]:
    """Names of the tensors that are neither weights nor of the optimiser."""
    if "others" in content:
        return set(content["others"])
    if OPTIMISER not in content["files"]:
        return set()
    return {name for name in tensor_names(folder / OPTIMISER) if not name.startswith(PREFIX)}


def _check_weights(folder: Path, places: Mapping[str, Tensor], saved: Mapping[str, Any]) -> None:
    expected = {name: tuple(tensor.shape) for name, tensor in places.items()}
    found = {name: tuple(about.size) for name, about in saved.items()}
    if expected != found:
        name = min(name for name in {**expected, **found} if expected.get(name) != found.get(name))
        shapes = f"{found.get(name, 'nothing')} there and {expected.get(name, 'nothing')} in the model"
        raise InvalidFile(f"{folder} is of another model: {name} is {shapes}")


def _place(about: Any, like: Tensor | None) -> Tensor:
    """Room for a tensor: parted as the weight that it belongs to, or whole and on the CPU."""
    if like is not None and about.size == like.shape:
        return torch.empty_like(like.detach(), dtype=about.properties.dtype)
    return torch.empty(about.size, dtype=about.properties.dtype)


# --- Files ---


def _prepare(new: Path) -> None:
    if new.exists():
        shutil.rmtree(new)
    new.mkdir(parents=True)


def _name(rank: int) -> str:
    """How PyTorch's names of the files of a process begin."""
    return f"shard-{rank + 1:05d}-"


def _publish(new: Path, path: Path, content: dict[str, Any]) -> None:
    """state.json, which vouches for the others, and then the rename."""
    write_file(new / STATE, json_bytes({**content, "sha256": hashlib.sha256(json_bytes(content)).hexdigest()}))
    sync(new)
    publish(new, path, path.with_name(PREVIOUS))


def _check(folder: Path, world: World) -> dict[str, Any]:
    """What state.json says, if all files have their checksums; the processes share the work and come to the same end."""
    content, problem = {}, ""
    try:
        content = json.loads((folder / STATE).read_bytes())
        expected = content.pop("sha256")
        if hashlib.sha256(json_bytes(content)).hexdigest() != expected:
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


# --- Several processes ---


def _together(world: World, path: Path, act: Callable[[], Any]) -> list[Any]:
    """What `act` gives in every process; an error in one of them is an error in all, so that none waits for ever."""
    result, problem = None, ""
    try:
        result = act()
    except (OSError, CheckpointException) as error:
        problem = _reason(error)
    found = _gather(world, (result if isinstance(result, dict) else None, problem))
    if problems := [problem for _, problem in found if problem]:
        raise InvalidFile(f"cannot write {path}: {problems[0]}; earlier checkpoints in {path.parent} are as they were")
    return [result for result, _ in found]


def _reason(error: BaseException) -> str:
    """In one line; of several processes that of the first that failed."""
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    return reason(error)


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


def _part(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
