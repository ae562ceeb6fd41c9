"""Softmax attention with a state: the Transformer baseline under the same contract as every fast weight programmer."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rfwp.errors import InvalidInput, check_heads, check_probability, unknown
from rfwp.fwp.types import State
from rfwp.layers.state import Stepwise, check_input, check_state
from rfwp.ops import attention as op

BACKENDS = ("auto", "gpu", "torch")


class Attention(Stepwise):
    """y_t = W_o Σ_s p_ts v_s,  p_t = softmax_s(q_t · k_s / sqrt(d)),  s in max(reset, t - window + 1) .. t

    The state is the keys and values that later steps may still look at: {"k", "v": (B, S, H, d), "valid": (B, S)}, the
    oldest first; `valid` is False for steps before a reset. With a window S is at most window - 1, without one it grows.

    backend: what computes sequences without state, resets and a window that cuts: the Triton kernel ("gpu"), PyTorch's
    scaled_dot_product_attention ("torch"), or the faster of the two ("auto"). All others are PyTorch's.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        bias: bool = False,
        dropout: float = 0.0,
        window: int | None = None,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_heads(width, heads)
        if window is not None and not (isinstance(window, int) and window >= 1):
            raise InvalidInput(f"Attention: window={window}; use a whole number of steps, at least 1, or None for all of them")
        check_probability("Attention", "dropout", dropout)
        if backend not in BACKENDS:
            raise unknown("backend", backend, BACKENDS)
        self.width, self.heads, self.head_size = width, heads, width // heads
        self.dropout, self.window, self.backend = dropout, window, backend
        self.qkv = nn.Linear(width, 3 * width, bias=bias, device=device, dtype=dtype)
        self.out = nn.Linear(width, width, bias=bias, device=device, dtype=dtype)
        if bias:
            self._start_with_bias()

    def reset_parameters(self) -> None:
        """Draw all weights again, as for a new layer."""
        self.qkv.reset_parameters()
        self.out.reset_parameters()
        if self.qkv.bias is not None:
            self._start_with_bias()

    def _start_with_bias(self) -> None:
        """As nn.MultiheadAttention does it, which the authors' models with biases are made of."""
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, state: State | None = None, reset: Tensor | None = None) -> tuple[Tensor, State]:
        """x (B, T, width), reset (B, T) -> y (B, T, width) and the state after the last step."""
        check_input("Attention", x, self.width, reset, self.out.weight)
        u = self.qkv(x).unflatten(-1, (3, self.heads, self.head_size))  # B T 3 H d
        q, k, v = u.unbind(2)  # B T H d
        B, T = x.shape[:2]
        dropout = self.dropout if self.training else 0.0
        valid = x.new_ones(B, T, dtype=torch.bool)
        mask = None
        fits = self.window is None or self.window >= T
        if state is not None:
            self._check(state, k)
            k, v = torch.cat((state["k"].to(k.dtype), k), dim=1), torch.cat((state["v"].to(v.dtype), v), dim=1)
            valid = torch.cat((state["valid"], valid), dim=1)
        keys, values = k, v
        if state is not None or reset is not None or not fits:
            mask, valid = self._visible(valid, reset, T)
            # what nobody sees counts as zero: a probability of 0 would not keep out a NaN
            unseen = ~mask.any(-2).squeeze(1)[..., None, None]  # B S+T 1 1
            keys, values = k.masked_fill(unseen, 0), v.masked_fill(unseen, 0)
        if mask is None and self._takes_kernel(u, dropout):
            y = op.attention(u, dropout)
        else:
            q, keys, values = (part.transpose(1, 2) for part in (q, keys, values))  # B H T d
            y = F.scaled_dot_product_attention(q, keys, values, mask, dropout, is_causal=mask is None).transpose(1, 2)
        return self.out(y.flatten(-2)), self._recent(k, v, valid)

    def extra_repr(self) -> str:
        return f"width={self.width}, heads={self.heads}, window={self.window}"

    def _takes_kernel(self, u: Tensor, dropout: float) -> bool:
        if self.backend == "auto":
            return op.is_fastest(u, dropout)
        reason = op.unsupported(u, dropout) if self.backend == "gpu" else None
        if reason:
            raise InvalidInput(f"Attention: backend 'gpu' cannot run: {reason}; backend='torch' would work")
        return self.backend == "gpu"

    def _visible(self, valid: Tensor, reset: Tensor | None, T: int) -> tuple[Tensor, Tensor]:
        """Which of the S + T steps each of the T queries sees (B, 1, T, S + T), and which are valid after the last one."""
        device = valid.device
        total = valid.shape[1]
        s = torch.arange(total, device=device)  # S+T
        t = s[total - T :, None]  # T 1
        seen = s <= t
        if self.window is not None:
            seen = seen & (s > t - self.window)
        mask = seen & valid.unsqueeze(1)  # B T S+T
        if reset is not None:
            since = torch.where(reset, t.squeeze(-1), 0).cummax(1).values  # B T, the latest reset
            mask = mask & (s >= since.unsqueeze(-1))
            valid = valid & (s >= since[:, -1:])
        return mask.unsqueeze(1), valid

    def _recent(self, k: Tensor, v: Tensor, valid: Tensor) -> State:
        steps = k.shape[1]
        first = 0 if self.window is None else max(0, steps - (self.window - 1))
        state = {"k": k[:, first:], "v": v[:, first:], "valid": valid[:, first:]}
        # a short view would keep the whole segment in memory, and in files
        if 2 * first > steps:
            state = {name: kept.clone(memory_format=torch.contiguous_format) for name, kept in state.items()}
        return state

    def _check(self, state: State, k: Tensor) -> None:
        """Any number of past steps fits."""
        given = state.get("k") if isinstance(state, dict) else None
        steps = given.shape[1] if isinstance(given, Tensor) and given.dim() > 1 else 0
        shape = (k.shape[0], steps, self.heads, self.head_size)
        # autocast may have made them, or not: the smaller precisions are converted
        small = (torch.float32, torch.bfloat16, torch.float16)
        kept = [(name, state.get(name)) for name in ("k", "v")] if isinstance(state, dict) and k.dtype in small else []
        dtypes = {name: tensor.dtype for name, tensor in kept if isinstance(tensor, Tensor) and tensor.dtype in small}
        check_state("Attention", state, {"k": shape, "v": shape, "valid": shape[:2]}, k, dtypes | {"valid": torch.bool})
