"""One preset for every row of every table of the paper, named table/row, in the variant that the authors' code ran.

A variant stands behind a colon (`lm/delta-mlp-b:live`):
  printed     the paper's equations where the authors' code differs from them
  live        without weights that nothing reads
  pre-norm    the baselines of the language models wired like the proposed models
  normalised  the Linear Transformer with attention normalisation
docs/paper-map.md lists every deviation.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache

from rfwp.config import (
    AgentConfig,
    AgentInit,
    AttentionConfig,
    BlocksConfig,
    CodeExecutionConfig,
    CoreConfig,
    EnvironmentConfig,
    FWPConfig,
    HighwayConfig,
    ImpalaConfig,
    LanguageRunConfig,
    LanguageTrainConfig,
    ListOpsConfig,
    LSTMConfig,
    ModelConfig,
    NoCoreConfig,
    Recipe,
    RLRunConfig,
    RunConfig,
    SequenceConfig,
    TaskConfig,
    TextConfig,
    TrainConfig,
)
from rfwp.errors import InvalidInput, unknown

LINEAR_TRANSFORMER = FWPConfig(rule="sum", phi="elu")
DELTA_NET = FWPConfig()
DELTA_RNN = FWPConfig(fast="rnn")
RDN = FWPConfig(slow="recurrent", phi="softmax")

Layer = FWPConfig | AttentionConfig
MakeCore = Callable[[Layer], BlocksConfig]


@dataclass(frozen=True)
class Preset:
    """A row of a table."""

    name: str
    title: str
    """The row's name as printed."""
    model: ModelConfig
    printed_parameters: str = "-"
    """As the paper gives them."""
    variants: dict[str, ModelConfig] = field(default_factory=dict)


ALIASES = {"lm/delta-mlp": "lm/delta-mlp-b", "lm/delta-rnn": "lm/delta-rnn-b", "lm/delta-lstm": "lm/delta-lstm-d"}
"""Table 1 has the best version of each ablation under its plain name."""


WIKI_28M = {
    **{f"wiki-28m/{row}": f"lm/{row}" for row in ("transformer", "linear-transformer", "delta-net", "delta-mlp")},
    **{f"wiki-28m/{row}": f"lm/{row}" for row in ("delta-delta-net", "delta-rnn", "delta-lstm", "rdn")},
    **{f"wiki-28m/{row}-full-context": f"lm-full-context/{row}" for row in ("delta-rnn", "rdn")},
}
"""The rows of Table 1 on another, smaller text than WikiText-103: whose model each of them has."""


def find(name: str) -> Preset:
    """A preset by `table/row`."""
    known = presets()
    name = WIKI_28M.get(name, name)
    name = ALIASES.get(name, name)
    if name not in known:
        raise unknown("preset", name, {*known, *WIKI_28M})
    return known[name]


def model_config(name: str) -> ModelConfig:
    """The model of a preset, by `table/row` or `table/row:variant`."""
    base, _, variant = name.partition(":")
    preset = find(base)
    if not variant:
        return preset.model
    if not preset.variants:
        raise InvalidInput(f"preset {base} has no variants; leave ':{variant}' away")
    if variant not in preset.variants:
        raise unknown(f"variant of {base}", variant, preset.variants)
    return preset.variants[variant]


TASKS: dict[str, TaskConfig] = {
    "code-execution-3": CodeExecutionConfig(variables=3),
    "code-execution-5": CodeExecutionConfig(variables=5),
    "code-execution-5-thin": CodeExecutionConfig(variables=5),
    "listops-10": ListOpsConfig(depth=10),
    "listops-15": ListOpsConfig(depth=15),
}
"""The task of each table that `rfwp train` can run."""


def run_config(name: str) -> RunConfig:
    """The whole run of a preset, `table/row` or `table/row:variant`: model, task and the authors' training settings."""
    table = name.partition("/")[0]
    model = model_config(name)
    if table not in TASKS or not isinstance(model, SequenceConfig):
        raise InvalidInput(f"preset {name} has a model but no training run; these tables have: {', '.join(TASKS)}")
    train = TrainConfig(lr=3e-3, clip=0.1) if isinstance(model.core, LSTMConfig) else TrainConfig()
    return RunConfig(model, TASKS[table], train, name)


def language_run(name: str) -> LanguageRunConfig:
    """The whole run of a language model, `lm/row`, `lm-full-context/row` or `wiki-28m/row`: model, text and training."""
    preset = WIKI_28M.get(name, name)
    if name.startswith("wiki-28m/") and name not in WIKI_28M:
        raise unknown("preset", name, WIKI_28M)
    model = model_config(preset)
    if not is_language(preset) or not isinstance(model, SequenceConfig):
        raise InvalidInput(f"preset {name} is no language model; those are in the tables lm and lm-full-context")
    carry = preset.startswith("lm-full-context/")
    return LanguageRunConfig(model, TextConfig(), LanguageTrainConfig(carry=carry), name)


def is_language(name: str) -> bool:
    """Whether a preset is trained on running text."""
    return name.partition("/")[0] in ("lm", "lm-full-context", "wiki-28m")


RECIPES: dict[Recipe, tuple[AgentInit, ImpalaConfig]] = {
    "paper": ("default", ImpalaConfig()),
    "short": ("orthogonal", ImpalaConfig(unroll=20, batch=32, environments=64, max_lag=4, lr=6e-4, warm_up=125, eps=1e-3)),
}
"""An agent's initial weights and how it is trained. short: for a few million steps, with 2.5 times as many updates."""


def agent_run(name: str, environment: EnvironmentConfig, recipe: Recipe = "paper") -> RLRunConfig:
    """The whole run of an agent, `atari/row` or `atari-large/row`, in any environment, by one of the RECIPES.

    Sizes that the environment decides, such as the number of actions, are those of the preset.
    """
    model = model_config(name)
    if not isinstance(model, AgentConfig):
        raise InvalidInput(f"preset {name} is no agent; those are in the tables atari and atari-large")
    if recipe not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
    init, impala = RECIPES[recipe]
    return RLRunConfig(replace(model, init=init), environment, impala, name)


def is_agent(name: str) -> bool:
    """Whether a preset plays games."""
    return name.partition("/")[0] in ("atari", "atari-large")


@cache
def presets() -> dict[str, Preset]:
    """All presets by name, table by table."""
    rows = [*_lm(), *_lm_full_context()]
    for variables in (3, 5):
        rows += _algorithmic(
            f"code-execution-{variables}", inputs=19 + variables, outputs=26, parameters=CODE_EXECUTION_PARAMETERS
        )
    rows += [_lstm("code-execution-5", 24, 26, 512, "1.3 M"), *_thin()]
    for depth in (10, 15):
        rows += _algorithmic(f"listops-{depth}", inputs=14, outputs=10, parameters={})
    rows += [_lstm("listops-15", 14, 10, hidden, "-") for hidden in (1024, 2048, 4096)]
    return {row.name: row for row in [*rows, *_atari()]}


# --- Word-level language modelling (Table 1 and the ablation table) ---


def _language_model(layer: Layer, wiring: str = "lm", layers: int = 16, positions: str = "descending") -> SequenceConfig:
    core = BlocksConfig(layer, width=128, layers=layers, heads=8, ff=2048, dropout=0.1, wiring=wiring)  # type: ignore[arg-type]
    return SequenceConfig(
        inputs=267_735,
        outputs=267_735,
        core=core,
        embedding=128,
        positions=positions,  # type: ignore[arg-type]
        window=256,
        cutoffs=(20_000, 40_000, 200_000),
        scale_embedding=True,
        embedding_dropout=0.1,
        head_dropout=0.1,
        init="normal",
    )


def _scaled(layer: FWPConfig) -> FWPConfig:
    return replace(layer, scale_output=True)


def _lm() -> list[Preset]:
    """Table 1 and the ablations. Differs from the paper: the residual is taken from LN(x), outputs are scaled by 1/sqrt(d).

    The baselines' settings are those of the older scripts that are the only ones to show them: post-norm, outputs
    normalised by z · q.
    """

    def baseline(row: str, title: str, layer: Layer, pre_norm: Layer, printed: Layer) -> Preset:
        variants: dict[str, ModelConfig] = {"pre-norm": _language_model(pre_norm), "printed": _language_model(printed, "pre")}
        return Preset(f"lm/{row}", title, _language_model(layer, "post"), "44.0 M", variants)

    def row(
        name: str, title: str, layer: FWPConfig, parameters: str, printed: FWPConfig, layers: int = 16, **others: FWPConfig
    ) -> Preset:
        variants: dict[str, ModelConfig] = {name: _language_model(other, layers=layers) for name, other in others.items()}
        variants["printed"] = _language_model(printed, "pre", layers)
        return Preset(f"lm/{name}", title, _language_model(layer, layers=layers), parameters, variants)

    def mlp(version: str, blocks: int, layers: int) -> Preset:
        layer = FWPConfig(fast=f"authors_mlp(blocks={blocks})", phi="elu_sum_eps")
        live = FWPConfig(fast=f"residual_mlp(blocks={blocks})", phi="elu_sum_eps")
        printed = FWPConfig(fast=f"mlp(depth={2 * blocks}, inner=16)", phi="softmax")
        return row(f"delta-mlp-{version}", f"Delta MLP {version.upper()}", layer, "44.3 M", printed, layers, live=live)

    def lstm(version: str) -> Preset:
        name = "lstm" if version == "d" else f"lstm_{version}"
        layer = FWPConfig(fast=name, scale_output=version != "a", output_dropout=0.1 if version == "a" else 0.0)
        printed = FWPConfig(fast=f"{name}(shared_query=True)")
        return row(f"delta-lstm-{version}", f"Delta LSTM {version.upper()}", layer, "47.3 M", printed)

    attention = AttentionConfig()
    normalised = replace(_scaled(LINEAR_TRANSFORMER), fast="normalised_linear")
    rnn_a = FWPConfig(fast="rnn_a", phi="softmax", output_dropout=0.1)
    delta_delta = FWPConfig(fast="delta_net", phi="elu_sum_eps")
    return [
        baseline("transformer", "Transformer", attention, attention, attention),
        baseline("linear-transformer", "Linear Transformer", normalised, normalised, FWPConfig(rule="sum", phi="elu_sum")),
        baseline("delta-net", "Delta Net", replace(_scaled(DELTA_NET), fast="normalised_linear"), _scaled(DELTA_NET), DELTA_NET),
        mlp("a", blocks=2, layers=8),
        mlp("b", blocks=1, layers=11),
        row("delta-delta-net", "Delta Delta Net", delta_delta, "44.6 M", delta_delta),
        row("delta-rnn-a", "Delta RNN A", rnn_a, "44.6 M", replace(rnn_a, output_dropout=0.0)),
        row("delta-rnn-b", "Delta RNN B", _scaled(DELTA_RNN), "44.6 M", DELTA_RNN),
        *(lstm(version) for version in "abcd"),
        row("rdn", "RDN", _scaled(RDN), "44.1 M", RDN),
    ]


def _lm_full_context() -> list[Preset]:
    """Post-norm, no positions, state carried from segment to segment."""

    def row(name: str, title: str, layer: FWPConfig, parameters: str) -> Preset:
        model = _language_model(_scaled(layer), "post", positions="none")
        printed = _language_model(layer, "pre", positions="none")
        return Preset(f"lm-full-context/{name}", f"{title} + full context", model, parameters, {"printed": printed})

    return [row("delta-rnn", "Delta RNN", DELTA_RNN, "44.6 M"), row("rdn", "RDN", RDN, "44.1 M")]


# --- Code execution and sequential ListOps (Table 2 and the appendix) ---

CODE_EXECUTION_PARAMETERS = {
    "lstm": "405 K",
    "transformer": "3.2 M",
    "linear-transformer": "3.2 M",
    "delta-net": "3.2 M",
    "delta-rnn": "3.7 M",
    "rdn": "3.2 M",
}
_FWP_ROWS: dict[str, tuple[str, FWPConfig]] = {
    "linear-transformer": ("Linear Transformer", LINEAR_TRANSFORMER),
    "delta-net": ("Delta Net", DELTA_NET),
    "delta-rnn": ("Delta RNN", DELTA_RNN),
    "rdn": ("RDN", RDN),
}


def _wide(layer: Layer) -> BlocksConfig:
    return BlocksConfig(layer, width=256, layers=4, heads=16, ff=1024, dropout=0.1)


def _deep(layer: Layer) -> BlocksConfig:
    return BlocksConfig(layer, width=128, layers=8, heads=8, ff=256, dropout=0.1)


def _transformer(table: str, core: MakeCore, inputs: int, outputs: int, parameters: str) -> Preset:
    """Differs from the paper: PyTorch's own encoder, which is post-norm with a last norm, biases and alike layers."""
    blocks = replace(core(AttentionConfig(bias=True, dropout=0.1)), wiring="post", final_norm=True, alike=True)
    model = SequenceConfig(inputs, outputs, blocks, embedding=blocks.width, positions="ascending")
    return Preset(
        f"{table}/transformer", "Transformer", model, parameters, {"printed": replace(model, core=core(AttentionConfig()))}
    )


def _fwp_rows(table: str, core: MakeCore, inputs: int, outputs: int, parameters: dict[str, str]) -> list[Preset]:
    rows = []
    for name, (title, layer) in _FWP_ROWS.items():
        model = SequenceConfig(inputs, outputs, core(layer), embedding=core(layer).width)
        variants: dict[str, ModelConfig] = {}
        if name == "linear-transformer":
            variants["normalised"] = replace(model, core=core(replace(layer, fast="normalised_linear")))
        rows.append(Preset(f"{table}/{name}", title, model, parameters.get(name, "-"), variants))
    return rows


def _lstm(table: str, inputs: int, outputs: int, hidden: int, parameters: str) -> Preset:
    name = "lstm" if hidden == 256 else f"lstm-{hidden}"
    model = SequenceConfig(inputs, outputs, LSTMConfig(hidden), embedding=128)
    return Preset(f"{table}/{name}", "LSTM" if hidden == 256 else f"LSTM {hidden}", model, parameters)


def _algorithmic(table: str, inputs: int, outputs: int, parameters: dict[str, str]) -> list[Preset]:
    return [
        _lstm(table, inputs, outputs, 256, parameters.get("lstm", "-")),
        _transformer(table, _wide, inputs, outputs, parameters.get("transformer", "-")),
        *_fwp_rows(table, _wide, inputs, outputs, parameters),
    ]


def _thin() -> list[Preset]:
    """Deeper and thinner models on code execution with 5 variables."""
    parameters = {"linear-transformer": "1.1 M", "delta-net": "1.1 M", "delta-rnn": "1.3 M", "rdn": "1.1 M"}
    table = "code-execution-5-thin"
    return [_transformer(table, _deep, 24, 26, "1.1 M"), *_fwp_rows(table, _deep, 24, 26, parameters)]


# --- Atari (the tables of the last experiment) ---


def _atari() -> list[Preset]:
    def row(name: str, title: str, core: CoreConfig, parameters: str, features: int = 256) -> Preset:
        return Preset(name, title, AgentConfig(core=core, features=features), parameters)

    def fwp(name: str, title: str, layer: FWPConfig, parameters: str) -> Preset:
        return row(f"atari/{name}", title, BlocksConfig(layer, width=128, layers=2, heads=4, ff=512), parameters)

    return [
        row("atari/feedforward", "Feedforward", NoCoreConfig(), "1.1 M"),
        # Differs from the paper, or not: the authors' code does not have this model. Four 321 -> 256 maps give the 1.7 M printed.
        row("atari/feedforward-gated", "FF gated", HighwayConfig(256), "1.7 M", features=320),
        row("atari/lstm", "LSTM", LSTMConfig(256), "1.6 M"),
        fwp("linear-transformer", "LT", FWPConfig(rule="sum", phi="elu_sum_eps"), "1.5 M"),
        fwp("delta-net", "Delta Net", FWPConfig(phi="elu_sum_eps"), "1.5 M"),
        fwp("rdn", "RDN", RDN, "1.5 M"),
        fwp("delta-rnn", "Delta RNN", FWPConfig(fast="rnn", phi="softmax"), "1.6 M"),
        row("atari-large/rdn", "RDN larger", BlocksConfig(RDN, width=256, layers=4, heads=8, ff=512), "3.4 M"),
    ]
