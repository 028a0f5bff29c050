"""One HTTP/1.1 connection: h11 reads the bytes, a handler answers, everything has a limit.

    reading     a request must be complete within REQUEST_LIMIT_S of its first byte
    answering   reading is paused, so a peer that pipelines waits in its own socket
    writing     the answer must be read by the peer within WRITE_LIMIT_S
    idle        between two requests the peer may be silent for IDLE_LIMIT_S

Whatever a peer sends, it costs its own connection only: h11 refuses a malformed request, a head
above MAX_HEAD_SIZE or a body above MAX_BODY_SIZE (no page here wants a body) ends it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from email.utils import formatdate
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol, cast

import h11

from skylarkmq.protocol.clock import Clock, TimerHandle

log = logging.getLogger(__name__)

MAX_HEAD_SIZE: Final = 16 * 1024
MAX_BODY_SIZE: Final = 64 * 1024
REQUEST_LIMIT_S: Final = 10.0
WRITE_LIMIT_S: Final = 10.0
IDLE_LIMIT_S: Final = 120.0  # longer than the usual interval of scrapes

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


class ConnectionOwner(Protocol):
    """Who keeps the connections."""

    clock: Clock

    def opened(self, connection: HttpConnection) -> bool:
        """Take a new connection; False when there are too many."""
        ...

    def closed(self, connection: HttpConnection) -> None:
        """Forget a connection."""
        ...


class HttpConnection(asyncio.Protocol):
    """Serves the requests of one peer, one after the other. Loop thread."""

    def __init__(self, respond: Respond, owner: ConnectionOwner) -> None:
        self._respond = respond
        self._owner = owner
        self._clock = owner.clock
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_SIZE)
        self._transport: asyncio.Transport | None = None
        self._request: h11.Request | None = None
        self._body_size = 0
        self._in_request = True  # a new peer is expected to speak
        self._timer: TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.answering: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._owner.opened(self):
            self._limit(REQUEST_LIMIT_S)
        else:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._clear_limit()
        if self.answering is not None:
            self.answering.cancel()
        self._owner.closed(self)

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def eof_received(self) -> bool:
        self._receive(b"")
        return self.answering is not None  # keep our side open for the answer under way

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _receive(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if not self._in_request and self.answering is None:
            self._in_request = True  # a byte at a time does not move the limit
            self._limit(REQUEST_LIMIT_S)
        try:
            self._http.receive_data(data)
            self._advance()
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint, str(error))

    def _advance(self) -> None:
        """Take events until bytes are missing, a request is complete, or the peer has closed."""
        while self.answering is None:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                self._request = event
                self._body_size = 0
            elif isinstance(event, h11.Data):
                self._body_size += len(event.data)
                if self._body_size > MAX_BODY_SIZE:
                    self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "no page here takes a body")
                    return
            elif isinstance(event, h11.EndOfMessage) and self._request is not None:
                self._begin_answer(self._request)
            elif isinstance(event, h11.ConnectionClosed):
                self._close()
                return
            else:  # NEED_DATA or PAUSED
                return

    def _begin_answer(self, request: h11.Request) -> None:
        self._clear_limit()
        if self._transport is not None:
            self._transport.pause_reading()
        self.answering = asyncio.get_running_loop().create_task(
            self._answer(request), name="http answer"
        )

    async def _answer(self, request: h11.Request) -> None:
        try:
            response = await self._respond(parsed(request))
        except Exception:
            log.exception("an HTTP page failed; its reader gets a 500")
            response = HttpResponse(HTTPStatus.INTERNAL_SERVER_ERROR, b"failed, see the log\n")
        self._limit(WRITE_LIMIT_S)
        try:
            self._write(response, with_body=request.method != b"HEAD")
            await self._writable.wait()
            self.answering = None
            self._next_request()
        except Exception:
            log.exception("an HTTP answer can not be sent; the connection ends")
            self.abort()

    def _next_request(self) -> None:
        self._clear_limit()
        if self._transport is None or self._transport.is_closing():
            return
        if self._http.our_state is h11.MUST_CLOSE or self._http.their_state is not h11.DONE:
            self._close()
            return
        self._http.start_next_cycle()
        self._request = None
        self._in_request = False
        self._limit(IDLE_LIMIT_S)
        self._transport.resume_reading()
        try:
            self._advance()  # what the peer has sent meanwhile
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint, str(error))

    def _write(self, response: HttpResponse, *, with_body: bool) -> None:
        headers = [
            ("Date", formatdate(self._clock.now_ms() / 1000, usegmt=True)),
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            *response.headers,
        ]
        status = HTTPStatus(response.status)
        events: list[h11.Event] = [
            h11.Response(status_code=status, headers=headers, reason=status.phrase.encode())
        ]
        if with_body:
            events.append(h11.Data(data=response.body))
        events.append(h11.EndOfMessage())
        if self._transport is not None:
            self._transport.write(b"".join(self._http.send(event) or b"" for event in events))

    def _refuse(self, status: int, why: str) -> None:
        """Answer with an error where the protocol still allows one, and close."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = f"{why}\n".encode()
            self._write(HttpResponse(status, body, TEXT, [("Connection", "close")]), with_body=True)
        self._close()

    def _close(self) -> None:
        """Send what is written, then end the connection; a peer that does not read is cut."""
        if self._transport is not None:
            self._limit(WRITE_LIMIT_S)
            self._transport.close()

    def _limit(self, seconds: float) -> None:
        self._clear_limit()
        self._timer = self._clock.call_at(self._clock.monotonic() + seconds, self.abort)

    def _clear_limit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


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
