"""What a model is made of: layers, the core between its ends, and the ends."""

from dataclasses import dataclass
from typing import Literal

Wiring = Literal["pre", "post", "lm"]
StemName = Literal["deep", "shallow"]
AgentInit = Literal["default", "orthogonal"]


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
    alike: bool = False
    """All blocks begin with the same weights, as in nn.TransformerEncoder, which copies one layer."""


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
    """Observation and last reward in, policy and value out, at every step: stem -> core -> heads."""

    actions: int = 6
    core: CoreConfig = BlocksConfig(width=128, layers=2, heads=4, ff=512)
    stem: StemName = "deep"
    """How frames are seen: deep is IMPALA's residual net, the paper's; shallow its two convolutions, for a CPU."""
    channels: tuple[int, ...] = (16, 32, 32)
    """Channels of the sections of the residual vision stem, five convolutions each."""
    features: int = 256
    """Outputs of the stem."""
    frames: int = 4
    """Stacked frames."""
    pixels: int = 84
    """Height and width of a frame."""
    vector: int = 0
    """Numbers of an observation that is a vector and no frames: the stem is then two linear layers; 0: frames."""
    init: AgentInit = "default"
    """Initial weights of stem and heads: PyTorch's, as the authors use, or orthogonal ones, which let more of a frame through."""


ModelConfig = SequenceConfig | AgentConfig
