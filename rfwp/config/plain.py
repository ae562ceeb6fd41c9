"""Configs as plain data, for JSON, and back."""

import dataclasses
import types
import typing
from typing import Any, Literal

from rfwp.config.models import (
    AgentConfig,
    AttentionConfig,
    BlocksConfig,
    FWPConfig,
    HighwayConfig,
    LSTMConfig,
    NoCoreConfig,
    SequenceConfig,
)
from rfwp.config.runs import LanguageRunConfig, RLRunConfig, RunConfig
from rfwp.config.tasks import (
    AtariConfig,
    CodeExecutionConfig,
    FilesConfig,
    GymConfig,
    ListOpsConfig,
    MemoryGameConfig,
    TextConfig,
)
from rfwp.config.training import ImpalaConfig, LanguageTrainConfig, TrainConfig
from rfwp.errors import InvalidInput, unknown

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
        values[name] = convert(value, hints[name], f"{where}.{name}")
    missing = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING and f.name not in values]
    if missing:
        raise InvalidInput(f"{where}: {data['kind']} needs {', '.join(missing)}")
    return cls(**values)


def convert(value: Any, hint: Any, where: str) -> Any:
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
        # numpy's float64 is a float, too
        if type(value) is option or (option is float and (type(value) is int or isinstance(value, float))):
            return value
    # nobody types a tuple
    name = "a list such as [10,20]" if typing.get_origin(hint) is tuple else getattr(hint, "__name__", hint)
    advice = f"""; in quotes it is one: '"{value}"'""" if hint is str and isinstance(value, int | float) else ""
    raise InvalidInput(f"{where}: expected {name}, saw {_short(value)}{advice}")


def check_fields(config: Any) -> None:
    """Values that do not fit their fields, which Python lets pass: a run would write a config that nobody can read again."""
    from_dict(to_dict(config))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
