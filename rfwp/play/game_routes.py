"""Requests about an agent's game: start it, play on, look at a step."""

import secrets
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rfwp.errors import InvalidInput
from rfwp.play.asked import body, field, number, traces_of
from rfwp.play.shown import ShownAgent
from rfwp.play.text_routes import SEEDS

if TYPE_CHECKING:
    from rfwp.play.games import Game, Games

GONE = "this game was closed; start a new one"
MOST_STEPS = 10**9


def games_of(request: Request) -> "Games":
    """Made when the first game is: pages that show texts only need no games."""
    state = request.app.state
    if state.games is None:
        from rfwp.play.games import Games

        state.games = Games()
    games: Games = state.games
    return games


async def start(request: Request) -> Response:
    """A new game; the one before is closed."""
    data = await body(request)
    shown = traces_of(request).model(field(data, "model", str))
    if not isinstance(shown, ShownAgent):
        raise InvalidInput(f"{shown.name} reads, it does not play; choose an agent")
    seed, sample = field(data, "seed", int, secrets.randbelow(10_000)), field(data, "sample", bool, False)
    if not 0 <= seed < SEEDS:
        raise InvalidInput(f"seed={seed} does not fit; use 0 to {SEEDS - 1}")
    key, game = await run_in_threadpool(games_of(request).start, shown, seed, sample)
    actions, pace = list(game.watched.actions), game.watched.steps_per_s
    return JSONResponse({"id": key, "model": shown.name, "seed": seed, "sample": sample, "actions": actions, "steps_per_s": pace})


async def play(request: Request) -> Response:
    steps = field(await body(request), "steps", int, 1)
    return JSONResponse(await _with_game(request, lambda game: game.play(steps)))


async def step(request: Request) -> Response:
    t = number(request, "t", 0, MOST_STEPS)

    def work(game: "Game") -> dict[str, Any]:
        layers, heads = game.sizes
        return game.step(t, number(request, "layer", 0, max(1, layers)), number(request, "head", 0, max(1, heads)))

    return JSONResponse(await _with_game(request, work))


async def export(request: Request) -> Response:
    """One step with all its numbers, as a file."""
    t = number(request, "t", 0, MOST_STEPS)
    data = await _with_game(request, lambda game: game.export(t))
    return JSONResponse(data, headers={"Content-Disposition": f'attachment; filename="rfwp-step-{t + 1}.json"'})


async def _with_game(request: Request, work: Any) -> dict[str, Any]:
    """One request at a time: an environment is no place for two."""
    games = games_of(request)

    def alone() -> dict[str, Any]:
        with games.lock:
            game = games.get(request.path_params["key"])
            if game is None:
                raise HTTPException(404, GONE)
            result: dict[str, Any] = work(game)
            return result

    return await run_in_threadpool(alone)


ROUTES = [
    Route("/api/game", start, methods=["POST"]),
    Route("/api/game/{key}/play", play, methods=["POST"]),
    Route("/api/game/{key}/step", step),
    Route("/api/game/{key}/export", export),
]
