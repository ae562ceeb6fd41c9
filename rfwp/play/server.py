"""The web server of the page: a few JSON endpoints and packaged static files, on this machine only."""

import json
import logging
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rfwp.errors import InvalidInput, RFWPError
from rfwp.play.guard import Guard
from rfwp.play.shown import Shown
from rfwp.play.traces import MOST_CHARACTERS, MOST_DEPTH, MOST_STATEMENTS, MOST_TOKENS, Kept, Traces, generate
from rfwp.play.view import EXAMPLES, describe_difference, describe_model, describe_step, describe_trace, export_step

log = logging.getLogger("rfwp")

STATIC = Path(__file__).parent / "static"
HOST, PORT = "127.0.0.1", 8753
MOST_BODY = 4 * MOST_CHARACTERS
GONE = "this trace is no longer kept; run the text again"


def make_app(shown: Mapping[str, Shown]) -> Starlette:
    """The page for these models."""
    app = Starlette(
        routes=[
            Route("/", lambda _: FileResponse(STATIC / "index.html")),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/api/models", models),
            Route("/api/generate", write_text),
            Route("/api/trace", read_text, methods=["POST"]),
            Route("/api/trace/{key}/step", step),
            Route("/api/trace/{key}/export", export),
            Route("/api/trace/{key}/difference/{other}", difference),
        ],
        middleware=[Middleware(Guard)],
        exception_handlers={RFWPError: _say_mistake, HTTPException: _say_status, Exception: _say_slip},
    )
    app.state.traces = Traces(shown)
    return app


def open_socket(port: int | None) -> socket.socket:
    """A listening place; without a port of the user's own, the usual one or, where that is taken, any free one."""
    if port is not None and not 0 <= port <= 65535:
        raise InvalidInput(f"--port {port} does not exist; use 1 to 65535, or 0 for any free one")
    for number in (PORT, 0) if port is None else (port,):
        place = socket.socket()
        # a port that a server has just left is free
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            place.bind((HOST, number))
            # two servers with this option may bind one port, but only one can listen
            place.listen(128)
            return place
        except OSError as error:
            place.close()
            reason = error.strerror
    raise InvalidInput(f"port {port} cannot be used ({reason}); give another one with --port, or none for any free one")


def serve(shown: Mapping[str, Shown], place: socket.socket) -> None:
    """Serve the page until Ctrl-C."""
    config = uvicorn.Config(make_app(shown), log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    # uvicorn closes the server and then raises what it caught
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[place])


# --- Endpoints ---


async def models(request: Request) -> Response:
    limits = {"characters": MOST_CHARACTERS, "tokens": MOST_TOKENS, "code-execution": MOST_STATEMENTS, "listops": MOST_DEPTH}
    described = [describe_model(shown) for shown in _traces(request).shown.values()]
    return JSONResponse({"models": described, "limits": limits, "examples": EXAMPLES})


async def write_text(request: Request) -> Response:
    """A random program or list."""
    shown = _traces(request).model(request.query_params.get("model", ""))
    size = _number(request, "size", 10, 1_000)
    seed = _number(request, "seed", secrets.randbelow(2**31), 2**31)
    return JSONResponse({"text": await run_in_threadpool(generate, shown, size, seed)})


async def read_text(request: Request) -> Response:
    """Let a model read a text."""
    data = await _json(request)
    name, text = data.get("model"), data.get("text")
    if not isinstance(name, str) or not isinstance(text, str):
        raise InvalidInput("expected a JSON object with 'model' and 'text', both strings")
    traces = _traces(request)

    def work() -> dict[str, Any]:
        key, kept = traces.add(name, text)
        return describe_trace(key, kept.shown, kept.steps, kept.truth)

    return JSONResponse(await run_in_threadpool(work))


async def step(request: Request) -> Response:
    kept = _kept(request, "key")
    layers, heads = len(kept.steps.layers), kept.steps.layers[0].outputs.shape[1]
    place = _step(request, kept), _number(request, "layer", 0, layers), _number(request, "head", 0, heads)
    return JSONResponse(await run_in_threadpool(describe_step, kept.steps, *place))


async def export(request: Request) -> Response:
    """One step with all its numbers, as a file."""
    kept = _kept(request, "key")
    t = _step(request, kept)
    data = await run_in_threadpool(export_step, kept.shown, kept.steps, kept.truth, t)
    return JSONResponse(data, headers={"Content-Disposition": f'attachment; filename="rfwp-step-{t + 1}.json"'})


async def difference(request: Request) -> Response:
    """How far a trace is from that of an edited text."""
    one, other = _kept(request, "key"), _kept(request, "other")
    if one.shown is not other.shown or len(one.steps.tokens) != len(other.steps.tokens):
        raise InvalidInput("only traces of one model and of equal length are compared; change tokens, do not add or remove any")
    return JSONResponse(await run_in_threadpool(describe_difference, one.steps, other.steps))


# --- What requests hold ---


def _traces(request: Request) -> Traces:
    traces: Traces = request.app.state.traces
    return traces


def _kept(request: Request, name: str) -> Kept:
    kept = _traces(request).get(request.path_params[name])
    if kept is None:
        raise HTTPException(404, GONE)
    return kept


def _step(request: Request, kept: Kept) -> int:
    return _number(request, "t", 0, len(kept.steps.tokens))


def _number(request: Request, name: str, default: int, below: int) -> int:
    """A whole number of the address, from 0 on."""
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text) < below):
        raise InvalidInput(f"{name}={text[:20]} does not fit; use 0 to {below - 1}")
    return int(text)


async def _json(request: Request) -> dict[str, Any]:
    """The body, never more of it than allowed. Its type makes browsers ask before they send it from another site."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "expected a body of type application/json")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BODY:
            raise HTTPException(413, f"the request is too long; a text has at most {MOST_CHARACTERS:,} characters")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise InvalidInput("the body is no JSON object")
    return data


# --- Errors: one line each ---


def _say_mistake(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)


def _say_status(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def _say_slip(request: Request, error: Exception) -> Response:
    """Our own; the server's log has the rest."""
    return JSONResponse({"error": f"the server failed on this: {type(error).__name__}; its terminal says more"}, 500)
