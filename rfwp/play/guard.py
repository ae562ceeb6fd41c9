"""Who may talk to the server: pages that it served itself, and nobody else's."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = {"127.0.0.1", "localhost"}
POLICY = "default-src 'self'; img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses requests that come from other sites.

    The host must be this machine: a name that an attacker points at 127.0.0.1 is none of ours. Scripts of other sites show
    themselves by their origin; links to the page are welcome.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refusal = refused(Headers(scope=scope), scope["path"])
        if refusal:
            await JSONResponse({"error": refusal}, 403)(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, send_with_headers)


def refused(headers: Headers, path: str) -> str:
    """Why a request is refused, "" if it is not."""
    host = headers.get("host", "")
    if host.rpartition(":")[0] not in HOSTS and host not in HOSTS:
        return f"host '{host}' is not this machine; open the address that rfwp play printed"
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{host}":
        return f"requests from '{origin}' are refused; open the address that rfwp play printed"
    if path.startswith("/api/") and headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return "requests from other sites are refused; open the address that rfwp play printed"
    return ""
