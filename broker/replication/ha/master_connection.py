"""A slave's end of the connection to its master: parts of the log in, reports out.

It reads no more than is taken out: above RECEIVED_MAX bytes it leaves the rest to the socket, so a
slow disk here slows the master's sending down, and memory stays bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from skylarkmq.broker.base.ha_protocol import LogPart, PartDecoder, encode_report
from skylarkmq.common.clock import Clock
from skylarkmq.remoting.stream import split_address
from skylarkmq.remoting.waiting import fail_after

CONNECT_LIMIT_S: Final = 5.0
RECEIVED_MAX: Final = 256 << 10
"""Bytes that nobody has taken out, above which nothing more is read."""


class MasterLostError(ConnectionError):
    """The connection has ended; the text says how."""


class MasterClosedError(MasterLostError):
    """The master ended it before it sent anything: it wants no such slave, or stops."""


class MasterConnection(asyncio.Protocol):
    """One connection to a master. Loop thread, one task.

    Attributes:
        heard_s: when the master said something last, on the monotonic clock.
        reported: the place that it was told last; reported_s: when it was to be.
        on_received: called with each read, in place of `wake`, and may take it out at once. A task
            that is woken for each read costs a tenth of what the slave does with it.
    """

    def __init__(self, clock: Clock) -> None:
        self.heard_s = clock.monotonic()
        self.reported = 0
        self.reported_s = 0.0
        self._heard = False
        self._clock = clock
        self._decoder = PartDecoder()
        self._received: list[bytes] = []
        self._received_size = 0
        self._is_full = False  # of received bytes
        self._is_clogged = False  # the master reads no reports
        self.on_received: Callable[[], None] | None = None
        self._lost: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        self.heard_s = self._clock.monotonic()
        self._received.append(data)
        self._received_size += len(data)
        if self._received_size > RECEIVED_MAX and not self._is_full:
            self._is_full = True
            self._transport.pause_reading()
        if self.on_received is None:
            self.wake()
        else:
            self.on_received()

    def pause_writing(self) -> None:
        self._is_clogged = True

    def resume_writing(self) -> None:
        self._is_clogged = False
        self.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lost is not None:
            return
        why = "it closed the connection" if exc is None else str(exc)
        if self._heard:
            self._lost = MasterLostError(why)
        else:
            self._lost = MasterClosedError(f"{why} before it sent anything; its log says why")
        self.wake()

    # Use

    async def wait(self, until_s: float, *, for_parts: bool) -> None:
        """Return when something has come, when `wake` is called, or at a time of the clock.

        Args:
            for_parts: False while nothing can be taken; what has come then ends no wait.

        Raises:
            MasterLostError: the connection has ended, and all that came is taken out.
            Exception: what `fail` was told.
        """
        if for_parts and self._received:
            return
        if self._lost is None:
            self._waiter = asyncio.get_running_loop().create_future()
            timer = self._clock.call_at(until_s, self.wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        if self._lost is not None and not self._received:
            raise self._lost

    def wake(self) -> None:
        """End the wait that is under way; without one, do nothing."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the next wait with an error; what has come and is not taken out is dropped."""
        self._lost = error
        self.on_received = None
        self._received, self._received_size = [], 0
        self.wake()

    def take(self) -> list[LogPart]:
        """Return the parts and heartbeats that are whole with what has come.

        Raises:
            HaProtocolError: this is no master.
        """
        if not self._received:
            return []
        received = self._received
        data = received[0] if len(received) == 1 else b"".join(received)
        self._received, self._received_size = [], 0
        if self._is_full:
            self._is_full = False
            if self._lost is None:
                self._transport.resume_reading()
        return self._decoder.feed(data)

    def report(self, offset: int) -> None:
        """Say where this log ends, unless the master has not read what it was told before."""
        self.reported_s = self._clock.monotonic()
        if not self._is_clogged and self._lost is None:
            self._transport.write(encode_report(offset))
            self.reported = offset

    def abort(self) -> None:
        """End it now."""
        self._transport.abort()


async def connect_to_master(address: str, clock: Clock) -> MasterConnection:
    """Open a connection to a master's HA port, `host:port`.

    Raises:
        OSError: nothing listens there, or it takes longer than CONNECT_LIMIT_S.
    """
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    try:
        async with fail_after(clock, CONNECT_LIMIT_S):
            _, connection = await loop.create_connection(
                lambda: MasterConnection(clock), host, port
            )
    except TimeoutError as error:
        raise TimeoutError(f"no connection within {CONNECT_LIMIT_S:.0f} s") from error
    except ValueError as error:  # the resolver takes no such name
        raise OSError(f"{host[:64]!a} is no host name: {error}") from error
    return connection
