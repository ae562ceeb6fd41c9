"""Configs: frozen dataclasses that are at once command-line flags, config.json beside the weights, and the key of a result.

The text under a field is its help. A config knows nothing of the code that it configures.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rfwp.errors import InvalidInput, unknown

Wiring = Literal["pre", "post", "lm"]


@dataclass(frozen=True)
class FWPConfig:
    """A fast weight programmer layer: slow net × update rule × fast net."""

    slow: str = "feedforward"
    """Slow net: feedforward, recurrent (through the fast net's output) or lstm."""
    rule: str = "delta"
    """Update rule: sum or delta."""
    fast: str = "linear"
    """Fast net by name, fields in parentheses: linear, rnn, lstm, delta_net, mlp(depth=3), ..."""
    phi: str = "elu_sum"
    """Feature map of keys and queries: softmax, elu_sum, elu_sum_eps, elu or identity."""
    scale_output: bool = False
    """Multiply the fast net's output by 1/sqrt(head size), as the authors' language models do."""
    output_dropout: float = 0.0
    """Dropout on the fast net's output, before the output projection."""


@dataclass(frozen=True)
class AttentionConfig:
    """A softmax attention layer."""

    bias: bool = False
    """Biases in the projections."""
    dropout: float = 0.0
    """Dropout on the attention probabilities."""
    window: int | None = None
    """How many steps a query sees, itself included; None: all of them."""


@dataclass(frozen=True)
class BlocksConfig:
    """A stack of residual blocks, each a layer that mixes time and a feedforward net."""

    layer: FWPConfig | AttentionConfig = FWPConfig()
    width: int = 256
    layers: int = 4
    heads: int = 16
    ff: int = 1024
    """Inner width of the feedforward nets."""
    dropout: float = 0.0
    """Dropout after the layer's output projection and twice in the feedforward net."""
    wiring: Wiring = "pre"
    """Where the norms stand: x + f(LN(x)); LN(x + f(x)); or LN(x) + f(LN(x)), the authors' language models."""
    final_norm: bool = False
    """A last layer norm after all blocks."""


@dataclass(frozen=True)
class LSTMConfig:
    """Plain nn.LSTM layers."""

    hidden: int = 256
    layers: int = 1


@dataclass(frozen=True)
class HighwayConfig:
    """One feedforward highway layer: y = t ⊙ tanh(H x) + c ⊙ P x with gates t and c."""

    hidden: int = 256


@dataclass(frozen=True)
class NoCoreConfig:
    """Nothing between the stem and the heads: no memory."""


CoreConfig = BlocksConfig | LSTMConfig | HighwayConfig | NoCoreConfig


@dataclass(frozen=True)
class SequenceConfig:
    """Tokens in, a distribution over tokens out, at every step: embedding -> core -> head."""

    inputs: int
    """Size of the input vocabulary."""
    outputs: int
    """Size of the output vocabulary."""
    core: CoreConfig = BlocksConfig()
    embedding: int = 256
    """Embedding size; equals the width for blocks."""
    positions: Literal["none", "ascending", "descending"] = "none"
    """Sinusoidal positions added to the embedding; descending counts down to 0 at the end of the window."""
    window: int = 256
    """Length of the window that descending positions count down in."""
    cutoffs: tuple[int, ...] = ()
    """Cluster boundaries of the tied adaptive softmax; empty: a plain linear head of its own."""
    scale_embedding: bool = False
    """Multiply embeddings by sqrt(embedding size)."""
    embedding_dropout: float = 0.0
    head_dropout: float = 0.0
    init: Literal["default", "normal"] = "default"
    """PyTorch's initialisation, or N(0, 0.02) for all matrices, as in the authors' language models."""


@dataclass(frozen=True)
class AgentConfig:
    """Frames and last reward in, policy and value out, at every step: vision stem -> core -> heads."""

    actions: int = 6
    core: CoreConfig = BlocksConfig(width=128, layers=2, heads=4, ff=512)
    channels: tuple[int, ...] = (16, 32, 32)
    """Channels of the sections of the residual vision stem, five convolutions each."""
    features: int = 256
    """Outputs of the vision stem."""
    frames: int = 4
    """Stacked frames."""
    pixels: int = 84
    """Height and width of a frame."""


ModelConfig = SequenceConfig | AgentConfig

_CONFIGS = (FWPConfig, AttentionConfig, BlocksConfig, LSTMConfig, HighwayConfig, NoCoreConfig, SequenceConfig, AgentConfig)
_KINDS = {cls.__name__.removesuffix("Config").lower(): cls for cls in _CONFIGS}


def to_dict(config: Any) -> dict[str, Any]:
    """Plain data for JSON; `kind` says which config it is."""
    data: dict[str, Any] = {"kind": type(config).__name__.removesuffix("Config").lower()}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            value = to_dict(value)
        data[field.name] = list(value) if isinstance(value, tuple) else value
    return data


def from_dict(data: Any, where: str = "config") -> Any:
    """The inverse of `to_dict`; everything that does not fit is named."""
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise InvalidInput(f"{where}: expected an object with a 'kind', saw {_short(data)}")
    if data["kind"] not in _KINDS:
        raise unknown(f"kind in {where}", data["kind"], _KINDS)
    cls = _KINDS[data["kind"]]
    hints = typing.get_type_hints(cls)
    values = {}
    for name, value in data.items():
        if name == "kind":
            continue
        if name not in hints:
            raise unknown(f"field in {where} ({data['kind']})", name, hints)
        values[name] = _convert(value, hints[name], f"{where}.{name}")
    missing = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING and f.name not in values]
    if missing:
        raise InvalidInput(f"{where}: {data['kind']} needs {', '.join(missing)}")
    return cls(**values)


def replace(config: Any, changes: Mapping[str, Any]) -> Any:
    """A copy with some fields changed; a dot reaches into a nested config: {"core.width": 128}."""
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        hints = typing.get_type_hints(type(config))
        if name not in hints:
            raise unknown(f"field of {type(config).__name__}", name, hints)
        if rest:
            value = replace(getattr(config, name), {rest: value})
        elif not dataclasses.is_dataclass(value):
            value = _convert(list(value) if isinstance(value, tuple) else value, hints[name], path)
        config = dataclasses.replace(config, **{name: value})
    return config


def _convert(value: Any, hint: Any, where: str) -> Any:
    """JSON has fewer types than Python: objects become configs, lists become tuples, everything else must already fit."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if any(dataclasses.is_dataclass(option) for option in options):
        config = from_dict(value, where)
        if type(config) not in options:
            raise InvalidInput(f"{where}: {value['kind']} does not fit here")
        return config
    for option in options:
        if typing.get_origin(option) is Literal:
            if value in typing.get_args(option):
                return value
            raise unknown(f"value for {where}", value, typing.get_args(option))
        if typing.get_origin(option) is tuple and isinstance(value, list) and all(type(v) is int for v in value):
            return tuple(value)
        if type(value) is option or (option is float and type(value) is int):
            return value
    raise InvalidInput(f"{where}: expected {getattr(hint, '__name__', hint)}, saw {_short(value)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
