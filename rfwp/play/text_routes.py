"""Requests about texts: models, readings, steps, comparisons, continuations."""

import json
import secrets
from collections.abc import Iterator
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from rfwp.errors import InvalidInput
from rfwp.play.asked import body, field, kept_trace, number, traces_of
from rfwp.play.shown import CODE, LISTS
from rfwp.play.telling import find_head
from rfwp.play.traces import MOST_CHARACTERS, MOST_DEPTH, MOST_STATEMENTS, MOST_TOKENS, Kept, generate
from rfwp.play.view import EXAMPLES, describe_difference, describe_model, describe_step, describe_trace, export_step
from rfwp.trace import Trace

SEEDS = 2**31


async def models(request: Request) -> Response:
    limits = {"characters": MOST_CHARACTERS, "tokens": MOST_TOKENS, CODE: MOST_STATEMENTS, LISTS: MOST_DEPTH}
    described = [describe_model(shown) for shown in traces_of(request).shown.values()]
    return JSONResponse({"models": described, "limits": limits, "examples": EXAMPLES})


async def write_text(request: Request) -> Response:
    """A random program or list."""
    shown = traces_of(request).model(request.query_params.get("model", ""))
    size, seed = number(request, "size", 10, 1_000), number(request, "seed", secrets.randbelow(SEEDS), SEEDS)
    return JSONResponse({"text": await run_in_threadpool(generate, shown, size, seed)})


async def read_text(request: Request) -> Response:
    """Let a model read a text."""
    data = await body(request)
    name, text = field(data, "model", str), field(data, "text", str)
    traces = traces_of(request)

    def work() -> dict[str, Any]:
        return describe_trace(*traces.add(name, text))

    return JSONResponse(await run_in_threadpool(work))


async def step(request: Request) -> Response:
    kept = kept_trace(request, request.path_params["key"])
    layers, heads = len(kept.steps.layers), kept.steps.layers[0].outputs.shape[1]
    place = _step(request, kept), number(request, "layer", 0, layers), number(request, "head", 0, heads)
    return JSONResponse(await run_in_threadpool(describe_step, kept, *place))


async def telling(request: Request) -> Response:
    """The head to look at."""
    kept = kept_trace(request, request.path_params["key"])
    return JSONResponse(await run_in_threadpool(find_head, kept, _step(request, kept)))


async def export(request: Request) -> Response:
    """One step with all its numbers, of one model or of two that read the same text, as a file."""
    keys = [request.path_params["key"], *request.query_params.getlist("beside")[:1]]
    found = [kept_trace(request, key) for key in keys]
    t = min(_step(request, kept) for kept in found)
    data = {"step": t, "models": [await run_in_threadpool(export_step, kept, t) for kept in found]}
    return JSONResponse(data, headers={"Content-Disposition": f'attachment; filename="rfwp-step-{t + 1}.json"'})


async def difference(request: Request) -> Response:
    """How far a trace is from that of an edited text."""
    one, other = (kept_trace(request, request.path_params[name]) for name in ("key", "other"))
    if not isinstance(one.steps, Trace) or not isinstance(other.steps, Trace):
        raise InvalidInput("only programs and lists are compared; change the text of a language model and read it again")
    if one.shown is not other.shown or len(one.steps.tokens) != len(other.steps.tokens):
        raise InvalidInput("only traces of one model and of equal length are compared; change tokens, do not add or remove any")
    return JSONResponse(await run_in_threadpool(describe_difference, one.steps, other.steps))


async def cut(request: Request) -> Response:
    """The surprise of every word when only the last few words before it are read."""
    from rfwp.play.language import MOST_CONTEXT, surprise_of_cut

    kept = kept_trace(request, request.path_params["key"])
    shown = traces_of(request).language_model(kept.shown.name)
    assert not isinstance(kept.steps, Trace)
    context = number(request, "context", 10, MOST_CONTEXT + 1)
    found = await run_in_threadpool(surprise_of_cut, shown, kept.steps, context)
    return JSONResponse({"context": context, "surprise": [None, *found]})


async def continue_text(request: Request) -> Response:
    """Words as a language model makes them up, one JSON object a line."""
    from rfwp.play.language import go_on

    data = await body(request)
    shown = traces_of(request).language_model(field(data, "model", str))
    text = field(data, "text", str)
    if len(text) > MOST_CHARACTERS:
        raise InvalidInput(f"the text has {len(text):,} characters; give at most {MOST_CHARACTERS:,}")
    count, temperature = field(data, "words", int, 30), field(data, "temperature", float, 1.0)
    seed = field(data, "seed", int, secrets.randbelow(SEEDS)) % SEEDS
    words = await run_in_threadpool(go_on, shown, text, count, temperature, seed)

    def lines() -> Iterator[str]:
        for word in words:
            yield json.dumps({"word": word}) + "\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


def _step(request: Request, kept: Kept) -> int:
    return number(request, "t", 0, len(kept.steps.tokens))


ROUTES = [
    Route("/api/models", models),
    Route("/api/generate", write_text),
    Route("/api/continue", continue_text, methods=["POST"]),
    Route("/api/trace", read_text, methods=["POST"]),
    Route("/api/trace/{key}/step", step),
    Route("/api/trace/{key}/telling", telling),
    Route("/api/trace/{key}/export", export),
    Route("/api/trace/{key}/cut", cut),
    Route("/api/trace/{key}/difference/{other}", difference),
]
