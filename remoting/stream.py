"""The network seam: two small interfaces between connections and sockets.

A connection asks a `Network` for a `Stream` to an address, with itself as the receiver. Bytes come
in by calls of the receiver and go out by `Stream.write`, which never blocks. Tests script the peer
through the same two interfaces. Loop thread.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from contextlib import suppress
from typing import Final, Protocol, cast

from skylarkmq.remoting.tls import ClientTls

CLOSE_TIMEOUT_S: Final = 1.0
"""How long what was written may take to leave when a connection is closed."""
REST_READ_SIZE: Final = 256 * 1024


class Stream(Protocol):
    """One open connection."""

    @property
    def local_ip(self) -> str:
        """This side's address, without port."""
        ...

    @property
    def unsent_size(self) -> int:
        """Bytes that were written and have not left."""
        ...

    def write(self, data: bytes) -> None:
        """Send `data`, buffered when the socket is full."""
        ...

    def close(self) -> None:
        """Send what is buffered, then close. `connection_lost` follows."""
        ...

    def abort(self) -> None:
        """Close at once. `connection_lost` follows."""
        ...


class Network(Protocol):
    """Opens streams."""

    async def connect(self, address: str, receiver: asyncio.Protocol) -> Stream:
        """Open a stream to `address` (host:port); host names are resolved at each call.

        The caller bounds the time.

        Raises:
            OSError: no such host, no route, nothing listens there. TlsFailure: TLS failed.
        """
        ...


class AsyncioNetwork:
    """Streams over the running loop's sockets, whichever loop it is, with TLS or without."""

    def __init__(self, tls: ClientTls | None = None) -> None:
        self._tls = tls or ClientTls(None)

    async def connect(self, address: str, receiver: asyncio.Protocol) -> Stream:
        host, port = split_address(address)
        try:
            return await self._open(address, host, port, receiver)
        except ConnectionRefusedError as error:  # the loop's text names a system call
            raise ConnectionRefusedError("connection refused") from error
        except ValueError as error:  # the resolver or TLS takes no such name
            why = f"{host[:64]!a} is no host name: {error}"
            raise socket.gaierror(socket.EAI_NONAME, why) from error
        except OSError as error:
            codes = re.findall(r"Errno (\d+)\] Connect call failed", str(error))
            if not codes:
                raise
            # A host of several addresses, which the loop's text lists with system calls.
            why = ", ".join(dict.fromkeys(os.strerror(int(code)).lower() for code in codes))
            raise OSError(why) from error

    async def _open(self, address: str, host: str, port: int, receiver: asyncio.Protocol) -> Stream:
        loop = asyncio.get_running_loop()
        tls = self._tls

        def made() -> _SocketStream:
            return _SocketStream(receiver, tls)

        if tls.context is None:
            _, stream = await loop.create_connection(made, host, port)
            return stream
        name = tls.expected_name(address, host)
        try:
            _, stream = await loop.create_connection(
                made,
                host,
                port,
                ssl=tls.context,
                server_hostname=name,
                ssl_shutdown_timeout=CLOSE_TIMEOUT_S,
            )
        except (ssl.SSLError, ConnectionResetError, BrokenPipeError) as error:
            raise tls.explain(error, name) from error
        return stream


class _SocketStream(asyncio.Protocol):
    """A transport, seen as a Stream."""

    def __init__(self, receiver: asyncio.Protocol, tls: ClientTls) -> None:
        self._receiver = receiver
        self._tls = tls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods but not the base class.
        made = self._transport = cast("asyncio.Transport", transport)
        self.write, self.close, self.abort = made.write, made.close, made.abort

    def data_received(self, data: bytes) -> None:
        self._receiver.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and self._tls.context is None:
            self._receive_rest()
        self._receiver.connection_lost(self._tls.explain_loss(exc))

    def _receive_rest(self) -> None:
        """Take what the peer said before a write failed: its answers do not come again."""
        descriptor: int = self._transport.get_extra_info("socket").fileno()
        with suppress(OSError):
            while descriptor >= 0 and (data := os.read(descriptor, REST_READ_SIZE)):
                self._receiver.data_received(data)

    def pause_writing(self) -> None:
        self._receiver.pause_writing()

    def resume_writing(self) -> None:
        self._receiver.resume_writing()

    @property
    def unsent_size(self) -> int:
        return self._transport.get_write_buffer_size()

    @property
    def local_ip(self) -> str:
        name = self._transport.get_extra_info("sockname")
        return str(name[0])


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of `host:port`; the last colon separates them, brackets may stand.

    Raises:
        OSError: not of that form, so nothing can be connected to.
    """
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise OSError(f"{address[:64]!a} is no host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
