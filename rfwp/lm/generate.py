"""Text that a language model makes up: one word after another for the terminal, or thousands of texts at once.

>>> model, words = load_language_model("runs/lm-rdn")
>>> for piece in tell(model, words, "The game began", GenerateOptions(tokens=50, seed=1)):
...     print(piece, end="", flush=True)
"""

import os
import sys
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import torch
from torch import Tensor

from rfwp.atomic import whole_file
from rfwp.errors import InvalidInput
from rfwp.layers.state import select
from rfwp.lm.generate_options import GenerateOptions
from rfwp.lm.spacing import Spacing
from rfwp.models import SequenceModel
from rfwp.models.generate import stream
from rfwp.models.modes import evaluating
from rfwp.tasks.reading import EOS
from rfwp.tasks.words import Words

_SHOWN = 5


def check_options(options: GenerateOptions) -> None:
    """Before a model is loaded; what concerns the model is checked by `stream`."""
    for name in ("tokens", "streams"):
        if not 1 <= getattr(options, name) <= sys.maxsize:
            raise InvalidInput(f"generate: {name}={getattr(options, name)}; use at least 1 and at most {sys.maxsize}")
    if options.out is not None and options.out.is_dir():
        raise InvalidInput(f"generate: --out {options.out} is a folder; give a file")


def prompt_words(text: str) -> list[str]:
    """Words between spaces, `<eos>` for a line break inside; an empty prompt is the start of a line."""
    lines = text.removesuffix("\n").split("\n")
    words = [word for line in lines for word in [*line.split(), EOS]]
    return words[:-1] or [EOS]


def unknown_words(prompt: list[str], words: Words) -> str:
    """One line about the words of a prompt that become `<unk>`; "" if there are none."""
    missing = list(dict.fromkeys(word for word in prompt if word not in words))
    if not missing:
        return ""
    more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
    return f"not in the vocabulary, read as {words.symbols[words.unk]}: {', '.join(missing[:_SHOWN])}{more}"


def beyond_training(model: SequenceModel, prompt: list[str], tokens: int) -> str:
    """One line if a model that counts its words down is asked for more than it was trained to count; "" otherwise."""
    config = model.config
    if config.positions != "descending" or len(prompt) + tokens <= config.window:
        return ""
    return (
        f"this model was trained on {config.window} words at a time; text beyond them gets worse, models of lm-full-context go on"
    )


def tell(model: SequenceModel, words: Words, prompt: str, options: GenerateOptions) -> Iterator[str]:
    """The prompt as the model reads it, then word after word as it comes, each with the space or line break before it."""
    spacing = Spacing(options.detokenise)
    ids = words.encode(prompt_words(prompt))
    tokens = islice(_tokens(model, words, ids, 1, options), options.tokens)
    # made before the prompt is shown, so that what the backends say does not stand inside the text
    first = next(tokens)
    # an empty prompt, read as `<eos>`, is no line break of the text
    if prompt.split():
        yield "".join(map(spacing, words.decode(ids)))
    for token in chain((first,), tokens):
        word = words.symbols[int(token)]
        if options.one_line and word == EOS:
            return
        yield spacing(word)


def tell_many(model: SequenceModel, words: Words, prompt: str, options: GenerateOptions) -> Iterator[str]:
    """The texts of all streams, one line each, prompt included; all of them are made in one batch."""
    ids = words.encode(prompt_words(prompt))
    made = torch.stack(list(islice(_tokens(model, words, ids, options.streams, options), options.tokens)), dim=1).cpu()
    start = words.decode(ids) if prompt.split() else []
    for row in made.tolist():
        text = row[: row.index(words.eos)] if options.one_line and words.eos in row else row
        spacing = Spacing(options.detokenise, breaks=False)
        yield "".join(map(spacing, start + [words.symbols[token] for token in text]))


def write_lines(lines: Iterator[str], path: Path) -> None:
    """A text a line; the file is there whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # a link, as /dev/stdout, stays one
        with whole_file(path.resolve() if path.is_file() else path) as file:
            for line in lines:
                file.write(f"{line}\n".encode())
    except OSError as error:
        raise InvalidInput(f"generate: cannot write {path}: {os.strerror(error.errno) if error.errno else error}") from error


def _tokens(model: SequenceModel, words: Words, ids: list[int], streams: int, options: GenerateOptions) -> Iterator[Tensor]:
    """Tokens (streams,) without end. The prompt is read once; its last word starts every stream with a copy of the state."""
    prompt = torch.tensor([ids], device=next(model.parameters()).device)
    state = None
    if streams > 1 and len(ids) > 1:
        with evaluating(model), torch.no_grad():
            _, state = model.hidden(prompt[:, :-1])
        state, prompt = select(state, [0] * streams), prompt[:, -1:]
    return stream(
        model,
        prompt.expand(streams, -1),
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        eos=words.eos if options.one_line else None,
        state=state,
    )
