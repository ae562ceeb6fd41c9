"""Tokens in, a distribution over tokens out, at every step: the models of the language and algorithmic tasks."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rfwp.config import BlocksConfig, SequenceConfig
from rfwp.errors import InvalidInput, check_device, check_probability, check_reset, check_shapes, unknown
from rfwp.layers.fwp import FWP
from rfwp.layers.state import check_state, check_step, may_look
from rfwp.models.adaptive import TiedAdaptive
from rfwp.models.core import build_core
from rfwp.models.generate import generate
from rfwp.models.pretrained import Pretrained


class SequenceModel(Pretrained):
    """logits_t = head(core(embedding(token_t) [· sqrt(D)] [+ position_t]))

    >>> model = SequenceModel(SequenceConfig(inputs=24, outputs=26))
    >>> logits, state = model(tokens)               # tokens (B, T) long, logits (B, T, 26)
    >>> logits, state = model(tokens, state)        # goes on where the first call stopped
    >>> loss, state = model.loss(tokens, targets)

    The state is {"core": the core's state} and, where positions are used, "position": (B,) long, the steps since the
    last reset. With cutoffs the head is the tied adaptive softmax, and the logits are log-probabilities.
    """

    config_class = SequenceConfig

    def __init__(self, config: SequenceConfig):
        super().__init__()
        _check(config)
        self.config = config
        self.head: nn.Linear | TiedAdaptive
        self.core = build_core(config.core, config.embedding)
        if config.cutoffs:
            self.head = TiedAdaptive(config.outputs, config.embedding, config.cutoffs)
        else:
            self.embedding = nn.Embedding(config.inputs, config.embedding)
            self.head = nn.Linear(self.core.outputs, config.outputs)
        self.embedding_dropout = nn.Dropout(config.embedding_dropout)
        self.head_dropout = nn.Dropout(config.head_dropout)
        if config.init == "normal":
            self.apply(_normal)

    def forward(self, tokens: Tensor, state: Any = None, reset: Tensor | None = None) -> tuple[Tensor, dict[str, Any]]:
        """tokens (B, T), reset (B, T) -> logits (B, T, outputs) and the state after the last step."""
        hidden, state = self.hidden(tokens, state, reset)
        return self.logits(hidden), state

    def step(self, tokens: Tensor, state: Any = None, reset: Tensor | None = None) -> tuple[Tensor, dict[str, Any]]:
        """One step, tokens (B,), reset (B,) -> logits (B, outputs) and the next state. It trains like the whole sequence."""
        check_step("SequenceModel.step", "tokens", tokens, "B", reset)
        logits, state = self(tokens.unsqueeze(-1), state, None if reset is None else reset.unsqueeze(-1))
        return logits.squeeze(1), state

    def loss(
        self,
        tokens: Tensor,
        targets: Tensor,
        state: Any = None,
        reset: Tensor | None = None,
        ignore: int = -1,
        capacity: Sequence[int] | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """The mean of -log p(target) over the targets (B, T) that are not `ignore`, and the state after the last step.

        `capacity` is for the tied adaptive softmax: bounds that let its loss be recorded, see `TiedAdaptive.loss`.
        """
        self._check_tokens("targets", targets, self.config.outputs, ignore)
        check_shapes("SequenceModel", {"tokens": (tokens, "B T"), "targets": (targets, "B T")})
        hidden, state = self.hidden(tokens, state, reset)
        return self.loss_of_hidden(hidden, targets, ignore, capacity), state

    def loss_of_hidden(self, hidden: Tensor, targets: Tensor, ignore: int = -1, capacity: Sequence[int] | None = None) -> Tensor:
        """The loss of what `hidden` gave, for those who need both: (B, T, core.outputs), targets (B, T)"""
        hidden, targets = hidden.flatten(0, 1), targets.flatten().long()
        if isinstance(self.head, TiedAdaptive):
            return self.head.loss(hidden, targets, ignore, capacity)
        count = (targets != ignore).sum().clamp(min=1)
        return F.cross_entropy(self.head(hidden), targets, ignore_index=ignore, reduction="sum") / count

    def hidden(self, tokens: Tensor, state: Any = None, reset: Tensor | None = None) -> tuple[Tensor, dict[str, Any]]:
        """What the head sees: (B, T, core.outputs), and the state after the last step."""
        self._check_tokens("tokens", tokens, self.config.inputs)
        B, T = tokens.shape
        check_reset("SequenceModel", reset, B, T, tokens)
        state = self._checked(state, tokens)
        x = self.head.embed(tokens) if isinstance(self.head, TiedAdaptive) else self.embedding(tokens)
        if self.config.scale_embedding:
            x = x * self.config.embedding**0.5
        new = {}
        if self.config.positions != "none":
            n, new["position"] = count_steps(state.get("position"), reset, tokens)
            x = x + sinusoid(self._position(n), self.config.embedding, x.dtype)
        x, core = self.core(self.embedding_dropout(x), state["core"], reset)
        return self.head_dropout(x), new | {"core": core}

    def logits(self, hidden: Tensor) -> Tensor:
        """What the head makes of `hidden`: (..., core.outputs) -> (..., outputs)"""
        return self.head.log_prob(hidden) if isinstance(self.head, TiedAdaptive) else self.head(hidden)

    @torch.no_grad()
    def nll(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """-log p(target) of each target, without gradients: (..., core.outputs), targets (...) -> (...)"""
        if isinstance(self.head, TiedAdaptive):
            return self.head.nll(hidden, targets)
        logits = self.head(hidden)
        log_p = F.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        return -log_p.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)

    def generate(self, prompt: Tensor, length: int, **options: Any) -> Tensor:
        """At most `length` tokens that go on from the prompt (B, T); the options are those of `rfwp.models.generate.stream`."""
        return generate(self, prompt, length, **options)

    def _position(self, n: Tensor) -> Tensor:
        """n = 0, 1, ... since the last reset -> the position that is added.

        descending: window - 1 - n, so the last token of a full window has position 0; past the window it goes on below 0.
        Differs from the authors' code: there the first token of a window has position len - 1, whatever its length len.
        A shorter sequence would then need to know its length at its first token; here splitting it changes nothing.
        """
        return self.config.window - 1 - n if self.config.positions == "descending" else n

    def _checked(self, state: Any, tokens: Tensor) -> dict[str, Any]:
        if state is None:
            return {"core": None}
        expected = {"core"} | ({"position"} if self.config.positions != "none" else set())
        if not isinstance(state, dict) or set(state) != expected:
            seen = ", ".join(map(str, state)) if isinstance(state, dict) else f"a {type(state).__name__}"
            names = ", ".join(sorted(expected))
            raise InvalidInput(f"SequenceModel: this state has {seen}; the model expects {names}; it comes from another model")
        if "position" in expected:
            position, shape = {"position": state["position"]}, {"position": (tokens.shape[0],)}
            check_state("SequenceModel", position, shape, tokens, {"position": torch.long})
        return state

    def _check_tokens(self, name: str, tokens: Tensor, vocabulary: int, ignore: int | None = None) -> None:
        """Shape, dtype, device and range."""
        check_shapes("SequenceModel", {name: (tokens, "B T")})
        if tokens.dtype not in (torch.int64, torch.int32):
            raise InvalidInput(f"SequenceModel: {name} are {tokens.dtype}, expected torch.long; try {name}.long()")
        check_device("SequenceModel", name, tokens, "the model", next(self.parameters()))
        if not may_look(tokens):
            return
        counted = tokens if ignore is None else tokens[tokens != ignore]
        if counted.numel():
            low, high = torch.stack(counted.aminmax()).tolist()
            if low < 0 or high >= vocabulary:
                bad = low if low < 0 else high
                hint = "" if ignore is None else f"; only ignore={ignore} stands for no target"
                raise InvalidInput(f"SequenceModel: {name} contain {bad}, outside of the vocabulary 0 .. {vocabulary - 1}{hint}")


def count_steps(start: Tensor | None, reset: Tensor | None, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Steps since the last reset at every step (B, T), and at the step to come (B,)."""
    B, T = tokens.shape
    t = torch.arange(T, device=tokens.device).expand(B, T)
    n = t if start is None else t + start.unsqueeze(-1)
    if reset is not None:
        latest = torch.where(reset, t, -1).cummax(1).values
        n = torch.where(latest >= 0, t - latest, n)
    return n, n[:, -1] + 1


def sinusoid(position: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """[sin(p ω_0), sin(p ω_1), ..., cos(p ω_0), cos(p ω_1), ...],  ω_i = 10000^(-2i/size)

    The authors interleave sines and cosines on algorithmic tasks. A fixed permutation of the features makes no
    difference to the learned maps that follow.
    """
    precise = torch.promote_types(dtype, torch.float32)
    omega = 10000.0 ** (-torch.arange(0, size, 2, device=position.device, dtype=precise) / size)
    angle = position.to(precise).unsqueeze(-1) * omega
    return torch.cat((angle.sin(), angle.cos()), dim=-1).to(dtype)


def _check(config: SequenceConfig) -> None:
    """A config that cannot be built, in one line."""
    if not isinstance(config, SequenceConfig):
        raise InvalidInput(
            f"SequenceModel: its config is a {type(config).__name__}, expected a SequenceConfig; rfwp.build takes any"
        )
    for name, choices in (("positions", ("none", "ascending", "descending")), ("init", ("default", "normal"))):
        if getattr(config, name) not in choices:
            raise unknown(name, getattr(config, name), choices)
    if config.window < 1:
        raise InvalidInput(f"SequenceModel: window={config.window}; use at least 1")
    if min(config.inputs, config.outputs, config.embedding) < 1:
        sizes = f"inputs={config.inputs}, outputs={config.outputs} and embedding={config.embedding}"
        raise InvalidInput(f"SequenceModel: {sizes} must all be at least 1")
    for name in ("embedding_dropout", "head_dropout"):
        check_probability("SequenceModel", name, getattr(config, name))
    if isinstance(config.core, BlocksConfig) and config.core.width != config.embedding:
        raise InvalidInput(f"embedding={config.embedding} differs from the blocks' width={config.core.width}; make them equal")
    if config.positions != "none" and config.embedding % 2:
        raise InvalidInput(f"positions need an even embedding size, saw embedding={config.embedding}")
    if config.cutoffs and config.inputs != config.outputs:
        raise InvalidInput(f"tied embeddings (cutoffs) need inputs={config.inputs} and outputs={config.outputs} to be equal")
    hidden = getattr(config.core, "hidden", config.embedding)
    if config.cutoffs and hidden != config.embedding:
        raise InvalidInput(
            f"tied embeddings (cutoffs) need embedding={config.embedding} and the core's hidden={hidden} to be equal"
        )


def _normal(module: nn.Module) -> None:
    """N(0, 0.02) for all matrices and N(1, 0.02) for the gains of norms, as in the authors' language models.

    The norms inside fast nets count; the recurrent weights R of slow nets keep their own initialisation.
    """
    if isinstance(module, FWP):
        for name, vector in module.fast.items():
            if name.startswith("gain"):
                nn.init.normal_(vector, 1.0, 0.02)
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, 0.0, 0.02)
    if isinstance(module, nn.LayerNorm):
        nn.init.normal_(module.weight, 1.0, 0.02)
    if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
        nn.init.zeros_(module.bias)
