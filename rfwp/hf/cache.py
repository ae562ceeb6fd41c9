"""What a model remembers, as transformers' `generate` carries it from step to step."""

from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from rfwp.errors import InvalidInput
from rfwp.layers.state import flat, map_state, select


class RecurrentCache(Cache):
    """The state after `length` tokens. Its size does not depend on `length`, and the model never changes it in place."""

    def __init__(self, state: Any, length: int):
        super().__init__(layers=[])
        self.state, self.length = state, length

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Beam search goes on with these rows."""
        self.state = select(self.state, beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.state = select(self.state, indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.state = map_state(lambda s: s.repeat_interleave(repeats, dim=0), self.state)

    def reset(self) -> None:
        """Back to the state before the first token."""
        self.state, self.length = None, 0

    def crop(self, *_: Any, **__: Any) -> None:
        raise InvalidInput("a recurrent state cannot go back to an earlier token; keep a copy of the cache from that token")

    @property
    def batch_size(self) -> int:
        tensors = flat(self.state)
        return len(tensors[0]) if tensors else 0

    @property
    def is_initialized(self) -> bool:
        return self.state is not None

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_croppable(self) -> bool:
        return False

    def __bool__(self) -> bool:
        # it has no layers to count, and yet it is there
        return True

    def __repr__(self) -> str:
        return f"RecurrentCache(length={self.length}, batch_size={self.batch_size})"

    def __deepcopy__(self, memo: dict[int, Any]) -> "RecurrentCache":
        # states are never changed in place, but a copy must live on when the graph of this one is freed
        return RecurrentCache(map_state(lambda s: s.detach().clone(memory_format=torch.preserve_format), self.state), self.length)
