"""Acting in free mode: every environment fills unrolls of its own, each a row of one store on the learner's device."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rfwp.layers.state import flat, map_state
from rfwp.models import Agent
from rfwp.rl.inference import Inference, recorded
from rfwp.rl.staging import Staging, check_fits
from rfwp.rl.unroll import Unroll, room_for
from rfwp.tasks.environments import VectorEnvironment, answered


@dataclass(eq=False)
class Row:
    """The unroll of one environment, in its place in the store. Versions: of its steps, the updates that acting weights had."""

    place: int
    first_version: int
    mean_version: float = 0.0
    full: bool = False


class Store:
    """Places for rows of T steps, and one place more, `nowhere`, for what nobody will learn from."""

    def __init__(self, example: Unroll, places: int):
        self.unroll, self.nowhere = example.empty(places + 1), places
        self._free = list(range(places))

    def begin(self, version: int) -> Row:
        """A row of an environment that acts with weights of this version now."""
        return Row(self._free.pop(), version)

    def move(self, rows: list[Row], batch: Unroll) -> None:
        """Into a learner's batch; their places are free then."""
        device, places = self.unroll.action.device, [row.place for row in rows]
        index = torch.tensor(places, pin_memory=device.type == "cuda").to(device, non_blocking=True)
        for there, here in zip(batch.tensors(), self.unroll.tensors(), strict=True):
            torch.index_select(wide(here, 1), 0, index, out=wide(there, 1))
        self._free += places


def wide(tensor: Tensor, dim: int) -> Tensor:
    """The same memory in as few numbers as possible from that dimension on: bytes are moved one number at a time."""
    if tensor.dtype != torch.uint8 or tensor[(0,) * dim].numel() % 8:
        return tensor
    return tensor.flatten(dim).view(torch.int64)


class RowInference(Inference):
    """Actions for the environments that answered, from the host and back; `write` puts what they saw and do into the store.

    The state is that of all N environments. The answers' notes say, for each, the environment, the place and the step that its
    observation ends, the place and the step that it begins, and the place for the state if it is the first of a row.
    Environments wait for actions, nobody waits for what is written, so these are two; `write` follows every call.
    """

    ENVIRONMENT, ENDS, ENDS_AT, BEGINS, BEGINS_AT, KEEPS = range(6)
    NOTES = 6

    def __init__(self, agent: Agent, n: int, staging: Staging, **options: Any):
        super().__init__(agent, *staging.now, **options)
        self.staging, self.where = staging, staging.notes_now
        self.state = map_state(lambda s: s.new_zeros(n, *s.shape[1:]), self.state)
        self._writing: torch.cuda.CUDAGraph | None = None

    def write_to(self, store: Store) -> None:
        self.store = store.unroll
        # steps that warm up leave nothing behind
        notes = self.staging.notes
        notes.zero_()
        notes[[self.ENDS, self.BEGINS, self.KEEPS]] = store.nowhere

    @torch.no_grad()
    def record(self) -> None:
        super().record()
        self._writing = recorded(self._write, self.where.device)
        self._clear()

    @torch.no_grad()
    def write(self) -> None:
        """Of the last call: the state before it, observations, rewards, ends, actions and logits. The state goes on here, too."""
        if self._writing is not None:
            self._writing.replay()
        else:
            self._write()

    def _step(self) -> Any:
        self.staging.to_device()
        environment = self.where[self.ENVIRONMENT]
        self._before = map_state(lambda s: s[environment], self.state)
        self._after = self._act(self._before)
        self.staging.take(self.action)
        return self.state

    def _write(self) -> None:
        environment, ends, ends_at, begins, begins_at, keeps = self.where
        for place, tensor in zip(flat(self.store.state), flat(self._before), strict=True):
            place[keeps] = tensor
        for place, tensor in zip(flat(self.state), flat(self._after), strict=True):
            place[environment] = tensor
        store, now = self.store, (wide(self.observation, 1), self.reward, self.done)
        for place, tensor in zip((wide(store.observation, 2), store.reward, store.done), now, strict=True):
            place[ends, ends_at] = tensor
            place[begins, begins_at] = tensor
        store.action[begins, begins_at] = self.action
        store.logits[begins, begins_at] = self.logits


class RowActor:
    """Steps environments with an agent; those that answered get actions, and rows are filled with what they see and do.

    >>> actor = RowActor(agent, environment, steps=50, seed=1)
    >>> actor.write_to(Store(actor.example, places=64))
    >>> full = actor.choose(begin)     # rows that ended with the last observations
    >>> actor.send()
    >>> actor.receive()

    The agent is used as it is at each step; whoever changes its weights sets `version`. The core's state goes on from row to row
    and is reset where an episode ended. The first `skip` steps of an environment are in no row: an array (N,).
    With `record`, on a GPU, choosing actions is one CUDA graph. `blocking`: whoever waits for actions leaves its core to others.
    """

    def __init__(
        self,
        agent: Agent,
        environment: VectorEnvironment,
        steps: int,
        *,
        skip: np.ndarray | int = 0,
        seed: int = 0,
        autocast: bool = False,
        record: bool = False,
        blocking: bool = False,
    ):
        check_fits(agent, environment, steps)
        self.agent, self.environment, self.steps, self.version = agent, environment, steps, 0
        device, first = agent.value.weight.device, environment.reset(seed)
        self.staging = Staging(environment, device, first, blocking=blocking, notes=RowInference.NOTES)
        self.inference = RowInference(agent, environment.n, self.staging, seed=seed, autocast=autocast)
        self._record = record
        n = environment.n
        self._rows: list[Row | None] = [None] * n
        self._t = np.zeros(n, np.int64) - skip - 1
        self._versions = np.zeros(n, np.int64)

    @property
    def example(self) -> Unroll:
        """An unroll with the shapes that rows have."""
        return room_for(1, self.steps, self.inference)

    def write_to(self, store: Store) -> None:
        self._nowhere = store.nowhere
        self._places = np.full(self.environment.n, store.nowhere)
        self.inference.write_to(store)
        if self._record:
            self.inference.record()

    @property
    def beginners(self) -> int:
        """How many of those that answered last have no row to go on with."""
        rows = answered(self.environment)
        return int(self._begins(self._places[rows], self._t[rows] + 1).sum())

    def choose(self, begin: Callable[[], Row | None]) -> list[Row]:
        """Start to choose actions; a GPU may still be at it when this returns. Rows that are full now.

        An environment that gets no row from `begin` plays on, and nobody will learn from that.
        """
        rows, nowhere, where = answered(self.environment), self._nowhere, self.staging.notes.numpy()
        self._t[rows] += 1
        places, t = self._places[rows], self._t[rows]
        at, begins = np.where(places == nowhere, 0, t), self._begins(places, t)
        full: list[Row] = []
        where[:] = rows, places, at, places, at, np.full_like(at, nowhere)
        # most steps are in the middle of all rows
        if begins.any():
            full = [self._end(row) for row in rows[begins & (places != nowhere)]]
            for row in rows[begins]:
                self._begin(row, begin())
            begun = self._places[rows]
            where[RowInference.BEGINS], where[RowInference.BEGINS_AT] = begun, np.where(begins, 0, at)
            where[RowInference.KEEPS] = np.where(begins, begun, nowhere)
        self._versions[rows] += self.version
        self.inference()
        self.staging.taken()
        self.inference.write()
        return full

    def send(self) -> None:
        """Wait for the actions, and send them to the environments."""
        # a copy: environments may keep them, and where they answer in parts the next ones are chosen meanwhile
        self.environment.send(self.staging.actions().copy())

    def receive(self) -> None:
        """Wait for what the actions brought."""
        self.staging.put(self.environment.recv())

    def _begins(self, places: np.ndarray, t: np.ndarray) -> np.ndarray:
        """Which environments, in these places at step t of their rows, want a new row: theirs is full, or they have none."""
        return np.where(places == self._nowhere, t >= 0, t == self.steps)

    def _begin(self, environment: int, row: Row | None) -> None:
        if row is not None:
            self._rows[environment], self._places[environment] = row, row.place
            self._t[environment] = self._versions[environment] = 0

    def _end(self, environment: int) -> Row:
        row = self._rows[environment]
        assert row is not None
        row.full, row.mean_version = True, self._versions[environment] / self.steps
        self._rows[environment], self._places[environment], self._t[environment] = None, self._nowhere, 0
        return row
