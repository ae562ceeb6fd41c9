"""Configs: frozen dataclasses that are at once command-line flags, config.json beside the weights, and the key of a result.

The text under a field is its help. A config knows nothing of the code that it configures.
"""

import dataclasses
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rfwp.errors import InvalidInput, RFWPError, unknown

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
    """Observation and last reward in, policy and value out, at every step: stem -> core -> heads."""

    actions: int = 6
    core: CoreConfig = BlocksConfig(width=128, layers=2, heads=4, ff=512)
    stem: Literal["deep", "shallow"] = "deep"
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


ModelConfig = SequenceConfig | AgentConfig


@dataclass(frozen=True)
class CodeExecutionConfig:
    """Programs of assignments, increments, conditions and prints; the target is what each print shows."""

    variables: int = 3
    """How many of the variables x, y, z, a, b a program uses."""
    statements: int = 100
    semantics: Literal["authors", "true"] = "authors"
    """authors: a true condition does not execute an assignment to a variable that already has a value; true: it does."""
    train: int = 9_999
    """Sequences in the training set."""
    valid: int = 999
    test: int = 999
    data_seed: int = 42


@dataclass(frozen=True)
class ListOpsConfig:
    """Nested lists of MIN, MAX and FIRST; the target is the value of the whole list, at its last token."""

    depth: int = 10
    """Nested operators."""
    train: int = 10_000
    """Sequences in the training set."""
    valid: int = 1_000
    test: int = 1_000
    data_seed: int = 42


@dataclass(frozen=True)
class FilesConfig:
    """A user's own sequences: FOLDER/train.src and train.tgt, valid.*, test.*; one sequence a line, tokens between spaces."""

    folder: str
    silent: str = "_"
    """The target token that means nothing to say; accuracy is reported with and without it."""


@dataclass(frozen=True)
class TextConfig:
    """Words of running text, in streams of segments."""

    source: str = "wikitext-103"
    """wikitext-103 or wikitext-2 (downloaded on first use), or a folder with wiki.train, wiki.valid, wiki.test[.tokens][.xz]."""
    vocabulary: str = ""
    """A file with one word a line, by frequency; further columns are ignored. Empty: the words of the training text."""
    segment: int = 256
    """Steps a segment."""
    held_out: str = ""
    """The same for validation and test, where they are not with the training text; empty: they are."""


TaskConfig = CodeExecutionConfig | ListOpsConfig | FilesConfig


@dataclass(frozen=True)
class MemoryGameConfig:
    """A small game without an emulator."""

    game: Literal["recall", "t-maze", "catch"] = "recall"
    """recall and t-maze need memory, catch does not."""
    length: int = 10
    """Steps between seeing what matters and acting on it (recall, t-maze)."""
    symbols: int = 4
    """How many different things there are to recall."""


@dataclass(frozen=True)
class AtariConfig:
    """An Atari game and how it is played. None: as the protocol says."""

    game: str = "pong"
    protocol: Literal["paper_code", "standard"] = "paper_code"
    """paper_code: no sticky actions, a lost life ends an episode; standard: sticky actions, whole games."""
    actions: int | None = None
    """Only this many of the game's actions, the first ones; 0: all that it has a use for."""
    frame_skip: int | None = None
    """Frames that an action is held for; the agent sees the maximum of the last two."""
    sticky: float | None = None
    """Probability that a frame repeats the last action, whatever the agent chose."""
    noop_max: int | None = None
    """A game starts with a random number of frames without action, at most this many."""
    fire_reset: bool | None = None
    """Press FIRE at the start of a game and, where a lost life ends an episode, in the first step of each further life."""
    life_loss_ends: bool | None = None
    """A lost life ends the agent's episode; the game goes on."""
    max_frames: int | None = None
    """A game is cut off after this many frames."""
    stack: int | None = None
    """Frames in an observation."""
    pixels: int | None = None
    """Height and width of a frame."""


@dataclass(frozen=True)
class GymConfig:
    """Any gymnasium environment with box or image observations and discrete actions."""

    id: str = "CartPole-v1"


EnvironmentConfig = AtariConfig | MemoryGameConfig | GymConfig


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained: Adam, one validation an epoch, the best checkpoint tested at the end."""

    epochs: int = 200
    batch: int = 64
    """Sequences a step, over all processes."""
    accumulate: int = 1
    """Parts that a batch is cut into, one after another; the gradient is that of the whole batch."""
    lr: float = 3e-4
    decay: float = 0.0
    """The last share of the training, from 0 to 1, over which the learning rate falls linearly to 0; 0: it never falls."""
    beta1: float = 0.9
    beta2: float = 0.995
    eps: float = 1e-9
    clip: float | None = None
    """Largest norm of the gradient; None: not clipped."""
    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    """Of the matrix products on a GPU; bf16 is autocast. Weights and optimiser are float32 in all of them."""
    patience: int | None = None
    """Stop after this many epochs without a better validation score; None: never."""
    seed: int = 1
    """Of the weights, the dropout and the order of the data."""


@dataclass(frozen=True)
class LanguageTrainConfig:
    """How a language model is trained: Adam with warm-up and cosine, validation every so many steps, the best one tested."""

    steps: int = 500_000
    streams: int = 96
    """Streams that the text is cut into, read side by side, over all processes."""
    accumulate: int = 1
    """Parts that a batch is cut into, one after another; the gradient is that of the whole batch."""
    lr: float = 2.5e-4
    warmup: int = 2_000
    """Steps in which the learning rate rises from 0; then it follows a cosine to 0 at the last step."""
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    clip: float | None = 0.25
    """Largest norm of the gradient; None: not clipped."""
    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    """Of the matrix products on a GPU; bf16 is autocast. Weights and optimiser are float32 in all of them."""
    carry: bool = False
    """Each segment begins with the state that the one before has left, without its gradient; False: with a zero state."""
    validate_every: int = 4_000
    """Steps between validations."""
    test_stride: int = 1
    """Words that the windows of the last test are apart; 1 is the paper's way. With carry there are no windows."""
    seed: int = 1
    """Of the weights and the dropout."""


@dataclass(frozen=True)
class ImpalaConfig:
    """How an agent is trained: IMPALA with the paper's settings, V-trace actor-critic with losses summed over an unroll."""

    steps: int = 200_000_000
    """Agent steps of the whole training, over which the learning rate goes to 0."""
    unroll: int = 50
    """Steps that an unroll has, and backpropagation through time goes back."""
    batch: int = 32
    """Unrolls an update, over all processes."""
    mode: Literal["free", "lockstep"] = "free"
    """free: environments go on while the learner works; lockstep: in turns, the same for the same seed."""
    environments: int = 96
    """How many are played in free mode, over all processes; lockstep has one for each unroll of a batch."""
    groups: int = 2
    """Groups of environments in each process in free mode: one is played while actions are chosen for another."""
    max_lag: int = 4
    """Updates that the weights of any action may be behind those that learn from it, in free mode; actors wait for it."""
    precision: Literal["fp32", "tf32", "bf16"] = "tf32"
    """Of the matrix products on a GPU; bf16 is autocast. Weights and optimiser are float32 in all of them."""
    lag: int = 0
    """Updates that the actor's weights are behind the learner's in lockstep training: 0 or 1."""
    discount: float = 0.99
    reward_clip: float = 1.0
    """The learner's rewards are cut to [-reward_clip, reward_clip]."""
    value_cost: float = 0.5
    entropy_cost: float = 0.01
    rho_bar: float = 1.0
    """Largest importance weight in the temporal differences of V-trace."""
    c_bar: float = 1.0
    """Largest importance weight that carries a difference one step back."""
    pg_rho_bar: float = 1.0
    """Largest importance weight of a policy gradient."""
    trace: float = 1.0
    """V-trace's lambda: 1 carries differences back in full, 0 not at all."""
    lr: float = 6e-4
    alpha: float = 0.99
    """RMSProp's smoothing."""
    eps: float = 0.01
    """RMSProp's divisor is sqrt(mean square) + eps."""
    momentum: float = 0.0
    clip: float = 40.0
    """Largest norm of the gradient."""
    seed: int = 1
    """Of the environments and the sampled actions."""


@dataclass(frozen=True)
class RLRunConfig:
    """Everything that decides the training of an agent: agent, environment and IMPALA's settings."""

    agent: AgentConfig
    environment: EnvironmentConfig
    impala: ImpalaConfig = ImpalaConfig()
    preset: str = ""
    """The preset that this run was made from."""


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a result: model, task and training."""

    model: SequenceConfig
    task: TaskConfig
    train: TrainConfig = TrainConfig()
    preset: str = ""
    """The preset that this run was made from."""


@dataclass(frozen=True)
class LanguageRunConfig:
    """Everything that decides the result of a language model: model, text and training."""

    model: SequenceConfig
    text: TextConfig = TextConfig()
    train: LanguageTrainConfig = LanguageTrainConfig()
    preset: str = ""
    """The preset that this run was made from."""


_MODELS = (FWPConfig, AttentionConfig, BlocksConfig, LSTMConfig, HighwayConfig, NoCoreConfig, SequenceConfig, AgentConfig)
_ENVIRONMENTS = (AtariConfig, MemoryGameConfig, GymConfig)
_TASKS = (CodeExecutionConfig, ListOpsConfig, FilesConfig, TextConfig)
_RUNS = (RunConfig, LanguageRunConfig, RLRunConfig)
_CONFIGS = (*_MODELS, *_ENVIRONMENTS, *_TASKS, TrainConfig, LanguageTrainConfig, ImpalaConfig, *_RUNS)
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


def differences(old: Mapping[str, Any], new: Mapping[str, Any], ignore: Iterable[str] = ()) -> list[str]:
    """`train.lr 0.0003 -> 0.001` for every field in which two configs, as `to_dict` gives them, differ.

    A field that one of them lacks, because it was added to the configs since, has its default there.
    """
    before, after = dict(_flat(_complete(old))), dict(_flat(_complete(new)))
    ignored = set(ignore)
    pairs = ((name, before.get(name, "-"), after.get(name, "-")) for name in {**before, **after} if name not in ignored)
    return [f"{name} {was} -> {now}" for name, was, now in pairs if was != now]


def _complete(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """With all fields of today; what is no config of today stays as it is."""
    try:
        return to_dict(from_dict(dict(data)))
    except RFWPError:
        return data


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


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
            # who types task.semantics=true or model.positions=none means the word
            word = str(value).lower() if value is None or isinstance(value, bool) else value
            if word in typing.get_args(option):
                return word
            raise unknown(f"value for {where}", value, typing.get_args(option))
        if typing.get_origin(option) is tuple and isinstance(value, list) and all(type(v) is int for v in value):
            return tuple(value)
        if type(value) is option or (option is float and type(value) is int):
            return value
    raise InvalidInput(f"{where}: expected {getattr(hint, '__name__', hint)}, saw {_short(value)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
