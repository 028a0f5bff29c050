"""A connection that the broker opens itself, to a name server.

It is made at the first call and again after it was lost. Several calls may be under way at once,
each with its own deadline; their number is bounded. Requests of the other side are answered with 3:
a name server may ask whether this broker is still there.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Final, cast

from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.errors import BadFrameError
from skylarkmq.protocol.frame import FrameDecoder

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 3.0
CALLS_MAX: Final = 64
UNSENT_MAX: Final = 64 << 10
"""Bytes that wait for the peer; while there are more, its requests get no answer."""
_OPAQUE_MASK: Final = 0x7FFFFFFF


class ChannelClosedError(ConnectionError):
    """The connection ended before the answer came."""


class _Peer(asyncio.Protocol):
    """One connection: answers matched with their calls."""

    def __init__(self, address: str) -> None:
        self.calls: dict[int, asyncio.Future[RemotingCommand]] = {}
        self.is_open = False
        self._address = address
        self._decoder = FrameDecoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                self._answered(decode_command(frame))
        except BadFrameError as error:
            log.warning("closing the connection to %s: %s", self._address, error.remark)
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        for future in self.calls.values():
            if not future.done():
                why = f": {exc}" if exc is not None else ""
                future.set_exception(ChannelClosedError(f"{self._address} hung up{why}"))

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    def _answered(self, command: RemotingCommand) -> None:
        if not command.is_response:
            if not command.is_oneway and self._transport.get_write_buffer_size() < UNSENT_MAX:
                code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                self.write(encode_command(command.reply(code, "nothing is asked for here")))
            return
        future = self.calls.get(command.opaque)
        if future is not None and not future.done():
            future.set_result(command)


class RemoteChannel:
    """Calls one remoting server by its address `host:port`. Loop thread."""

    def __init__(self, address: str, clock: Clock) -> None:
        self.address = address
        self._clock = clock
        self._opaques = itertools.count(1)
        self._peer: _Peer | None = None
        self._connecting = asyncio.Lock()
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether there is a connection; the next call makes one where there is none."""
        return self._peer is not None and self._peer.is_open

    async def call(self, command: RemotingCommand, timeout_s: float) -> RemotingCommand:
        """Return the answer to a request; its opaque is set here.

        Raises:
            TimeoutError: no connection, or no answer, in time.
            OSError: no connection, or it was lost before the answer came.
            LocalProtocolError: the request can not be written.
        """
        command.opaque = next(self._opaques) & _OPAQUE_MASK
        data = encode_command(command)
        peer = await self._connected(min(timeout_s, CONNECT_TIMEOUT_S))
        if len(peer.calls) >= CALLS_MAX:
            raise ChannelClosedError(f"{self.address} leaves {CALLS_MAX} requests unanswered")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[RemotingCommand] = loop.create_future()
        peer.calls[command.opaque] = future
        timer = self._deadline(future, timeout_s)
        try:
            peer.write(data)
            return await future
        finally:
            timer.cancel()
            del peer.calls[command.opaque]

    async def close(self) -> None:
        """Give the connection up; calls under way fail."""
        self._is_closed = True
        if self._peer is not None:
            self._peer.close()

    async def _connected(self, timeout_s: float) -> _Peer:
        async with self._connecting:
            if self._is_closed:
                raise ChannelClosedError(f"the channel to {self.address} is closed")
            peer = self._peer
            if peer is None or not peer.is_open:
                peer = self._peer = await self._connect(timeout_s)
            return peer

    async def _connect(self, timeout_s: float) -> _Peer:
        host, _, port = self.address.rpartition(":")
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[_Peer] = loop.create_future()

        async def open_connection() -> None:
            _, peer = await loop.create_connection(
                lambda: _Peer(self.address), host.strip("[]"), int(port)
            )
            if opened.done():
                peer.close()  # too late
            else:
                opened.set_result(peer)

        def ended(task: asyncio.Task[None]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None and not opened.done():
                opened.set_exception(error)

        opening = asyncio.ensure_future(open_connection())
        opening.add_done_callback(ended)
        timer = self._deadline(opened, timeout_s)
        try:
            return await opened
        finally:
            timer.cancel()
            opening.cancel()

    def _deadline(
        self, future: asyncio.Future[RemotingCommand] | asyncio.Future[_Peer], timeout_s: float
    ) -> TimerHandle:
        def expire() -> None:
            if not future.done():
                why = f"no answer from {self.address} in {timeout_s:g} s"
                future.set_exception(TimeoutError(why))

        return self._clock.call_at(self._clock.monotonic() + timeout_s, expire)
