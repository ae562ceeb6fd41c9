"""Tokens that a model makes up: the prompt at once, then one step a token, in constant time and memory.

>>> for token in stream(model, prompt, temperature=0.8, top_p=0.95, seed=1):        # prompt (B, T), token (B,)
...     print(words[token[0]])
>>> tokens = model.generate(prompt, 100, temperature=0)                             # (B, 100), the most likely ones
"""

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rfwp.errors import InvalidInput, check_shapes
from rfwp.models.modes import evaluating

if TYPE_CHECKING:
    from rfwp.models.sequence import SequenceModel


def stream(
    model: "SequenceModel",
    prompt: Tensor,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    eos: int | None = None,
    state: Any = None,
) -> Iterator[Tensor]:
    """One token (B,) after another that goes on from the prompt (B, T), without end.

    temperature  p ∝ exp(logits / temperature); 0 takes the most likely token
    top_k        only the k most likely tokens
    top_p        only the most likely tokens that together have at least this probability, after top_k
    seed         of a generator of its own; None: PyTorch's
    eos          a row that has said it says nothing else; when all have, the stream ends. The device is asked at every step.
    state        what the model remembers from before the prompt
    """
    _check(model, prompt, temperature, top_k, top_p, eos)
    if seed is not None and not -(2**63) <= seed < 2**64:
        raise InvalidInput(f"generate: seed={seed} is out of range; use a whole number of at most 64 bits")
    generator = None if seed is None else torch.Generator(prompt.device).manual_seed(seed)
    return _stream(model, prompt, temperature, top_k, top_p, generator, eos, state)


def generate(model: "SequenceModel", prompt: Tensor, length: int, **options: Any) -> Tensor:
    """At most `length` tokens (B, length) that go on from the prompt (B, T); fewer if all rows come to `eos` before."""
    if length < 1:
        raise InvalidInput(f"generate: length={length}; use at least 1")
    return torch.stack(list(islice(stream(model, prompt, **options), length)), dim=1)


def sample(
    logits: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator | None
) -> Tensor:
    """logits (B, V) -> tokens (B,), with nothing asked of the device."""
    if temperature == 0:
        return logits.argmax(-1)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # the most likely token stays at 0: a very small temperature would make all of them -inf
    logits = (logits - logits.amax(-1, keepdim=True)) / max(temperature, torch.finfo(logits.dtype).tiny)
    indices = None
    if top_k is not None:
        logits, indices = logits.topk(min(top_k, logits.shape[-1]))
    elif top_p is not None:
        logits, indices = logits.sort(descending=True)
    p = logits.softmax(-1)
    if top_p is not None:
        # the first token has nothing before it, so one always stays
        p = p.masked_fill(p.cumsum(-1) - p >= top_p, 0)
    # the smallest of exponential times e_w / p_w is at w with probability p_w
    e = torch.empty_like(p).exponential_(generator=generator)
    choice = (p / e).argmax(-1, keepdim=True)
    return (choice if indices is None else indices.gather(-1, choice)).squeeze(-1)


# this decorator turns gradients off for each step of a generator, not for those who take its tokens
@torch.no_grad()
def _stream(
    model: "SequenceModel",
    prompt: Tensor,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator | None,
    eos: int | None,
    state: Any,
) -> Iterator[Tensor]:
    # listed once, because that takes a twentieth of the time of a step
    parts = tuple(model.modules())
    with evaluating(model, parts):
        hidden, state = model.hidden(prompt, state)
        logits = model.logits(hidden[:, -1])
    done = prompt.new_zeros(len(prompt), dtype=torch.bool)
    while True:
        token = sample(logits, temperature, top_k, top_p, generator)
        if eos is not None:
            token = token.masked_fill(done, eos)
            done = token == eos
        yield token
        if eos is not None and done.all():
            return
        with evaluating(model, parts):
            logits, state = model.step(token, state)


def _check(
    model: "SequenceModel", prompt: Tensor, temperature: float, top_k: int | None, top_p: float | None, eos: int | None
) -> None:
    inputs, outputs = model.config.inputs, model.config.outputs
    if inputs != outputs:
        raise InvalidInput(f"generate: the model reads {inputs} and writes {outputs} tokens, so it cannot read what it writes")
    if isinstance(prompt, Tensor) and prompt.numel() == 0:
        raise InvalidInput(f"generate: the prompt is empty, its shape is {tuple(prompt.shape)}; give at least one token")
    check_shapes("generate", {"prompt": (prompt, "B T")})
    if not 0 <= temperature < float("inf"):
        raise InvalidInput(f"generate: temperature={temperature}; use 0 for the most likely token or a positive number")
    if top_k is not None and top_k < 1:
        raise InvalidInput(f"generate: top_k={top_k} leaves no token; use at least 1, or None for all")
    if top_p is not None and not 0 < top_p <= 1:
        raise InvalidInput(f"generate: top_p={top_p}; use a value above 0 and up to 1, or None for all tokens")
    if eos is not None and not 0 <= eos < outputs:
        raise InvalidInput(f"generate: eos={eos} is outside of the vocabulary 0 .. {outputs - 1}")
