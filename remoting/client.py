"""Connections by address: made on first use, shared, made again when lost.

All callers that wait for a connection share one attempt, which may take CONNECT_TIMEOUT_S. An
address is left alone for a time after a failed attempt, after a connection that was lost before it
answered anything, and after several that were lost within LIVED_S. That back-off doubles up to a
limit, with jitter. A call meanwhile fails at once with the reason: a caller that has another broker
goes there.

Requests are signed when there are credentials, those to name servers too.

All calls on the loop thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from random import Random
from socket import gaierror
from typing import Any, Final, Generic, TypeVar

from skylarkmq.common.clock import Clock
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.connection import Codec, Connection
from skylarkmq.remoting.errors import ConnectionFailed, IllegalState, TlsError
from skylarkmq.remoting.stream import CLOSE_TIMEOUT_S, Network
from skylarkmq.remoting.tls import TlsFailure
from skylarkmq.remoting.waiting import backoff_s, within

log = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_TIMEOUT_S: Final = 3.0
RECONNECT_FIRST_S: Final = 0.1
RECONNECT_MAX_S: Final = 2.0
"""Back-off between connection attempts to one address: doubling, jittered, capped."""
LIVED_S: Final = 2 * RECONNECT_MAX_S
"""How long a connection that answers has to live for the failures before it to be forgotten."""
ADDRESSES_MAX: Final = 1024
"""Addresses whose failures are remembered; the oldest is forgotten first."""


class SingleFlight(Generic[T]):
    """One call under way per key, shared by all who want its result; `stop` ends them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: dict[str, asyncio.Task[T]] = {}
        self._stopped = False

    async def run(self, key: str, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Join the call under way for `key`, or start one; return its result or raise its error.

        Cancelling one who waits does not end the call for the others.

        Raises:
            IllegalState: stopped, before or meanwhile.
        """
        call = self._calls.get(key)
        if call is None:
            if self._stopped:
                raise IllegalState("the client has stopped")
            call = asyncio.create_task(start(), name=f"skylarkmq-{self._name}-{key}")
            self._calls[key] = call
            call.add_done_callback(lambda done: self._ended(key, done))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if call.cancelled() and task is not None and not task.cancelling():
                raise IllegalState("the client has stopped") from None
            raise

    def cancel(self) -> None:
        """Cancel the calls under way and refuse new ones."""
        self._stopped = True
        for call in self._calls.values():
            call.cancel()

    async def stop(self) -> None:
        """Cancel the calls under way, refuse new ones, and wait for their end."""
        calls = list(self._calls.values())
        self.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _ended(self, key: str, call: asyncio.Task[T]) -> None:
        if self._calls.get(key) is call:
            del self._calls[key]
        if not call.cancelled():
            call.exception()  # seen here, in case no caller waits for it any more


class _Backoff:
    """How long one address is left alone after failures."""

    __slots__ = ("failure_count", "until_s", "why")

    def __init__(self) -> None:
        self.failure_count = 0
        self.until_s = 0.0
        self.why = ""

    def failed(self, why: str, now_s: float, random: Random, free_count: int = 0) -> None:
        """Note a failure; the first `free_count` ones cost no time."""
        self.failure_count += 1
        counted = self.failure_count - free_count
        wait_s = backoff_s(counted, RECONNECT_FIRST_S, RECONNECT_MAX_S) if counted > 0 else 0.0
        self.until_s = now_s + wait_s * random.uniform(0.5, 1.0)
        self.why = why


class RemotingClient:
    """The connections that this process opens to brokers and name servers, one for each address."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        random: Random,
        codec: Codec,
        on_push: Callable[[Connection, RemotingCommand], None],
        *,
        sign: Callable[[RemotingCommand], None] | None = None,
        on_reconnect: Callable[[str], None] | None = None,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        """Prepare; nothing is connected before the first call.

        Args:
            sign: adds the signature of an account to a request.
            on_reconnect: told the address when a connection that was lost stands again.
            on_lost: told the address when a connection has ended, but not during the stop.
        """
        self._network = network
        self._clock = clock
        self._random = random
        self._codec: Codec = codec
        self._on_push = on_push
        self._sign = sign
        self._on_reconnect = on_reconnect
        self._on_lost = on_lost
        self._lost: dict[str, None] = {}
        self._connections: Final[dict[str, Connection]] = {}
        self.ready: Final[Callable[[str], Connection | None]] = self._connections.get
        """Return the open connection to an address, if there is one."""
        self._attempts: SingleFlight[Connection] = SingleFlight("connect")
        self._backoffs: dict[str, _Backoff] = {}
        self._stopping = False
        self._closing: list[Connection] = []

    @property
    def connections(self) -> list[Connection]:
        """The open connections."""
        return list(self._connections.values())

    async def connection(self, address: str) -> Connection:
        """Return an open connection to `address`, connecting if need be.

        Raises:
            ConnectionFailed: the attempt failed, or the address is left alone after failures.
        """
        found = self._connections.get(address)
        if found is not None:
            return found
        return await self._attempts.run(address, lambda: self._connect(address))

    async def call(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        """Send a request to `address` and return its answer, whatever its code.

        Raises:
            ConnectionFailed, RequestTimeout, ProtocolError: there is no answer.
        """
        connection = await self.connection(address)
        return await connection.call(command, timeout_s)

    async def post(self, address: str, command: RemotingCommand) -> None:
        """Send a one-way request to `address`."""
        connection = await self.connection(address)
        await connection.writable()
        connection.post(command)

    def drop_idle(self) -> None:
        """Close the connections without a request under way; later calls connect anew."""
        for connection in self.connections:
            if not connection.pending_count:
                del self._connections[connection.address]
                connection.close("not used for a while")

    def close(self) -> None:
        """Close all connections; later calls fail."""
        self._stopping = True
        self._attempts.cancel()
        self._closing += self.connections
        for connection in self.connections:
            connection.close("the client has stopped")

    async def stop(self) -> None:
        """Close all connections, and wait until what was written has left."""
        self.close()
        await self._attempts.stop()
        await asyncio.gather(*(it.wait_ended(CLOSE_TIMEOUT_S) for it in self._closing))

    async def _connect(self, address: str) -> Connection:
        backoff = self._backoffs.get(address)
        wait_s = backoff.until_s - self._clock.monotonic() if backoff is not None else 0.0
        if backoff is not None and wait_s > 0:
            raise ConnectionFailed(address, f"{backoff.why}; next attempt in {wait_s:.1f} s")
        connection = Connection(
            address,
            self._clock,
            self._codec,
            self._on_push,
            self._connection_closed,
            self._sign,
        )
        try:
            opening = self._network.connect(address, connection)
            stream = await within(self._clock, CONNECT_TIMEOUT_S, opening)
            connection.attach(stream)
        except (OSError, TimeoutError) as error:
            why = str(error) or f"no connection within {CONNECT_TIMEOUT_S:g} s"
            if isinstance(error, gaierror):
                why = error.strerror or why  # without the resolver's number
            self._note_failure(address, why)
            if isinstance(error, TlsFailure):
                raise TlsError(address, why, hint=error.hint) from error
            raise ConnectionFailed(address, why) from error
        self._connections[address] = connection
        log.info("connected to %s", address)
        if address in self._lost:
            del self._lost[address]
            if self._on_reconnect is not None:
                self._on_reconnect(address)
        return connection

    def _connection_closed(self, connection: Connection) -> None:
        address = connection.address
        if self._connections.get(address) is connection:
            del self._connections[address]
            _remember(self._lost, address, None)
            log.log(
                logging.DEBUG if self._stopping else logging.WARNING,
                "connection to %s ended: %s", address, connection.closed_why,
            )  # fmt: skip
        if not connection.answers_count:
            self._note_failure(address, "the connection closed before it answered anything")
        elif self._clock.monotonic() - connection.opened_s < LIVED_S:
            # Once may be a broker that was started again.
            self._note_failure(address, "the connection closed soon after it was made", 1)
        else:
            self._backoffs.pop(address, None)
        if self._on_lost is not None and not self._stopping:
            self._on_lost(address)

    def _note_failure(self, address: str, why: str, free_count: int = 0) -> None:
        backoff = self._backoffs.get(address) or _Backoff()
        _remember(self._backoffs, address, backoff)
        backoff.failed(why, self._clock.monotonic(), self._random, free_count)


def _remember(table: dict[str, T], address: str, value: T) -> None:
    """Put the newest last; of too many, the oldest goes."""
    table.pop(address, None)
    table[address] = value
    if len(table) > ADDRESSES_MAX:
        del table[next(iter(table))]
