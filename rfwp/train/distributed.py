"""Several processes that train one model, started by torchrun: each takes a part of every batch, and gradients are added up."""

import atexit
import hashlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

AGREE_EVERY = 10
"""Steps between two questions whether a process was told to stop or to save: each of them waits for the device."""


@dataclass(frozen=True)
class World:
    """This process among all of them; one alone is rank 0 of 1."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Only this one writes and prints."""
        return self.rank == 0

    def sum(self, tensor: Tensor) -> Tensor:
        """Added up over all processes, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """One message for all of them. Every process has its share of the batch's loss, so the sum is the gradient."""
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = self.sum(torch.cat([g.flatten() for g in gradients]))
        parts = flat.split([g.numel() for g in gradients])
        torch._foreach_copy_(gradients, [part.view_as(g) for g, part in zip(gradients, parts, strict=True)])

    def agree(self, wish: int, step: int, last: int) -> int:
        """The largest wish of any process; several processes ask each other at every tenth step and the last one only."""
        if self.size == 1:
            return wish
        if step % AGREE_EVERY and step != last:
            return 0
        wishes = torch.tensor(wish, device=self.device)
        dist.all_reduce(wishes, dist.ReduceOp.MAX)
        return int(wishes)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, of one shape, on the CPU."""
        if self.size == 1:
            return [tensor.cpu()]
        here = tensor.to(self.device)
        found = [torch.empty_like(here) for _ in range(self.size)]
        dist.all_gather(found, here)
        return [t.cpu() for t in found]

    def first_that_differs(self, text: str) -> int | None:
        """The rank of a process that has another text than the first one; None if all have the same."""
        digest = torch.frombuffer(bytearray(hashlib.sha256(text.encode()).digest()), dtype=torch.uint8)
        found = self.gather(digest)
        return next((rank for rank, other in enumerate(found) if not torch.equal(other, found[0])), None)

    def wait(self) -> None:
        """Until all processes are here."""
        self.sum(torch.zeros((), device=self.device)).item()


def join(device: torch.device) -> World:
    """The world that torchrun made: gloo on the CPU, nccl on GPUs, one GPU a process. Without torchrun: this process alone."""
    size = processes()
    if size == 1:
        return World(device=device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        # imported with a group there, as the optimiser does, it keeps the group alive beyond `leave`. Then gloo's threads meet
        # an interpreter that is ending, and now and then the process is aborted, which torchrun takes for a loss
        from torch import _dynamo  # noqa: F401

        # torchrun keeps its store over a restart, and in it the addresses of the processes that are gone
        store, rank, size = next(dist.rendezvous("env://"))
        store = dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        # a device id makes nccl connect now, so that a missing GPU is found here and not in the first step
        gpu = device if device.type == "cuda" else None
        dist.init_process_group("nccl" if gpu else "gloo", store=store, rank=rank, world_size=size, device_id=gpu)
        atexit.register(leave)
    return World(dist.get_rank(), dist.get_world_size(), device)


def leave() -> None:
    """The end of working together."""
    if dist.is_initialized():
        dist.destroy_process_group()


def end_process(code: int, at_once: bool = False) -> NoReturn:
    """End this process; at once where a model was parted over several.

    PyTorch's caches of how tensors are parted keep the group beyond `leave`. Gloo's threads then meet an interpreter that is
    ending, and now and then the process is aborted, which torchrun takes for a loss.
    """
    if at_once and processes() > 1:
        for output in (sys.stdout, sys.stderr):
            # closed ones are None
            if output is not None:
                output.flush()
        os._exit(code)
    sys.exit(code)


def joined() -> bool:
    """This process works with others, up to `leave`."""
    return dist.is_initialized()


def is_loss(error: RuntimeError) -> bool:
    """Whether PyTorch says with it that another process does not answer any more."""
    return joined() and (isinstance(error, dist.DistError) or "gloo" in str(error))


def restarted() -> bool:
    """torchrun started this process again after one was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def processes() -> int:
    """Before any process group: how many has torchrun started? 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Before any process group: does torchrun call this process the first?"""
    return os.environ.get("RANK", "0") == "0"
