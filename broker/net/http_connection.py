"""One HTTP/1.1 exchange: h11 reads one request, a handler answers, the connection ends.

    reading     the request must be complete within REQUEST_LIMIT_S of the connection's begin
    answering   the handler has limits of its own
    writing     the answer must be read by the peer within WRITE_LIMIT_S

Every answer says `Connection: close`: a scrape or a probe costs a connection, and none is left open
between two of them. Whatever a peer sends, it costs its own connection only: h11 refuses a
malformed request or a head above MAX_HEAD_SIZE, and a body above MAX_BODY_SIZE (no page here wants
a body) ends it.
"""

from __future__ import annotations

import logging
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, NamedTuple

import h11

from skylarkmq.common.clock import Clock

log = logging.getLogger(__name__)

MAX_HEAD_SIZE: Final = 16 * 1024
MAX_BODY_SIZE: Final = 64 * 1024
READ_SIZE: Final = 16 * 1024
REQUEST_LIMIT_S: Final = 10.0
WRITE_LIMIT_S: Final = 10.0

TEXT: Final = "text/plain; charset=utf-8"


class HttpRequest(NamedTuple):
    """A request whose head is sound; the body, if any, was thrown away."""

    method: str
    path: str
    query: str  # what follows `?`, as sent
    headers: dict[str, str]  # lower-case names; the first of equal ones


class HttpResponse(NamedTuple):
    """An answer with its whole body."""

    status: int
    body: bytes
    content_type: str = TEXT
    headers: Sequence[tuple[str, str]] = ()


Respond = Callable[[HttpRequest], Awaitable[HttpResponse]]


class PeerLeftError(Exception):
    """The connection ended before its request was complete."""


async def exchange(
    reader: StreamReader, writer: StreamWriter, respond: Respond, clock: Clock
) -> None:
    """Answer the request of one connection, and end the connection.

    A limit that is reached aborts the connection, which ends every wait for the peer.
    """
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_SIZE)
    abort = writer.transport.abort
    limit = clock.call_at(clock.monotonic() + REQUEST_LIMIT_S, abort)
    try:
        try:
            request = await _read_request(http, reader)
        except h11.RemoteProtocolError as error:
            response = HttpResponse(error.error_status_hint, f"{error}\n".encode())
            with_body = True
        else:
            limit.cancel()
            response = await _answer(respond, request)
            with_body = request.method != "HEAD"
        limit.cancel()
        limit = clock.call_at(clock.monotonic() + WRITE_LIMIT_S, abort)
        if http.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not writer.is_closing():
            writer.write(_encoded(http, response, clock.now_ms(), with_body=with_body))
        writer.close()
        await writer.wait_closed()
    except (PeerLeftError, ConnectionError):
        pass
    finally:
        limit.cancel()
        abort()


async def _read_request(http: h11.Connection, reader: StreamReader) -> HttpRequest:
    head: h11.Request | None = None
    body_size = 0
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(READ_SIZE))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body_size += len(event.data)
            if body_size > MAX_BODY_SIZE:
                raise h11.RemoteProtocolError(
                    "no page here takes a body",
                    error_status_hint=HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                )
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            return parsed(head)
        else:
            raise PeerLeftError


async def _answer(respond: Respond, request: HttpRequest) -> HttpResponse:
    try:
        return await respond(request)
    except Exception:
        log.exception("an HTTP page failed; its reader gets a 500")
        return HttpResponse(HTTPStatus.INTERNAL_SERVER_ERROR, b"failed, see the log\n")


def _encoded(
    http: h11.Connection, response: HttpResponse, now_ms: int, *, with_body: bool
) -> bytes:
    headers = [
        ("Date", formatdate(now_ms / 1000, usegmt=True)),
        ("Content-Type", response.content_type),
        ("Content-Length", str(len(response.body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Connection", "close"),
        *response.headers,
    ]
    status = HTTPStatus(response.status)
    events: list[h11.Event] = [
        h11.Response(status_code=status, headers=headers, reason=status.phrase.encode())
    ]
    if with_body:
        events.append(h11.Data(data=response.body))
    events.append(h11.EndOfMessage())
    return b"".join(http.send(event) or b"" for event in events)


def parsed(request: h11.Request) -> HttpRequest:
    """Return what a page needs of a request."""
    target = request.target.decode("ascii")
    if target.startswith("http://"):  # the absolute form, which a server must understand
        target = "/" + target[len("http://") :].partition("/")[2]
    path, _, query = target.partition("?")
    headers: dict[str, str] = {}
    for name, value in request.headers:
        headers.setdefault(name.decode("ascii"), value.decode("latin-1"))
    return HttpRequest(request.method.decode("ascii"), path, query, headers)
