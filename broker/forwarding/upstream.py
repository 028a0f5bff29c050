"""Calls of other brokers' gRPC endpoints: connections that are kept, many calls on each.

    unary    one message there, one back
    stream   messages both ways, until one side ends

What does not answer within CONNECT_LIMIT_S is not there (`grpc_client.py`). For a moment after
that nothing else is tried; calls fail at once. More calls than a connection takes get further ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from skylarkmq.broker.forwarding.grpc_client import (
    Answers,
    GrpcClient,
    UpstreamError,
    UpstreamStream,
)
from skylarkmq.broker.net.tls_context import OutgoingTls
from skylarkmq.common.clock import Clock
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.protocol.http2.frames import header_block
from skylarkmq.protocol.http2.grpc import CONTENT_TYPE, GrpcStatus, timeout_text
from skylarkmq.protocol.http2.hpack import ENTRY_SIZE, Field
from skylarkmq.remoting.stream import AsyncioNetwork
from skylarkmq.remoting.waiting import within

__all__ = ["UpstreamError", "UpstreamStream", "Upstreams"]

log = logging.getLogger(__name__)

CONNECT_LIMIT_S: Final = 1.0
"""Until the other end's settings have come."""
LEFT_ALONE_S: Final = 1.0
"""An address that could not be connected to."""
SCAN_INTERVAL_S: Final = 5.0
CONNECTIONS_MAX: Final = 64
"""To one address."""
ADDRESSES_MAX: Final = 1_000
UNSENT_MAX: Final = 64 << 20
"""Bytes of requests that an end leaves unread, on one connection."""
_OURS: Final = frozenset(
    (
        "te",
        "content-type",
        "content-length",
        "grpc-timeout",
        "grpc-encoding",
        "grpc-accept-encoding",
    )
)


class _RequestHead(NamedTuple):
    block: bytes
    size: int  # of its fields, each with ENTRY_SIZE


class _Place:
    """An address, and the connections to it."""

    def __init__(self) -> None:
        self.connections: list[GrpcClient] = []
        self.current: GrpcClient | None = None
        self.opening: asyncio.Task[None] | None = None
        self.opened: asyncio.Future[None] | None = None  # done when `opening` is, whatever it gave
        self.failed_why = ""
        self.left_alone_until_s = 0.0

    def note_opened(self) -> None:
        """Wake those who wait for a connection: there is one, or there will be none."""
        opened, self.opened, self.opening = self.opened, None, None
        if opened is not None:
            opened.set_result(None)


class Upstreams:
    """Connections to other endpoints, by address (`host:port`). Loop thread.

    Attributes:
        clock: of deadlines.
        answers: what they may hold.
    """

    def __init__(
        self, clock: Clock, tls: OutgoingTls | None, answers: Answers | None = None
    ) -> None:
        """Connect to nothing yet.

        Args:
            clock: of peers.
            tls: for the connections, its files watched from here; None: plain text.
        """
        self.clock = clock
        self.answers = answers or Answers()
        self._tls = tls
        self._network = AsyncioNetwork(None if tls is None else tls.client)
        self._scheme = b"http" if tls is None else b"https"
        self._places: dict[str, _Place] = {}
        self._heads: dict[tuple[str, str], _RequestHead] = {}  # without metadata
        self._is_running = False
        self._timer = IntervalTimer(clock, SCAN_INTERVAL_S, self._scan)

    def start(self) -> None:
        """Begin, also after `stop`."""
        self._is_running = True
        self._timer.start()
        if self._tls is not None:
            self._tls.contexts.start()

    def stop(self) -> None:
        """Close all connections; calls that are open fail."""
        self._is_running = False
        self._timer.stop()
        if self._tls is not None:
            self._tls.contexts.stop()
        places, self._places = self._places, {}
        for place in places.values():
            if place.opening is not None:
                place.opening.cancel()
                place.note_opened()
            for connection in list(place.connections):
                connection.close("this endpoint is being closed")

    async def unary(
        self,
        address: str,
        path: str,
        metadata: Mapping[str, str],
        request: bytes,
        timeout_s: float | None,
    ) -> bytes:
        """Make a call with one message, and return the answer's. A cancel ends it there, too.

        Args:
            metadata: what the call has beside the fields that every call of gRPC has.

        Raises:
            UpstreamError: there is no answer, or one with another status than OK.
        """
        deadline_s = self._deadline_s(timeout_s)
        try:
            return await self._ask(address, path, metadata, request, deadline_s)
        except UpstreamError as error:
            if error.reached:
                raise
        # Mostly it was about to close the connection; on the next one this goes well.
        return await self._ask(address, path, metadata, request, deadline_s)

    async def _ask(
        self,
        address: str,
        path: str,
        metadata: Mapping[str, str],
        request: bytes,
        deadline_s: float | None,
    ) -> bytes:
        connection, block = await self._line(address, path, metadata, deadline_s)
        return await UpstreamStream(self.answers, deadline_s).ask(connection, block, request)

    @asynccontextmanager
    async def stream(
        self, address: str, path: str, metadata: Mapping[str, str], timeout_s: float | None = None
    ) -> AsyncGenerator[UpstreamStream]:
        """Make a call with any number of messages; leaving it ends it there, too.

        Raises:
            UpstreamError: there is no connection for it.
        """
        call = UpstreamStream(self.answers, self._deadline_s(timeout_s))
        connection, block = await self._line(address, path, metadata, call.deadline_s)
        try:
            call.begin(connection, block)
            yield call
        finally:
            call.close()

    def _deadline_s(self, timeout_s: float | None) -> float | None:
        return None if timeout_s is None else self.clock.monotonic() + timeout_s

    async def _line(
        self, address: str, path: str, metadata: Mapping[str, str], deadline_s: float | None
    ) -> tuple[GrpcClient, bytes]:
        """Return a connection with room for a call, and the call's head."""
        connection = self._ready(address) or await self._connect(address, deadline_s)
        left_s = self._left_s(deadline_s)
        if left_s is not None and left_s <= 0:
            raise _not_reached("the time of the call was over before", GrpcStatus.DEADLINE_EXCEEDED)
        head = self._head(address, path, metadata, left_s)
        size_max, unsent_size = connection.http2.head_size_max, connection.unsent_size
        if head.size > size_max:
            why = f"the call's metadata has {head.size} bytes, it takes {size_max}"
            raise _not_reached(why, GrpcStatus.RESOURCE_EXHAUSTED)
        if unsent_size > UNSENT_MAX:
            why = f"it has left {unsent_size} bytes of other calls unread"
            raise _not_reached(why, GrpcStatus.RESOURCE_EXHAUSTED)
        return connection, head.block

    def _left_s(self, deadline_s: float | None) -> float | None:
        return None if deadline_s is None else deadline_s - self.clock.monotonic()

    def _head(
        self, address: str, path: str, metadata: Mapping[str, str], timeout_s: float | None
    ) -> _RequestHead:
        first = self._heads.get((address, path))
        if first is None:
            if len(self._heads) >= ADDRESSES_MAX:
                self._heads.clear()
            first = self._heads[address, path] = _request_head(
                [
                    (b":method", b"POST"),
                    (b":scheme", self._scheme),
                    (b":path", path.encode()),
                    (b":authority", address.encode()),
                    (b"te", b"trailers"),
                    (b"content-type", CONTENT_TYPE),
                ]
            )
        fields = [
            (name.encode("latin-1", "replace"), value.encode("utf-8", "replace"))
            for name, value in metadata.items()
            if name not in _OURS and not name.startswith(":")
        ]
        if timeout_s is not None:
            fields.append((b"grpc-timeout", timeout_text(timeout_s).encode()))
        more = _request_head(fields)
        return _RequestHead(first.block + more.block, first.size + more.size)

    # Connections

    def _ready(self, address: str) -> GrpcClient | None:
        """Return a connection that takes one more call, if there is one."""
        place = self._places.get(address)
        if place is None:
            return None
        if place.current is not None and place.current.has_room:
            return place.current
        place.current = next((each for each in place.connections if each.has_room), None)
        return place.current

    async def _connect(self, address: str, deadline_s: float | None) -> GrpcClient:
        """Return a connection that takes one more call, once there is one.

        Raises:
            UpstreamError: there will be none, or not in time.
        """
        while True:
            if not self._is_running:
                raise _not_reached("this endpoint is being closed")
            place, now_s = self._place(address), self.clock.monotonic()
            if place.opened is None:
                if place.left_alone_until_s > now_s:
                    raise _not_reached(place.failed_why)
                if len(place.connections) >= CONNECTIONS_MAX:
                    why = f"all {CONNECTIONS_MAX} connections to it have as many calls as they take"
                    raise _not_reached(why, GrpcStatus.RESOURCE_EXHAUSTED)
                place.opened = asyncio.get_running_loop().create_future()
                place.opening = asyncio.ensure_future(self._open(address, place))
            opened = asyncio.shield(place.opened)
            left_s = self._left_s(deadline_s)
            try:
                await (opened if left_s is None else within(self.clock, left_s, opened))
            except TimeoutError:
                why = "the time of the call was over before there was a connection"
                raise _not_reached(why, GrpcStatus.DEADLINE_EXCEEDED) from None
            connection = self._ready(address)
            if connection is not None:
                return connection

    def _place(self, address: str) -> _Place:
        place = self._places.get(address)
        if place is None:
            if len(self._places) >= ADDRESSES_MAX:
                why = f"there are connections to {ADDRESSES_MAX} other addresses"
                raise _not_reached(why, GrpcStatus.RESOURCE_EXHAUSTED)
            place = self._places[address] = _Place()
        return place

    async def _open(self, address: str, place: _Place) -> None:
        connection = GrpcClient(address, self.clock, self._closed)
        place.failed_why = ""
        try:
            await within(self.clock, CONNECT_LIMIT_S, connection.open(self._network))
            place.connections.append(connection)
            place.current = connection
        except TimeoutError:
            place.failed_why = f"it has not answered within {CONNECT_LIMIT_S:g} s"
        except OSError as error:
            hint = getattr(error, "hint", "")
            why = f"no connection: {error or type(error).__name__}"
            place.failed_why = f"{why}. {hint}" if hint else why
        finally:
            if connection not in place.connections:
                connection.abort("it did not come about")
            if place.failed_why:
                place.left_alone_until_s = self.clock.monotonic() + LEFT_ALONE_S
                log.info("the endpoint at %s: %s", address, place.failed_why)
            place.note_opened()

    def _closed(self, connection: GrpcClient) -> None:
        """Forget a connection that has ended."""
        place = self._places.get(connection.address)
        if place is not None and connection in place.connections:
            place.connections.remove(connection)
            if place.current is connection:
                place.current = None

    def _scan(self) -> None:
        now_s = self.clock.monotonic()
        for address, place in list(self._places.items()):
            for connection in list(place.connections):
                connection.scan(now_s)
            is_used = place.connections or place.opened is not None
            if not is_used and place.left_alone_until_s <= now_s:
                del self._places[address]


def _request_head(fields: list[Field]) -> _RequestHead:
    size = sum(len(name) + len(value) + ENTRY_SIZE for name, value in fields)
    return _RequestHead(header_block(fields), size)


def _not_reached(why: str, status: GrpcStatus = GrpcStatus.UNAVAILABLE) -> UpstreamError:
    return UpstreamError(status, why, reached=False)
