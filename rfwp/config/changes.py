"""Changes to configs: fields by their names, what a user has typed, and how two configs differ."""

import dataclasses
import json
import math
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rfwp.config.plain import convert, from_dict, to_dict
from rfwp.errors import InvalidInput, RFWPError, unknown


def replace(config: Any, changes: Mapping[str, Any], where: str = "") -> Any:
    """A copy with some fields changed; a dot reaches into a nested config: {"core.width": 128}.

    `where`: what an error says before the name of a field, such as `train.`
    """
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        hints = typing.get_type_hints(type(config))
        if not hints:
            raise InvalidInput(f"unknown field '{path}': {config!r} is a value, without fields; leave '.{path}' away")
        if name not in hints:
            raise unknown(f"field of {type(config).__name__}", name, hints)
        if rest:
            value = replace(getattr(config, name), {rest: value}, f"{where}{name}.")
        elif not dataclasses.is_dataclass(value):
            value = convert(list(value) if isinstance(value, tuple) else value, hints[name], where + path)
        config = dataclasses.replace(config, **{name: value})
    return config


def parse_changes(texts: Sequence[str]) -> dict[str, Any]:
    """`train.lr=1e-3` -> {"train.lr": 0.001}; values are JSON, and a word is a string."""
    changes: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise InvalidInput(f"--set {text}: expected name=value, for example train.lr=1e-3")
        if name == "preset":
            raise InvalidInput(
                f"--set {text}: it says what a run was made from, and cannot be set; name another preset in its place"
            )
        if name in changes:
            raise InvalidInput(f"--set {name} is there twice; give it once")
        words = {"none": None, "true": True, "false": False}
        try:
            changes[name] = words[value.lower()] if value.lower() in words else json.loads(value)
        except ValueError:
            changes[name] = value
        if isinstance(changes[name], float) and not math.isfinite(changes[name]):
            raise InvalidInput(f"--set {text}: expected a finite number")
    return changes


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
