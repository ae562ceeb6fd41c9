"""slow net × update rule × fast net: a fast weight programmer, described. Any combination is valid."""

import ast
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rfwp.errors import InvalidInput, unknown
from rfwp.fwp.fast import FAST
from rfwp.fwp.maps import MAPS, FeatureMap, elu_sum
from rfwp.fwp.rules import RULES, Delta, Rule
from rfwp.fwp.slow import SLOW, Feedforward
from rfwp.fwp.types import FastMatrix, FastNet, Program, SlowNet, State

T = TypeVar("T")


@dataclass(frozen=True)
class Composition:
    """A fast weight programmer as slow net × update rule × fast net, with the feature map φ of its keys and queries.

    Each part is an object (`fast=RNN()`), a name (`fast="rnn"`) or a name with fields (`fast="mlp(depth=3)"`).

    >>> Composition("recurrent", "delta", "linear", "softmax").name
    'Recurrent/Delta fast Linear Net'
    """

    slow: SlowNet = Feedforward()
    rule: Rule = Delta()
    fast: FastNet = FAST["linear"]()
    phi: FeatureMap = elu_sum

    def __post_init__(self) -> None:
        for field, table in (("slow", SLOW), ("rule", RULES), ("fast", FAST), ("phi", MAPS)):
            object.__setattr__(self, field, _resolve(field, getattr(self, field), table))

    @property
    def name(self) -> str:
        """The systematic name of the paper's appendix: slow-net/update-rule as prefix, fast-net as suffix."""
        return f"{self.slow.title}/{self.rule.title} fast {self.fast.title}"

    def __str__(self) -> str:
        return self.name

    def specification(self) -> dict[str, str]:
        """The four parts as strings, such that `Composition(**specification)` gives this composition back."""
        parts = (("slow", SLOW), ("rule", RULES), ("fast", FAST), ("phi", MAPS))
        return {field: _specify(field, getattr(self, field), table) for field, table in parts}

    def matrix(self, name: str, d: int) -> FastMatrix:
        for matrix in self.fast.matrices(d):
            if matrix.name == name:
                return matrix
        raise unknown(f"fast matrix of {self.fast.title}", name, [m.name for m in self.fast.matrices(d)])

    def named(self, what: str, name: str, known: Mapping[str, T]) -> T:
        """What a fast net asks for by its name."""
        if name not in known:
            raise unknown(f"{what} of {self.fast.title}", name, known)
        return known[name]

    def query(self, programs: dict[str, Program], name: str) -> Tensor:
        """The query that the slow net wrote for a matrix."""
        found = programs[name].query if name in programs else None
        if found is None:
            raise InvalidInput(f"the slow net writes no query for '{name}' of {self.fast.title}; declare it with query=True")
        return found

    def check_output(self, y: Tensor, u: Tensor, d: int) -> None:
        """What a fast net's step gives back for a program u (..., H, outputs): y (..., H, d)."""
        if not isinstance(y, Tensor):
            raise InvalidInput(f"{self.fast.title}: step gives a {type(y).__name__}, expected a tensor, like cell.read gives one")
        if y.dim() and y.shape[-1] != d:
            raise InvalidInput(f"{self.fast.title}: step gives vectors of size {y.shape[-1]}, expected the head size {d}")
        if y.shape != (expected := (*u.shape[:-1], d)):
            raise InvalidInput(
                f"{self.fast.title}: step gives a tensor {tuple(y.shape)}, expected {expected}; batch and heads stay"
            )

    def rule_of(self, matrix: FastMatrix) -> Rule:
        return matrix.rule or self.rule

    def map_key(self, matrix: FastMatrix, key: Tensor) -> Tensor:
        mapped = _mapped(matrix.key_map or self.phi, key)
        if mapped.shape[-1] != matrix.cols:
            raise InvalidInput(
                f"the feature map makes keys of size {mapped.shape[-1]} from {matrix.cols}; it must keep their size"
            )
        return mapped

    def map_query(self, matrix: FastMatrix, query: Tensor) -> Tensor:
        return _mapped(matrix.query_map or matrix.key_map or self.phi, query)

    def layout(self, d: int) -> list[tuple[str, str, int]]:
        """The slow net's outputs for one head, in order: (matrix, part, size).

        Query, key and value of every matrix, then every learning rate.
        """
        written = [m for m in self.fast.matrices(d) if m.programmed]
        vectors = [(m.name, part, size) for m in written for part, size in _parts(m)]
        return vectors + [(m.name, "beta", 1) for m in written if self.rule_of(m).has_beta]

    def live_outputs(self, d: int) -> int:
        """Outputs of the slow net for one head that the fast net reads."""
        return sum(size for _, _, size in self.layout(d))

    def outputs(self, d: int) -> int:
        """Outputs of the slow net for one head, those that nothing reads included."""
        return self.live_outputs(d) + self.fast.unused(d)

    def programs(self, u: Tensor, d: int) -> dict[str, Program]:
        """Cut the slow net's output u (..., H, live_outputs) into one program a matrix."""
        layout = self.layout(d)
        pieces = dict(zip([(m, p) for m, p, _ in layout], u.split([size for *_, size in layout], dim=-1), strict=True))
        programs = {}
        for matrix in {name for name, *_ in layout}:
            beta = pieces.get((matrix, "beta"))
            programs[matrix] = Program(
                query=pieces.get((matrix, "query")),
                key=pieces[matrix, "key"],
                value=pieces[matrix, "value"],
                beta=None if beta is None else beta.squeeze(-1),
            )
        return programs

    def vectors(self, d: int) -> dict[str, int]:
        """Vectors a head keeps from step to step, the fast net's output included where the slow net looks at it."""
        return self.fast.vectors(d) | ({"y": d} if self.slow.feeds_back else {})

    def state_shapes(self, batch: int, heads: int, d: int, width: int) -> dict[str, tuple[int, ...]]:
        """Every tensor of the state: fast weights B H V K, vectors B H V, the slow net's own vectors B width."""
        shapes: dict[str, tuple[int, ...]] = {m.name: (batch, heads, m.rows, m.cols) for m in self.fast.matrices(d)}
        shapes |= {name: (batch, heads, size) for name, size in self.vectors(d).items()}
        return shapes | dict.fromkeys(self.slow.own_state, (batch, width))

    def initial_state(self, batch: int, heads: int, d: int, width: int, like: Tensor) -> State:
        """Zeros, in float32 or better."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        shapes = self.state_shapes(batch, heads, d, width)
        return {name: torch.zeros(shape, dtype=dtype, device=like.device) for name, shape in shapes.items()}


def _mapped(phi: FeatureMap, x: Tensor) -> Tensor:
    """φ(x); one with weights in half precision gets x in that, and a loop over time goes on in its own."""
    weight = next(phi.parameters(), None) if isinstance(phi, nn.Module) else None
    return phi(x) if weight is None or weight.dtype == x.dtype else phi(x.to(weight.dtype)).to(x.dtype)


def _parts(matrix: FastMatrix) -> list[tuple[str, int]]:
    query = [("query", matrix.cols)] if matrix.query else []
    return [*query, ("key", matrix.cols), ("value", matrix.rows)]


def canonical(name: str) -> str:
    """`Delta-RNN` and `delta_rnn` are one name."""
    return name.strip().lower().replace("-", "_").replace(" ", "_")


_KINDS = {
    "slow": ("slow net", ("title", "feeds_back", "own_state")),
    "rule": ("update rule", ("title", "has_beta", "update")),
    "fast": ("fast net", ("title", "recurrent", "matrices", "vectors", "parameters", "unused", "step")),
    "phi": ("feature map", ("__call__",)),
}
"""What each part is called, and what an object must have to be one."""


def _resolve(field: str, part: Any, table: dict[str, Any]) -> Any:
    """A part given by name becomes the object; an object that can be such a part is taken as it is."""
    kind, needed = _KINDS[field]
    if isinstance(part, type):
        part = part()
    if isinstance(part, str):
        text, bracket, arguments = part.partition("(")
        if canonical(text) not in table:
            raise unknown(kind, text, table)
        found = table[canonical(text)]
        if field == "phi" and bracket:
            raise InvalidInput(f"feature map '{part}' takes no fields; try '{text}'")
        return found if field == "phi" else _construct(kind, part, found, arguments)
    missing = [name for name in needed if not hasattr(part, name)]
    if missing:
        known = f"give an object of rfwp.fwp, or one of: {', '.join(table)}"
        raise InvalidInput(f"{part!r} is no {kind}; {known} (it has no {', '.join(missing)})")
    return part


def _construct(kind: str, text: str, cls: Any, arguments: str) -> Any:
    """Build from the fields in `mlp(depth=3)`; only literals, never evaluated."""
    if not arguments:
        return cls()
    try:
        call = ast.parse(f"f({arguments}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError
        given = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        if len(given) != len(call.keywords):
            raise ValueError
    except (SyntaxError, ValueError):
        raise InvalidInput(f"{kind} '{text}' does not read as name(field=value); try for example mlp(depth=3)") from None
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for name, value in given.items():
        if name not in fields:
            raise unknown(f"field of {kind} '{text}'", name, fields)
        if type(value) is not type(fields[name].default):
            raise InvalidInput(f"{kind} '{text}': {name}={value!r} should be like {fields[name].default!r}")
    return cls(**given)


def _specify(field: str, part: Any, table: dict[str, Any]) -> str:
    for name, entry in table.items():
        if entry is part:
            return name
        if entry is type(part):
            changed = [(f.name, getattr(part, f.name)) for f in dataclasses.fields(part) if getattr(part, f.name) != f.default]
            return name + (f"({', '.join(f'{n}={v!r}' for n, v in changed)})" if changed else "")
    raise InvalidInput(
        f"{field} {part!r} has no name and cannot be written to a config; add it to its table in rfwp.fwp (see CONTRIBUTING.md)"
    )
