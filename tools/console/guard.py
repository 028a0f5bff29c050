"""What holds for every answer: the Host that was asked for, the Origin of a change, the headers.

Host      an address, `localhost` or a name that the console was started with; a page elsewhere
          that lets its own name point here (DNS rebinding) is refused with 421
Origin    of a POST: this site; 403 otherwise, also when it is missing
headers   scripts, styles and pictures from this site alone, none inside a page; no frame
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from skylarkmq.tools.console.settings import Settings

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not `no-referrer`: browsers would send `Origin: null` with forms then.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
KEPT: Final = "private, max-age=31536000, immutable"
"""For static files: their addresses on pages change with what they hold."""
READING: Final = frozenset({"GET", "HEAD"})


class Guard:
    """Stands around the whole application."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers["Cache-Control"] = KEPT if _is_asset(scope) else "no-store"
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._settings.knows_host(host):
            return PlainTextResponse(
                f"This console is not known as {host[:80]!r}. Open it by its address, or start it "
                "with --host-name NAME for each name that it has.\n",
                status_code=421,
            )
        if scope["method"] in READING:
            return None
        origin = headers.get("origin", "")
        if origin.lower().partition("://")[2] != host.lower():
            return PlainTextResponse(
                "This request comes from another site, and was not carried out. Change things on "
                "the console's own pages.\n",
                status_code=403,
            )
        return None


def _is_asset(scope: Scope) -> bool:
    path, query = str(scope["path"]), bytes(scope["query_string"])
    return path.startswith("/static/") and query.startswith(b"v=")
