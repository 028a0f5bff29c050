"""A client's network whose other end is a broker's own connection: no socket, no thread, no time.

    network = MemoryNetwork(name_server)
    network.serve("broker-a:10911", lambda: Connection(router, server))
    client = Client(NAMESRV, network=network.of("consumer"), clock=clock)
    network.close("broker-a:10911")     # the broker is gone; its clients see their connections end
    network.cut("consumer")             # this client alone reaches nobody

Bytes arrive in a later turn of the loop, as through a socket, and in their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from skylarkmq.broker.net.connection import Connection
from tests.support.fake_transport import Transport
from tests.support.scripted_stream import ScriptedNetwork, ScriptedStream

Accept = Callable[[], Connection]


class MemoryStream:
    """The client's end; implements `Stream`."""

    local_ip = "192.0.2.1"
    unsent_size = 0

    def __init__(self, receiver: asyncio.Protocol, connection: Connection) -> None:
        self.is_open = True
        self._is_silent = False
        self._receiver = receiver
        self._connection = connection
        self._transport = BrokerEnd(self)
        self._transport.protocol = connection
        connection.connection_made(cast(asyncio.BaseTransport, self._transport))

    # Stream

    def write(self, data: bytes) -> None:
        if self.is_open and not self._is_silent:
            _later(self._arrive, bytes(data))

    def close(self) -> None:
        _later(self.lose, None)

    def abort(self) -> None:
        _later(self.lose, None)

    # The other end

    def say(self, data: bytes) -> None:
        """Deliver what the broker has written."""
        if not self._is_silent:
            _later(self._deliver, data)

    def silence(self) -> None:
        """Nothing comes over in either way any more; the ends hear of it later."""
        self._is_silent = True

    def lose(self, error: Exception | None) -> None:
        """End the connection at both ends, now."""
        if self.is_open:
            self.is_open = False
            self._connection.connection_lost(error)
            self._receiver.connection_lost(error)

    def _arrive(self, data: bytes) -> None:
        if self.is_open:
            self._connection.data_received(data)

    def _deliver(self, data: bytes) -> None:
        if self.is_open:
            self._receiver.data_received(data)


class BrokerEnd(Transport):
    """What the broker's connection writes to."""

    def __init__(self, stream: MemoryStream) -> None:
        super().__init__()
        self._stream = stream

    def write(self, data: bytes) -> None:
        self._stream.say(bytes(data))

    def close(self) -> None:
        _later(self._stream.lose, None)

    def abort(self) -> None:
        _later(self._stream.lose, None)


class MemoryNetwork:
    """Who listens where, and which clients reach nobody."""

    def __init__(self, scripted: ScriptedNetwork) -> None:
        """Take the network of peers that are scripts, such as a name server."""
        self._scripted = scripted
        self._accepts: dict[str, Accept] = {}
        self._streams: list[tuple[str, str, MemoryStream]] = []
        self._cut: set[str] = set()

    def serve(self, address: str, accept: Accept) -> None:
        """Let a broker listen."""
        self._accepts[address] = accept

    def close(self, address: str) -> None:
        """Nobody listens there any more, and what is connected ends."""
        self._accepts.pop(address, None)
        self._end(lambda _, at: at == address)

    def silence(self, address: str) -> None:
        """The machine stands still: what it writes from now on goes nowhere."""
        self._accepts.pop(address, None)
        for _, at, stream in self._streams:
            if at == address:
                stream.silence()

    def cut(self, client: str) -> None:
        """Let a client reach no broker, until `mend`."""
        self._cut.add(client)
        self._end(lambda who, _: who == client)

    def mend(self, client: str) -> None:
        """Undo `cut`."""
        self._cut.discard(client)

    def of(self, client: str) -> ClientNetwork:
        """Return the network as one client has it."""
        return ClientNetwork(self, client)

    async def connect(
        self, client: str, address: str, receiver: asyncio.Protocol
    ) -> MemoryStream | ScriptedStream:
        """Open a stream for a client."""
        await asyncio.sleep(0)
        accept = self._accepts.get(address)
        if accept is None or client in self._cut:
            return await self._scripted.connect(address, receiver)  # which refuses, or is a script
        stream = MemoryStream(receiver, accept())
        self._streams.append((client, address, stream))
        return stream

    def _end(self, is_meant: Callable[[str, str], bool]) -> None:
        for client, address, stream in self._streams:
            if is_meant(client, address):
                stream.lose(ConnectionResetError("the peer is gone"))
        self._streams = [each for each in self._streams if each[2].is_open]


class ClientNetwork:
    """Implements `Network` for one client."""

    def __init__(self, network: MemoryNetwork, client: str) -> None:
        self._network = network
        self._client = client

    async def connect(
        self, address: str, receiver: asyncio.Protocol
    ) -> MemoryStream | ScriptedStream:
        return await self._network.connect(self._client, address, receiver)


def _later(what: Callable[..., None], argument: object) -> None:
    asyncio.get_running_loop().call_soon(what, argument)
