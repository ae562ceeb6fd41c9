"""The fast weight programmer layer: x in, y out, state in, state out. A drop-in for an LSTM."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rfwp import ops
from rfwp.errors import InvalidInput, check_heads, check_probability
from rfwp.fwp import fast as fast_nets
from rfwp.fwp.composition import Composition
from rfwp.fwp.maps import MAPS, softmax
from rfwp.fwp.rules import Delta, Sum
from rfwp.fwp.scan import scan
from rfwp.fwp.slow import Recurrent, SlowModule
from rfwp.fwp.types import Program, State
from rfwp.fwp.zoo import composition as find_composition
from rfwp.layers.state import Stepwise, check_input, check_state
from rfwp.ops import programmed
from rfwp.ops.backend import check_backend, check_scan, full_precision
from rfwp.ops.state import state_dtype


class FWP(Stepwise):
    """A multi-head fast weight programmer with input and output projections.

    >>> layer = FWP("delta_rnn", width=64, heads=4)
    >>> y, state = layer(torch.randn(8, 100, 64))           # y (8, 100, 64)
    >>> y, state = layer(torch.randn(8, 100, 64), state)    # goes on where the first call stopped
    >>> y, state = layer.step(torch.randn(8, 64), state)    # one step, y (8, 64)

    `state` is a dict of tensors, batch first, that is never changed in place; gradients flow through it.
    `reset` (B, T) zeroes the state before step t: ends of episodes, or several sequences packed in one row.
    """

    def __init__(
        self,
        composition: str | Composition,
        width: int,
        heads: int,
        *,
        scale_output: bool = False,
        output_dropout: float = 0.0,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_heads(width, heads)
        check_probability("FWP", "output_dropout", output_dropout)
        check_backend(backend)
        self.composition = find_composition(composition)
        self.width, self.heads, self.head_size = width, heads, width // heads
        self.scale_output, self.output_dropout, self.backend = scale_output, output_dropout, backend
        self._phi = next((name for name, phi in MAPS.items() if phi is self.composition.phi), None)
        fast, d = self.composition.fast, self.head_size
        outputs, live = self.composition.outputs(d), self.composition.live_outputs(d)
        self.slow = SlowModule(self.composition.slow, width, heads, outputs, live, d, device=device, dtype=dtype)
        self.fast = nn.ParameterDict(
            {
                name: nn.Parameter(torch.full((size,), value, device=device, dtype=dtype))
                for name, (size, value) in fast.parameters(d).items()
            }
        )
        self.out = nn.Linear(width, width, bias=False, device=device, dtype=dtype)
        # a feature map with weights of its own trains and moves with the layer
        self.phi = self.composition.phi if isinstance(self.composition.phi, nn.Module) else None

    def reset_parameters(self) -> None:
        """Draw all weights again, as for a new layer."""
        self.slow.reset_parameters()
        self.out.reset_parameters()
        for name, (_, value) in self.composition.fast.parameters(self.head_size).items():
            nn.init.constant_(self.fast[name], value)
        for module in self.phi.modules() if self.phi is not None else ():
            if callable(redraw := getattr(module, "reset_parameters", None)):
                redraw()

    def forward(self, x: Tensor, state: State | None = None, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """x (B, T, width), reset (B, T) -> y (B, T, width) and the state after the last step."""
        check_input("FWP", x, self.width, reset, self.out.weight)
        state = self._checked(state, x)
        u, own = self.slow(x, state, reset)
        y, new = self._run(u, state, reset)
        y = y.flatten(-2)
        if self.scale_output:
            y = y * self.head_size**-0.5
        y = F.dropout(y, self.output_dropout, self.training)
        return self.out(y), new | own

    def initial_state(self, batch: int) -> State:
        """Zeros: what a call without a state starts from."""
        return self.composition.initial_state(batch, self.heads, self.head_size, self.width, self.out.weight)

    @property
    def plan(self) -> str:
        """Which ops run a sequence: `scan` where no op covers the composition."""
        c = self.composition
        rules = {type(c.rule_of(matrix)) for matrix in c.fast.matrices(self.head_size)}
        if self.backend == "reference" or not rules <= {Sum, Delta}:
            return "scan"
        if c.slow.feeds_back:
            known = type(c.slow) is Recurrent and type(c.rule) is Delta and type(c.fast) is fast_nets.Linear
            return "recurrent_delta" if known and c.phi is softmax else "scan"
        if not c.fast.recurrent:
            return "delta" if type(c.rule) is Delta else "sum"
        # exact types: a subclass may have equations of its own
        if type(c.rule) is Delta and type(c.fast) in (fast_nets.RNN, fast_nets.RNNVersionA):
            return "delta + delta_rnn"
        if type(c.rule) is Delta and type(c.fast) in fast_nets.LSTMS:
            return "delta + delta_lstm"
        return "scan"

    def extra_repr(self) -> str:
        return f"{self.composition}, width={self.width}, heads={self.heads}, plan={self.plan}"

    def _checked(self, state: State | None, x: Tensor) -> State:
        shapes = (x.shape[0], self.heads, self.head_size, self.width)
        if state is None:
            return self.composition.initial_state(*shapes, like=x)
        check_state(f"FWP ({self.composition})", state, self.composition.state_shapes(*shapes), x)
        for name, tensor in state.items():
            if tensor.dtype != state_dtype(x.dtype):
                raise InvalidInput(
                    f"FWP: state {name} is {tensor.dtype}, expected {state_dtype(x.dtype)} for inputs of {x.dtype}"
                )
        return state

    def _run(self, u: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        """The program u (B, T, H, outputs) -> the fast net's output y (B, T, H, V) and the state."""
        plan = self.plan
        if plan == "scan":
            check_scan(f"FWP ({self.composition})", self.backend, u)
            feed_back = self.slow.feed_back if self.composition.slow.feeds_back else None
            with full_precision(u):
                return scan(
                    self.composition,
                    u,
                    state,
                    reset,
                    head_size=self.head_size,
                    feed_back=feed_back,
                    parameters=dict(self.fast.items()),
                )
        if self._as_programmed(plan, u):
            return self._run_programmed(plan, u, state, reset)
        if plan == "recurrent_delta":
            return self._run_recurrent_delta(u, state, reset)
        cell = SequenceCell(self.composition, u, state, reset, self.head_size, dict(self.fast.items()), self.backend)
        if plan == "delta + delta_rnn":
            return self._run_rnn(cell)
        if plan == "delta + delta_lstm":
            return self._run_lstm(cell)
        y = self.composition.fast.step(cell)
        self.composition.check_output(y, u, self.head_size)
        return y, cell.new

    def _as_programmed(self, plan: str, u: Tensor) -> bool:
        """Whether kernels can take u as it is; a fast net with more than the usual parts is composed from ops."""
        fast = self.composition.fast
        if isinstance(fast, fast_nets.LSTM) and fast.shared_query:
            return False
        usual = type(fast) is fast_nets.Linear or fast.recurrent
        return usual and programmed.covers(plan, u, self.head_size, self._phi, self.backend)

    def _run_programmed(self, plan: str, u: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        fast, phi = self.composition.fast, self._phi
        assert phi is not None
        if plan == "recurrent_delta":
            y, W, y_last = programmed.recurrent(u, self.slow.R.to(u.dtype), state["W"], state["y"], reset)
            return y, {"W": W, "y": y_last}
        if isinstance(fast, fast_nets.RNN):
            y, W, R, y_last = programmed.rnn(u, state["W"], state["R"], state["y"], reset, phi=phi, version=fast.version)
            return y, {"W": W, "R": R, "y": y_last}
        if isinstance(fast, fast_nets.LSTM):
            W, R = stacked(state, "W"), stacked(state, "R")
            y, W, R, y_last, c_last = programmed.lstm(u, W, R, state["y"], state["c"], reset, phi=phi, version=fast.version)
            return y, unstacked("W", W) | unstacked("R", R) | {"y": y_last, "c": c_last}
        y, W = programmed.linear(u, state["W"], reset, rule=plan, phi=phi)
        return y, state | {"W": W}

    def _run_recurrent_delta(self, u: Tensor, state: State, reset: Tensor | None) -> tuple[Tensor, State]:
        d = self.head_size
        q, k, v, beta = u.split((d, d, d, 1), dim=-1)
        R_q, R_k, R_v, R_beta = self.slow.R.to(u.dtype).split((d, d, d, 1), dim=1)
        y, (W, y_last) = ops.recurrent_delta(
            q,
            k,
            v,
            beta.squeeze(-1),
            R_q,
            R_k,
            R_v,
            R_beta.squeeze(1),
            state=(state["W"], state["y"]),
            reset=reset,
            backend=self.backend,
        )
        return y, {"W": W, "y": y_last}

    def _run_rnn(self, cell: "SequenceCell") -> tuple[Tensor, State]:
        fast = self.composition.fast
        assert isinstance(fast, fast_nets.RNN)
        R = cell.program("R")
        assert R.beta is not None
        z = cell.read("W", cell.query("W"))
        y, (R_last, y_last) = ops.delta_rnn(
            z,
            softmax(R.key),
            R.value,
            R.beta.sigmoid(),
            version=fast.version,
            state=(cell.old["R"], cell.old["y"]),
            reset=cell.reset,
            backend=self.backend,
        )
        return y, cell.new | {"R": R_last, "y": y_last}

    def _run_lstm(self, cell: "SequenceCell") -> tuple[Tensor, State]:
        """All gates at once: they are heads to `delta`, and an extra dimension to `delta_lstm`."""
        fast, phi = self.composition.fast, self.composition.phi
        assert isinstance(fast, fast_nets.LSTM)
        q, W, R = cell.gates(fast.shared_query)
        assert W.beta is not None and R.beta is not None
        z, W_last = ops.delta(
            phi(q).flatten(2, 3),
            phi(W.key).flatten(2, 3),
            W.value.flatten(2, 3),
            W.beta.sigmoid().flatten(2, 3),
            state=stacked(cell.old, "W").flatten(1, 2),
            reset=cell.reset,
            backend=self.backend,
        )
        split = (self.heads, len(fast_nets.LSTM_GATES))
        y, (R_last, y_last, c_last) = ops.delta_lstm(
            z.unflatten(2, split),
            softmax(R.key),
            R.value,
            R.beta.sigmoid(),
            version=fast.version,
            state=(stacked(cell.old, "R"), cell.old["y"], cell.old["c"]),
            reset=cell.reset,
            backend=self.backend,
        )
        new = unstacked("W", W_last.unflatten(1, split)) | unstacked("R", R_last)
        return y, new | {"y": y_last, "c": c_last}


def stacked(state: State, matrix: str) -> Tensor:
    """The matrices of all gates of a fast LSTM, (B, H, 3, V, K)"""
    return torch.stack([state[f"{matrix}_{g}"] for g in fast_nets.LSTM_GATES], dim=2)


def unstacked(matrix: str, gates: Tensor) -> State:
    return {f"{matrix}_{g}": part for g, part in zip(fast_nets.LSTM_GATES, gates.unbind(2), strict=True)}


class SequenceCell:
    """A whole sequence of a fast net that never looks back: `read` is an op over T steps instead of one step."""

    def __init__(
        self,
        composition: Composition,
        u: Tensor,
        state: State,
        reset: Tensor | None,
        head_size: int,
        parameters: Mapping[str, Tensor],
        backend: str,
    ):
        self.composition, self.reset, self.head_size, self.parameters = composition, reset, head_size, parameters
        self.u, self.programs, self.backend = u, composition.programs(u, head_size), backend
        self.old, self.new = state, dict(state)

    def program(self, name: str) -> Program:
        return self.composition.named("fast matrix", name, self.programs)

    def query(self, name: str) -> Tensor:
        return self.composition.query(self.programs, name)

    def read(self, name: str, query: Tensor, program: Program | None = None) -> Tensor:
        matrix = self.composition.matrix(name, self.head_size)
        program = program or self.program(name)
        q, k, v = self.composition.map_query(matrix, query), self.composition.map_key(matrix, program.key), program.value
        if self.composition.rule_of(matrix).has_beta:
            assert program.beta is not None
            y, self.new[name] = ops.delta(
                q, k, v, program.beta.sigmoid(), state=self.old[name], reset=self.reset, backend=self.backend
            )
        else:
            y, self.new[name] = ops.sum(q, k, v, state=self.old[name], reset=self.reset, backend=self.backend)
        return y

    def previous(self, name: str) -> Tensor:
        raise InvalidInput(f"{self.composition.fast.title} looks back at '{name}'; say so with recurrent = True in its class")

    def keep(self, name: str, value: Tensor) -> None:
        raise InvalidInput(f"{self.composition.fast.title} keeps '{name}'; say so with recurrent = True in its class")

    def parameter(self, name: str) -> Tensor:
        return self.composition.named("parameter", name, self.parameters)

    def gates(self, shared_query: bool) -> tuple[Tensor, Program, Program]:
        """The queries of a fast LSTM and the programs of W and R, with the gates in an extra dimension after the heads."""
        d, n = self.head_size, len(fast_nets.LSTM_GATES)
        # views and not copies: the vectors of a gate lie side by side in u, in the order of `Composition.layout`
        vectors, betas = self.u.split((self.u.shape[-1] - 2 * n, 2 * n), dim=-1)
        beta_W, beta_R = betas.unflatten(-1, (n, 2)).unbind(-1)
        if shared_query:
            q, vectors = vectors.split((d, n * 4 * d), dim=-1)
            q = q.unsqueeze(3).expand(*q.shape[:3], n, d)  # B T H 3 K
            k_W, v_W, k_R, v_R = vectors.unflatten(-1, (n, 4, d)).unbind(-2)
        else:
            q, k_W, v_W, k_R, v_R = vectors.unflatten(-1, (n, 5, d)).unbind(-2)
        return q, Program(None, k_W, v_W, beta_W), Program(None, k_R, v_R, beta_R)
