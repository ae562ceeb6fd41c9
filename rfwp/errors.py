"""Errors that say what was wrong, what was seen, and what to do.

Every check of user input in rfwp raises one of these with a one-line message. `assert` is kept for our own slips.
"""

import difflib
import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


class RFWPError(Exception):
    """Base of all errors that a user of rfwp can cause; the command line prints its message and exits with 2."""


class UnknownName(RFWPError, KeyError):
    """A name that is not in the list of names that would have worked."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message


class InvalidInput(RFWPError, ValueError):
    """A value, shape, dtype or device that does not fit."""


class InvalidFile(RFWPError, ValueError):
    """A file or folder that is missing, damaged or was made for something else."""


class MissingExtra(RFWPError, ImportError):
    """A feature that needs an optional dependency."""


def reason(error: BaseException) -> str:
    """What an error of somebody else's says, in one line: of a disk only `No space left on device`."""
    return getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__


def lacks_memory(error: BaseException) -> str | None:
    """Of an error by which PyTorch or Python says that there is not enough memory: how much it was asked for; else None."""
    said = str(error)
    known = ("DefaultCPUAllocator", "size calculation overflowed")
    if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not any(words in said for words in known):
        return None
    asked = re.search(r"allocate (\d\S* \w+)", said)
    return asked[1] if asked else "more than there is"


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """`unknown model 'delta_rn'; did you mean 'delta_rnn'?`, or the whole list when nothing is close."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names)}"
    return UnknownName(f"unknown {kind} '{name}'; {hint}")


def missing_extra(feature: str, extra: str) -> MissingExtra:
    return MissingExtra(f'{feature} needs: pip install "rfwp[{extra}]"')


def check_heads(width: int, heads: int) -> None:
    """`heads=7 does not divide width=256; try heads=8`"""
    if type(width) is not int or type(heads) is not int:
        raise InvalidInput(f"width={width!r} and heads={heads!r} must both be whole numbers")
    if width < 1 or heads < 1:
        raise InvalidInput(f"width={width} and heads={heads} must both be at least 1")
    if width % heads:
        fitting = min((h for h in range(1, width + 1) if width % h == 0), key=lambda h: (abs(h - heads), -h))
        raise InvalidInput(f"heads={heads} does not divide width={width}; try heads={fitting}")


def check_shapes(where: str, tensors: Mapping[str, tuple[Tensor, str]]) -> dict[str, int]:
    """Bind the letters of shapes like "B T H K" across tensors; the first tensor that disagrees is named.

    A number stands for itself. Returns the size of every letter.
    """
    sizes: dict[str, int] = {}
    source: dict[str, str] = {}
    for name, (tensor, pattern) in tensors.items():
        check_tensor(where, name, tensor)
        letters = pattern.split()
        if tensor.dim() != len(letters):
            raise InvalidInput(
                f"{where}: {name} has shape {tuple(tensor.shape)}, expected {len(letters)} dimensions ({', '.join(letters)})"
            )
        for letter, size in zip(letters, tensor.shape, strict=True):
            expected = int(letter) if letter.isdigit() else sizes.setdefault(letter, size)
            origin = source.setdefault(letter, name)
            if size != expected:
                why = "" if letter.isdigit() else f", where {letter}={expected} as in {origin}"
                raise InvalidInput(f"{where}: {name} has shape {tuple(tensor.shape)}, expected ({', '.join(letters)}){why}")
    for letter, size in sizes.items():
        if size < 1:
            raise InvalidInput(f"{where}: {source[letter]} has {letter}=0; every dimension needs at least 1")
    return sizes


def check_tensor(where: str, name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise InvalidInput(f"{where}: {name} is a {type(value).__name__}, expected a tensor; try torch.as_tensor")


def check_probability(where: str, name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InvalidInput(f"{where}: {name}={value} is not a probability; use a value from 0 to 1")


def check_same(where: str, **tensors: Tensor) -> None:
    """One device for all, one floating dtype for all."""
    (first_name, first), *others = tensors.items()
    if not first.dtype.is_floating_point:
        raise InvalidInput(f"{where}: {first_name} is {first.dtype}, expected a floating dtype; try {first_name}.float()")
    for name, tensor in others:
        if tensor.dtype != first.dtype:
            raise InvalidInput(f"{where}: {name} is {tensor.dtype} but {first_name} is {first.dtype}; convert one of them")
        check_device(where, name, tensor, first_name, first)


def check_device(where: str, name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    if tensor.device != other.device:
        raise InvalidInput(
            f"{where}: {name} is on {tensor.device} but {other_name} is on {other.device}; move one with .to('{other.device}')"
        )


def usable_device(device: torch.device | str) -> torch.device:
    """The device, if there is such a thing and this machine has it."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise InvalidInput(f"device {device!r} does not exist; use 'cpu', 'cuda', 'cuda:1', 'mps' or 'meta'") from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise InvalidInput(f"device '{found}' is not here: PyTorch sees {torch.cuda.device_count()} CUDA devices; use 'cpu'")
    if found.type not in ("cpu", "cuda", "meta"):
        try:
            torch.empty(0, device=found)
        except (RuntimeError, AssertionError, ImportError):
            raise InvalidInput(f"device '{found}' is not here: this PyTorch cannot use it; use 'cpu'") from None
    return found


def check_reset(where: str, reset: Tensor | None, batch: int, steps: int, like: Tensor) -> None:
    """`reset` is a (B, T) bool mask: True zeroes the state before that step."""
    if reset is None:
        return
    check_tensor(where, "reset", reset)
    if tuple(reset.shape) != (batch, steps):
        raise InvalidInput(f"{where}: reset has shape {tuple(reset.shape)}, expected (B, T) = ({batch}, {steps})")
    if reset.dtype != torch.bool:
        raise InvalidInput(f"{where}: reset is {reset.dtype}, expected torch.bool; try reset.bool()")
    check_device(where, "reset", reset, "the input", like)
