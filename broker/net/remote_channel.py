"""A connection that the broker opens itself, to a name server.

It is made at the first call and again after it was lost. Several calls may be under way at once,
each with its own deadline. Requests of the other side are answered with 3: a name server may ask
whether this broker is still there.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, cast

from skylarkmq.broker.net.pending_calls import ConnectionClosedError, PendingCalls
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.frame import BadFrameError, FrameDecoder

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 3.0
UNSENT_MAX: Final = 64 << 10
"""Bytes that wait for the peer; while there are more, its requests get no answer."""


class _Peer(asyncio.Protocol):
    """One connection: answers matched with their calls."""

    def __init__(self, address: str) -> None:
        self.calls = PendingCalls()
        self.is_open = False
        self._address = address
        self._decoder = FrameDecoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                self._take(decode_command(frame))
        except BadFrameError as error:
            log.warning("closing the connection to %s: %s", self._address, error.remark)
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        why = f": {exc}" if exc is not None else ""
        self.calls.fail(f"{self._address} closed the connection{why}")

    def _take(self, command: RemotingCommand) -> None:
        if command.is_response:
            self.calls.answered(command)
        elif not command.is_oneway and self.transport.get_write_buffer_size() < UNSENT_MAX:
            code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            answer = command.reply(code, "a broker answers no requests on this connection")
            self.transport.write(encode_command(answer))


class RemoteChannel:
    """Calls one remoting server by its address `host:port`. Loop thread."""

    def __init__(self, address: str, clock: Clock) -> None:
        self.address = address
        self._clock = clock
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
            LocalProtocolError: the request cannot be written.
        """
        peer = await self._connected(min(timeout_s, CONNECT_TIMEOUT_S))
        write = peer.transport.write
        return await peer.calls.call(command, timeout_s, write, self._clock, self.address)

    async def close(self) -> None:
        """Give the connection up; calls under way fail."""
        self._is_closed = True
        if self._peer is not None:
            self._peer.transport.close()

    async def _connected(self, timeout_s: float) -> _Peer:
        async with self._connecting:
            if self._is_closed:
                raise ConnectionClosedError(f"the channel to {self.address} is closed")
            if self._peer is None or not self._peer.is_open:
                self._peer = await self._connect(timeout_s)
            return self._peer

    async def _connect(self, timeout_s: float) -> _Peer:
        host, _, port = self.address.rpartition(":")
        opening = asyncio.ensure_future(
            asyncio.get_running_loop().create_connection(
                lambda: _Peer(self.address), host.strip("[]"), int(port)
            )
        )
        limit = self._clock.call_at(self._clock.monotonic() + timeout_s, opening.cancel)
        try:
            _, peer = await opening
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            why = f"no connection to {self.address} in {timeout_s:g} s"
            raise TimeoutError(why) from None
        finally:
            limit.cancel()
        return peer
