"""Listening sockets, bound before anything serves on them.

A broker's own port goes into every record and message id, so it must be known before the first
request: port 0 is resolved here. The fast port is always two below the main one.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from typing import Final, Protocol

from skylarkmq.broker.config.settings import FAST_PORT_DISTANCE

PAIR_ATTEMPTS: Final = 50
# Of tcp(7)'s struct tcp_info: tcpi_last_data_recv, ms, behind 8 bytes and 11 words.
_LAST_DATA: Final = struct.Struct("=I")
_LAST_DATA_POSITION: Final = 52
_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)


class SocketOptions(Protocol):
    """A socket, or what a transport shows of its own."""

    def getsockopt(self, level: int, optname: int, buflen: int, /) -> bytes:
        """The bytes of an option."""
        ...


def silence_s(connected: SocketOptions) -> float:
    """For how long no data has arrived on a TCP connection, s; 0.0 where the system keeps that."""
    if _TCP_INFO is None:
        return 0.0
    size = _LAST_DATA_POSITION + _LAST_DATA.size
    try:
        info = connected.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, size)
    except OSError:
        return 0.0
    return _LAST_DATA.unpack_from(info, _LAST_DATA_POSITION)[0] / 1000 if len(info) >= size else 0.0


def bind(host: str, port: int) -> socket.socket:
    """Return a TCP socket bound to an address; port 0 takes a free one.

    Raises:
        OSError: the address can not be had; its text names it.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"can not listen on {host}:{port}: {error.strerror}") from error
    bound.setblocking(False)
    return bound


def port_of(bound: socket.socket) -> int:
    """The port that a socket is bound to."""
    port: int = bound.getsockname()[1]
    return port


def bind_pair(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Return sockets for `port` and for the fast port below it; port 0 takes a free pair.

    Raises:
        OSError: one of them can not be had.
    """
    for _ in range(PAIR_ATTEMPTS):
        main = bind(host, port)
        try:
            return main, bind(host, port_of(main) - FAST_PORT_DISTANCE)
        except OSError as error:
            main.close()
            if port or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
        except OverflowError:
            with contextlib.suppress(OSError):
                main.close()
    raise OSError(errno.EADDRINUSE, f"no free pair of ports was found on {host}")


def resolve(host: str) -> str:
    """Return the address of a host name as text, an address as it is. May block for the lookup.

    Raises:
        OSError: nobody knows the name.
    """
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return str(found[0][4][0])
