"""The pages for those who watch the broker, on a port of their own and on the event loop.

    GET /metrics   Prometheus text, or OpenMetrics when Accept asks for it; gzip when accepted
    GET /livez     200 while a restart would be no cure
    GET /readyz    200 when clients may be sent here, else 503; `?verbose` tells each check as JSON
    GET /version   JSON

Nothing here changes the broker or touches the disk. A scrape lets the loop run between two
families, so a broker with many topics does not stall while it is watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import (
    CONTENT_TYPE_PLAIN_0_0_4,
    choose_encoder,
    generate_latest,
    gzip_accepted,
)

from skylarkmq import __version__
from skylarkmq.broker.health import Check, HealthChecks, run_checks
from skylarkmq.broker.http_connection import HttpConnection, HttpRequest, HttpResponse
from skylarkmq.protocol.clock import Clock

MAX_CONNECTIONS: Final = 64
JSON: Final = "application/json"
OPENMETRICS_END: Final = b"# EOF\n"
GZIP_WBITS: Final = 31  # zlib's way to say: with a gzip header
GZIP_LEVEL: Final = 1

Encoder = Callable[["OneFamily"], bytes]
Page = Callable[[HttpRequest], Awaitable[HttpResponse]]


class OneFamily:
    """Shows prometheus-client's encoders a single family at a time."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


class MetricsServer:
    """Serves the pages. Loop thread.

    Args:
        host: where to listen; loopback unless the operator says otherwise.
        port: 0 picks a free one.
    """

    def __init__(
        self,
        host: str,
        port: int,
        registry: CollectorRegistry,
        checks: HealthChecks,
        clock: Clock,
    ) -> None:
        self.clock = clock
        self._host = host
        self._port = port
        self._registry = registry
        self._checks = checks
        self._server: asyncio.Server | None = None
        self._connections: set[HttpConnection] = set()
        self._pages: Mapping[str, Page] = {
            "/metrics": self._metrics,
            "/livez": self._livez,
            "/readyz": self._readyz,
            "/version": self._version,
        }

    async def start(self) -> tuple[str, int]:
        """Listen and return the address that was bound.

        Raises:
            OSError: the address can not be had.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: HttpConnection(self.respond, self), self._host, self._port
        )
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    async def stop(self) -> None:
        """Stop listening and cut what is open; may be called twice."""
        if self._server is not None:
            self._server.close()
            self._server = None
        connections = list(self._connections)
        answers = [task for task in (peer.answering for peer in connections) if task is not None]
        for peer in connections:
            peer.abort()
        for task in answers:
            task.cancel()
        await asyncio.gather(*answers, return_exceptions=True)

    def opened(self, connection: HttpConnection) -> bool:
        """Take a new connection; False when there are too many."""
        self._connections.add(connection)
        return len(self._connections) <= MAX_CONNECTIONS

    def closed(self, connection: HttpConnection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)

    async def respond(self, request: HttpRequest) -> HttpResponse:
        """Answer one request."""
        page = self._pages.get(request.path)
        if page is None:
            known = " ".join(self._pages)
            return HttpResponse(HTTPStatus.NOT_FOUND, f"no such page; there is {known}\n".encode())
        if request.method not in ("GET", "HEAD"):
            return HttpResponse(
                HTTPStatus.METHOD_NOT_ALLOWED,
                b"read only\n",
                headers=[("Allow", "GET, HEAD")],
            )
        return await page(request)

    async def _metrics(self, request: HttpRequest) -> HttpResponse:
        encode, content_type = choose_format(request.headers.get("accept", ""))
        zipped = gzip_accepted(request.headers.get("accept-encoding", ""))
        body = await exposition(self._registry, encode, zipped=zipped)
        headers = [("Vary", "Accept, Accept-Encoding")]
        if zipped:
            headers.append(("Content-Encoding", "gzip"))
        return HttpResponse(HTTPStatus.OK, body, content_type, headers)

    async def _livez(self, request: HttpRequest) -> HttpResponse:
        return _verdict(request, self._checks.live, "live")

    async def _readyz(self, request: HttpRequest) -> HttpResponse:
        return _verdict(request, self._checks.ready, "ready")

    async def _version(self, request: HttpRequest) -> HttpResponse:
        return _json(HTTPStatus.OK, {"name": "skylarkmq", "version": __version__})


def choose_format(accept: str) -> tuple[Encoder, str]:
    """Return the encoder and the content type for an Accept header, whatever is in it."""
    if accept.isascii():  # what it asks for is repeated in a header
        with contextlib.suppress(ValueError, TypeError):  # a version that is no number
            return choose_encoder(accept)
    return generate_latest, CONTENT_TYPE_PLAIN_0_0_4


async def exposition(registry: CollectorRegistry, encode: Encoder, *, zipped: bool) -> bytes:
    """Return the text of all families, compressed if asked; the loop runs in between."""
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WBITS) if zipped else None
    parts: list[bytes] = []
    ends_with_mark = False
    for family in registry.collect():
        text = encode(OneFamily(family))
        ends_with_mark = ends_with_mark or text.endswith(OPENMETRICS_END)
        text = text.removesuffix(OPENMETRICS_END)
        parts.append(packer.compress(text) if packer else text)
        await asyncio.sleep(0)
    end = OPENMETRICS_END if ends_with_mark else b""
    parts.append(packer.compress(end) + packer.flush() if packer else end)
    return b"".join(parts)


def _verdict(request: HttpRequest, checks: Mapping[str, Check], word: str) -> HttpResponse:
    reasons = run_checks(checks)
    well = not any(reasons.values())
    status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
    if "verbose" in (part.partition("=")[0] for part in request.query.split("&")):
        shown = {name: {"ok": not why, "why": why} for name, why in reasons.items()}
        return _json(status, {"status": word if well else f"not {word}", "checks": shown})
    lines = [word] if well else [f"not {word}"]
    lines += [f"{name}: {why}" for name, why in reasons.items() if why]
    return HttpResponse(status, "\n".join([*lines, ""]).encode())


def _json(status: int, content: object) -> HttpResponse:
    return HttpResponse(status, msgspec.json.encode(content) + b"\n", JSON)
