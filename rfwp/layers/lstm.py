"""PyTorch's LSTM under the common contract: batch first, state in and out, resets anywhere in the sequence."""

import torch
from torch import Tensor, nn

from rfwp.errors import InvalidInput
from rfwp.fwp.types import State
from rfwp.layers.state import Stepwise, check_input, check_state
from rfwp.ops.backend import full_precision
from rfwp.ops.state import autocast_enabled, forget


class LSTM(nn.RNNBase, Stepwise):
    """i, f, o = σ(W x_t + R h_{t-1} + b),  g = tanh(...),  c_t = f ⊙ c_{t-1} + i ⊙ g,  h_t = o ⊙ tanh(c_t)

    The weights and their initialisation are those of nn.LSTM. The state is {"h", "c": (B, layers, hidden)}, in float32
    at least. It is no nn.LSTM, since torch.compile refuses to touch one.
    """

    recordable = False
    """Never look at where resets are, so that a CUDA graph can hold it: steps written out in place of the fused LSTM."""

    def __init__(
        self,
        inputs: int,
        hidden: int,
        layers: int = 1,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        if min(inputs, hidden, layers) < 1:
            raise InvalidInput(f"LSTM: inputs={inputs}, hidden={hidden} and layers={layers} must all be at least 1")
        super().__init__("LSTM", inputs, hidden, layers, batch_first=True, device=device, dtype=dtype)
        self.inputs, self.hidden, self.layers = inputs, hidden, layers

    def forward(self, x: Tensor, state: State | None = None, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """x (B, T, inputs), reset (B, T) -> y (B, T, hidden) and the state after the last step."""
        check_input("LSTM", x, self.inputs, reset, next(self.parameters()))
        shape = (x.shape[0], self.layers, self.hidden)
        kept = torch.promote_types(x.dtype, torch.float32)
        if state is None:
            state = {name: torch.zeros(shape, dtype=kept, device=x.device) for name in ("h", "c")}
        else:
            check_state("LSTM", state, {"h": shape, "c": shape}, x)
        # the fused LSTM knows no resets, and where to cut the sequence for it depends on the data, which a graph cannot
        run = self._run_steps if self.recordable or torch.compiler.is_compiling() or x.is_meta else self._run_stretches
        y, h, c = run(x, state["h"], state["c"], reset)
        return y, {"h": h.to(kept), "c": c.to(kept)}

    def _run_stretches(self, x: Tensor, h: Tensor, c: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """One call of the fused LSTM from each step at which any row resets to the next such step."""
        h, c = h.to(x.dtype), c.to(x.dtype)
        cuts = [] if reset is None else reset.any(0).nonzero().flatten().tolist()
        starts = cuts if cuts[:1] == [0] else [0, *cuts]
        outputs = []
        for start, end in zip(starts, [*starts[1:], x.shape[1]], strict=True):
            h, c = forget(h, reset, start), forget(c, reset, start)
            state = (h.transpose(0, 1).contiguous(), c.transpose(0, 1).contiguous())  # layers B hidden
            # the flag for training makes cuDNN keep what a backward pass needs, which may follow in eval mode too
            fused = (self._weights(), True, self.layers, 0.0, torch.is_grad_enabled(), False, True)
            y, h, c = torch.lstm(x[:, start:end], state, *fused)
            h, c = h.transpose(0, 1), c.transpose(0, 1)
            outputs.append(y)
        return torch.cat(outputs, dim=1), h, c

    def _run_steps(self, x: Tensor, h: Tensor, c: Tensor, reset: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The same, written out one step at a time."""
        weights, outputs = self._weights(), []
        # autocast would round the cells at every step
        dtype = weights[0].dtype if autocast_enabled(x) else x.dtype
        x, h, c = x.to(dtype), h.to(dtype), c.to(dtype)
        with full_precision(x):
            for t in range(x.shape[1]):
                y, hs, cs = x[:, t], [], []
                h, c = forget(h, reset, t), forget(c, reset, t)
                for n in range(self.layers):
                    y, kept = torch.lstm_cell(y, (h[:, n], c[:, n]), *weights[4 * n : 4 * n + 4])
                    hs.append(y)
                    cs.append(kept)
                h, c = torch.stack(hs, dim=1), torch.stack(cs, dim=1)  # B layers hidden
                outputs.append(y)
        return torch.stack(outputs, dim=1), h, c

    def _weights(self) -> tuple[Tensor, ...]:
        """Four a layer, by name: one that is computed from others (weight norm, pruning) is no parameter of this module."""
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return tuple(getattr(self, f"{name}_l{n}") for n in range(self.layers) for name in names)
