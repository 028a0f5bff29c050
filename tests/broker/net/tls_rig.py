"""One connection with TLS between ends that the test holds: a client of bytes, a clock, a gate."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, cast

from skylarkmq.broker.config.tls_settings import TlsMode
from skylarkmq.broker.net.connection import Connection
from skylarkmq.broker.net.tls import TlsGate
from skylarkmq.broker.net.tls_context import ServerContexts
from tests.support.fake_transport import Owner, Transport
from tests.support.manual_clock import ManualClock, settle


class Socket(Transport):
    """A socket's transport, which can change its protocol."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return super().get_extra_info(name)

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return bool(self.ended)

    def take_written(self) -> bytes:
        """What was written since the last call."""
        data, self.writes = b"".join(self.writes), []
        return data


class FixedContexts:
    """A context that is there."""

    def __init__(self, context: ssl.SSLContext | None, failure: str = "") -> None:
        self.current = context
        self.failure = failure
        self.expires_s = 0.0
        self.wanted: list[Callable[[], object]] = []

    def want(self, ready: Callable[[], object]) -> None:
        self.wanted.append(ready)


class Client:
    """A client's end of TLS: `hello` and `flight` are what it sends."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(
            self._incoming, self._outgoing, server_hostname="broker.example"
        )
        self.is_open = False

    def flight(self, received: bytes = b"") -> bytes:
        """Take what the server sent; return what goes there next."""
        self._incoming.write(received)
        if not self.is_open:
            try:
                self.object.do_handshake()
                self.is_open = True
            except ssl.SSLWantReadError:
                pass
        return self._outgoing.read()

    def send(self, data: bytes) -> bytes:
        self.object.write(data)
        return self._outgoing.read()

    def end(self) -> bytes:
        with contextlib.suppress(ssl.SSLWantReadError):
            self.object.unwrap()
        return self._outgoing.read()

    def read(self, received: bytes) -> bytes:
        """Take what the server sent; return the text in it."""
        self._incoming.write(received)
        parts: list[bytes] = []
        try:
            while part := self.object.read(1 << 16):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        return b"".join(parts)


class Rig:
    """A gate, and connections before it."""

    def __init__(
        self, context: ssl.SSLContext | None, mode: TlsMode = "permissive", **limits: int
    ) -> None:
        self.clock = ManualClock()
        self.owner = Owner()
        self.contexts = FixedContexts(context)
        self.gate = TlsGate(mode, cast(ServerContexts, self.contexts), self.clock, **limits)

    def connect(self, address: str = "192.0.2.9") -> tuple[Socket, Connection]:
        """A new connection, before its first byte."""
        socket = Socket((address, 4711))
        connection = Connection(self.owner, cast(Any, self.owner))
        socket.protocol = cast(Any, self.gate.before(connection, connection))
        socket.protocol.connection_made(cast(asyncio.BaseTransport, socket))
        return socket, connection

    async def shake_hands(self, socket: Socket, client: Client) -> None:
        """Bring the handshake to its end."""
        data = client.flight()
        while data:
            socket.protocol.data_received(data)
            await settle(3)
            data = client.flight(socket.take_written())
