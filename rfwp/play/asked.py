"""What requests ask for: whole numbers, bodies of bounded size, traces and games that are kept."""

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from rfwp.errors import InvalidInput
from rfwp.play.traces import MOST_CHARACTERS, Kept, Traces

MOST_BODY = 4 * MOST_CHARACTERS
GONE = "this trace is no longer kept; run the text again"


def traces_of(request: Request) -> Traces:
    traces: Traces = request.app.state.traces
    return traces


def kept_trace(request: Request, key: str) -> Kept:
    kept = traces_of(request).get(key)
    if kept is None:
        raise HTTPException(404, GONE)
    return kept


def number(request: Request, name: str, default: int, below: int) -> int:
    """A whole number of the address, from 0 on."""
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text) < below):
        raise InvalidInput(f"{name}={text[:20]} does not fit; use 0 to {below - 1}")
    return int(text)


def field(data: dict[str, Any], name: str, kind: type, default: Any = None) -> Any:
    """A value of the body; whole numbers count as numbers, and truth values do not."""
    value = data.get(name, default)
    fits = isinstance(value, int | float) and not isinstance(value, bool) if kind is float else type(value) is kind
    if not fits:
        raise InvalidInput(f"expected a JSON object with '{name}' of type {kind.__name__}, saw {type(value).__name__}")
    return value


async def body(request: Request) -> dict[str, Any]:
    """The body, never more of it than allowed. Its type makes browsers ask before they send it from another site."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "expected a body of type application/json")
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_BODY:
            raise HTTPException(413, f"the request is too long; a text has at most {MOST_CHARACTERS:,} characters")
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise InvalidInput("the body is no JSON object")
    return data
