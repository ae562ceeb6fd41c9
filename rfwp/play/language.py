"""A language model that reads a text: how much each word surprises it, with all words before it or the last few only."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from rfwp.errors import InvalidInput
from rfwp.lm.generate import prompt_words
from rfwp.models.generate import stream
from rfwp.play.shown import ShownLanguage
from rfwp.trace import LayerTrace, Recorded

MOST_WORDS = 400
MOST_CONTEXT = 100
MOST_NEW = 200
MOST_TEMPERATURE = 5.0
LIKELY = 20
"""Words that are kept of each distribution."""
_AT_ONCE = 64
"""Stretches of a text that are read side by side."""
_ROWS = 16
"""Distributions that exist at the same time: each may have hundreds of thousands of words."""


@dataclass(frozen=True)
class Reading:
    """A text as a language model read it, from the start of a line on. Whole distributions are too large to be kept."""

    written: list[str]
    """The words as they were typed; the first is `<eos>`, the end of the line before."""
    tokens: Tensor  # (T,)
    surprise: list[float]
    """-log2 p of every word but the first, given all words before it, in bits."""
    likely: Tensor  # (T, LIKELY)
    """The words that are likeliest to follow, and how likely they are."""
    probabilities: Tensor  # (T, LIKELY)
    layers: tuple[LayerTrace, ...]


@torch.no_grad()
def read_text(shown: ShownLanguage, text: str) -> Reading:
    """Every step of every layer recorded."""
    written = words_of(text)
    tokens = torch.tensor(shown.words.encode(written))
    recorded = Recorded(shown.model)
    hidden, _ = recorded.model.hidden(tokens.unsqueeze(0))
    return Reading(written, tokens, *_look_ahead(shown, hidden[0], tokens), recorded.layers)


def words_of(text: str) -> list[str]:
    """`<eos>`, then the words between spaces, with `<eos>` for each line break."""
    if not text.strip():
        raise InvalidInput("the text is empty; write a few words")
    # the last line break of a prompt does not count, but on the page people see it
    words = prompt_words(f"\n{text}\n" if text.endswith("\n") else f"\n{text}")
    if len(words) > MOST_WORDS + 1:
        raise InvalidInput(f"the text has {len(words) - 1:,} words; the page shows at most {MOST_WORDS:,}")
    return words


def _look_ahead(shown: ShownLanguage, hidden: Tensor, tokens: Tensor) -> tuple[list[float], Tensor, Tensor]:
    """-log2 p of each next word; the likeliest ones and their probabilities.

    Whole distributions, though `SequenceModel.nll` needs fewer numbers: its first call imports PyTorch's compiler, for seconds.
    """
    surprise, indices, values = [], [], []
    following = torch.cat((tokens[1:], tokens[:1]))
    for some, next_words in zip(hidden.split(_ROWS), following.split(_ROWS), strict=True):
        # log-probabilities from an adaptive softmax, logits from others: both have the same softmax
        log_p = shown.model.logits(some).log_softmax(-1)
        surprise += (-log_p.gather(-1, next_words.unsqueeze(-1)).squeeze(-1) / math.log(2)).tolist()
        likely = log_p.topk(min(LIKELY, len(shown.words)))
        indices.append(likely.indices)
        values.append(likely.values.exp())
    return [round(s, 3) for s in surprise[:-1]], torch.cat(indices), torch.cat(values)


@torch.no_grad()
def surprise_of_cut(shown: ShownLanguage, reading: Reading, context: int) -> list[float]:
    """-log2 p of every word but the first, given only the last `context` words before it."""
    if not 1 <= context <= MOST_CONTEXT:
        raise InvalidInput(f"context={context} does not fit; use 1 to {MOST_CONTEXT}")
    # a word with fewer words before it loses nothing
    found = reading.surprise[:context]
    if len(reading.tokens) <= context + 1:
        return found
    stretches = reading.tokens[1:-1].unfold(0, context, 1)  # N context
    for some, targets in zip(stretches.split(_AT_ONCE), reading.tokens[context + 1 :].split(_AT_ONCE), strict=True):
        hidden, _ = shown.model.hidden(some)
        found = found + [round(nats / math.log(2), 3) for nats in shown.model.nll(hidden[:, -1], targets).tolist()]
    return found


def expected_words(shown: ShownLanguage, reading: Reading, t: int, count: int) -> list[tuple[str, float]]:
    """The likeliest words to follow word t, with their probabilities."""
    words = shown.words.decode(reading.likely[t, :count])
    return list(zip(words, reading.probabilities[t, :count].tolist(), strict=True))


def go_on(shown: ShownLanguage, text: str, count: int, temperature: float, seed: int) -> Iterator[str]:
    """Words that continue a text; mistakes are found before the first of them."""
    if not 1 <= count <= MOST_NEW:
        raise InvalidInput(f"words={count} does not fit; use 1 to {MOST_NEW}")
    if not 0 <= temperature <= MOST_TEMPERATURE:
        raise InvalidInput(f"temperature={temperature:g} does not fit; use 0 to {MOST_TEMPERATURE:g}")
    prompt = torch.tensor([shown.words.encode(words_of(text))])
    tokens = islice(stream(shown.model, prompt, temperature=temperature, seed=seed), count)
    return (shown.words.symbols[int(token)] for token in tokens)
