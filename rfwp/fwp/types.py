"""What slow nets, rules and fast nets say to each other. Shapes: B T H K V, fast weights B H V K (rows are outputs)."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from rfwp.fwp.maps import FeatureMap
from rfwp.fwp.rules import Rule

State = dict[str, Tensor]
"""A layer's memory: fast weights and vectors by name. It comes in and goes out; nothing mutates it."""


@dataclass(frozen=True)
class FastMatrix:
    """One fast weight matrix of a fast net, and what it asks of the slow net."""

    name: str
    rows: int
    """V, the size of its output and of the values written to it."""
    cols: int
    """K, the size of its keys and queries."""
    query: bool = True
    """Whether the slow net invents a query for it."""
    programmed: bool = True
    """Whether the slow net emits its key, value and learning rate; if not, the fast net computes them."""
    rule: Rule | None = None
    """None: the rule of the composition."""
    key_map: FeatureMap | None = None
    """None: the φ of the composition."""
    query_map: FeatureMap | None = None
    """None: the same map as for the keys."""


@dataclass(frozen=True)
class Program:
    """What the slow net wrote for one matrix, before the feature map and the sigmoid."""

    query: Tensor | None  # (B [T] H K)
    key: Tensor  # (B [T] H K)
    value: Tensor  # (B [T] H V)
    beta: Tensor | None  # (B [T] H)


class Cell(Protocol):
    """What a fast net may do at a step: write and read its matrices, look at the previous step, keep vectors for the next.

    A fast net that never looks back is written once and runs on one step or on whole sequences: only the cell differs.
    """

    head_size: int

    def program(self, name: str) -> Program:
        """What the slow net wrote for the matrix, raw."""
        ...

    def query(self, name: str) -> Tensor:
        """The query that the slow net invented for the matrix, raw."""
        ...

    def read(self, name: str, query: Tensor, program: Program | None = None) -> Tensor:
        """Update the matrix with its program (the slow net's unless given), then W_t φ(query)."""
        ...

    def previous(self, name: str) -> Tensor:
        """A vector of the last step's state."""
        ...

    def keep(self, name: str, value: Tensor) -> None:
        """Store a vector for the next step."""
        ...

    def parameter(self, name: str) -> Tensor:
        """A trained parameter that the fast net declared."""
        ...


class FastNet(Protocol):
    """A network whose weights are programmed. It declares its matrices; the slow net's width follows from them."""

    title: ClassVar[str]
    recurrent: ClassVar[bool]
    """Whether y_t depends on y_{t-1} inside the fast net."""

    def matrices(self, d: int) -> tuple[FastMatrix, ...]:
        """The fast weight matrices for head size d."""
        ...

    def vectors(self, d: int) -> dict[str, int]:
        """Names and sizes of the vectors it keeps from step to step."""
        ...

    def parameters(self, d: int) -> dict[str, tuple[int, float]]:
        """Trained vectors inside the fast net (name: size and initial value); nearly always none."""
        ...

    def unused(self, d: int) -> int:
        """Outputs per head of the slow net that nothing reads; nearly always 0."""
        ...

    def step(self, cell: Cell) -> Tensor:
        """y_t from this step's program."""
        ...


class SlowNet(Protocol):
    """The kind of slow net; the module with its trained weights is `rfwp.fwp.slow.SlowModule`."""

    title: ClassVar[str]
    feeds_back: ClassVar[bool]
    """Whether it sees y_{t-1}, so that no part of it can run over the whole sequence at once."""
    own_state: ClassVar[tuple[str, ...]]
    """Names of the vectors it keeps from step to step by itself, each of the layer's width."""
