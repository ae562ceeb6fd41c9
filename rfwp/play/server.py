"""The web server of the page: a few JSON endpoints and packaged static files, on this machine only."""

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from rfwp.errors import InvalidInput, RFWPError
from rfwp.play import game_routes, text_routes
from rfwp.play.guard import Guard
from rfwp.play.shown import Shown, ShownAgent
from rfwp.play.traces import Traces
from rfwp.play.view import EXAMPLES

STATIC = Path(__file__).parent / "static"
HOST, PORT = "127.0.0.1", 8753


def make_app(shown: Mapping[str, Shown]) -> Starlette:
    """The page for these models."""
    app = Starlette(
        routes=[
            Route("/", lambda _: FileResponse(STATIC / "index.html")),
            Mount("/static", StaticFiles(directory=STATIC)),
            *text_routes.ROUTES,
            *game_routes.ROUTES,
        ],
        middleware=[Middleware(Guard)],
        exception_handlers={RFWPError: _say_mistake, HTTPException: _say_status, Exception: _say_slip},
    )
    app.state.traces, app.state.games = Traces(shown), None
    return app


def open_socket(port: int | None) -> socket.socket:
    """A listening place; without a port of the user's own, the usual one or, where that is taken, any free one."""
    if port is not None and not 0 <= port <= 65535:
        raise InvalidInput(f"--port {port} does not exist; use 1 to 65535, or 0 for any free one")
    for number in (PORT, 0) if port is None else (port,):
        # asyncio sends small answers at once only where the protocol is named; otherwise each one waits 40 ms for the browser
        place = socket.socket(proto=socket.IPPROTO_TCP)
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
    app = make_app(shown)
    threading.Thread(target=read_ahead, args=(app.state.traces,), daemon=True).start()
    config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    # uvicorn closes the server and then raises what it caught
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[place])
    if app.state.games is not None:
        app.state.games.close()


def read_ahead(traces: Traces) -> None:
    """Read the first text of the page while the browser still loads it; a mistake is said when the page asks for the text."""
    first = next(iter(traces.shown.values()))
    if not isinstance(first, ShownAgent):
        with suppress(RFWPError):
            traces.add(first.name, EXAMPLES[first.kind])


# --- Errors: one line each ---


def _say_mistake(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)


def _say_status(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def _say_slip(request: Request, error: Exception) -> Response:
    """Our own; the server's log has the rest."""
    return JSONResponse({"error": f"the server failed on this: {type(error).__name__}; its terminal says more"}, 500)
