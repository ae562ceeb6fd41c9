"""CUDA graphs on the CPU, for what is written to become one."""

import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rfwp.layers import FWP


class Tape(TorchDispatchMode):
    """What a CUDA graph is: ops on the memory that they had, without the Python around them."""

    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        self.ops.append((func, args, kwargs or {}, result))
        return result

    def replay(self):
        for func, args, kwargs, result in self.ops:
            for place, tensor in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                # an op in place, or a view, is there already
                if isinstance(place, torch.Tensor) and place.data_ptr() != tensor.data_ptr():
                    place.copy_(tensor)


def use_tapes(monkeypatch):
    """In place of CUDA graphs."""

    @contextlib.contextmanager
    def graph(tape, stream, capture_error_mode):
        with tape:
            yield

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Tape)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)


def on_tape(agent):
    """The agent without numba's kernels, which a tape cannot see."""
    for layer in agent.modules():
        if isinstance(layer, FWP):
            layer.backend = "plain"
    return agent
