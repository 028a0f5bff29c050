"""Addresses of the broker: the sockets that it listens on, and what clients are told to connect to.

The broker's own port goes into every record and message id, so it must be known before the first
request: sockets are bound before anything serves on them, and port 0 is resolved here. The fast
port is always two below the main one.

What clients are told:

    brokerIP1                            as it is; a host name is allowed
    bound to one address, loopback too   that one; `localhost` is 127.0.0.1
    bound to all, one interface          that interface's address
    bound to all, several or none        the start is refused, naming brokerIP1

Where it listens when `bindAddress` is not set: on brokerIP1 if that is an address of this machine,
else on loopback alone. Unlike RocketMQ, which listens on all interfaces.

Unlike RocketMQ, which takes the first address that it finds: in a container or on a machine with
several networks, often no client can reach that one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from skylarkmq.broker.config.settings import FAST_PORT_DISTANCE
from skylarkmq.common.config_fields import ConfigError

PAIR_ATTEMPTS: Final = 50
BACKLOG: Final = 1024
ACCEPTS_PER_TURN: Final = 16
"""asyncio takes so many connections in a turn as its backlog says, and when descriptors run out it
fails for each of them before it waits a second."""
_LOOPBACK_ADDRESS: Final = "127.0.0.1"
_WILDCARDS: Final = ("0.0.0.0", "::", "*")
_LOOPBACK_NAMES: Final = ("localhost",)
_IOCTL_GET_ADDRESS: Final = 0x8915  # SIOCGIFADDR of Linux: struct ifreq in and out
_INTERFACE_REQUEST: Final = struct.Struct("256s")
_ADDRESS_PLACE: Final = slice(20, 24)  # sin_addr, after the 16 byte name, family and port


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to `host`."""
    if host in _LOOPBACK_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def advertised_address(
    broker_ip1: str | None, bind_address: str, interface_addresses: Sequence[str]
) -> str:
    """Return the host part of the address that the broker registers.

    Args:
        interface_addresses: one address for each interface of the machine, loopback or not.

    Raises:
        ConfigError: only the user can know it.
    """
    if broker_ip1:
        return broker_ip1
    if bind_address in _LOOPBACK_NAMES:
        return _LOOPBACK_ADDRESS
    if bind_address not in _WILDCARDS:
        return bind_address
    candidates = list(dict.fromkeys(a for a in interface_addresses if not is_loopback(a)))
    if len(candidates) == 1:
        return candidates[0]
    found = f"this machine has {', '.join(candidates)}" if candidates else "no network was found"
    raise ConfigError(
        "brokerIP1",
        "",
        f"{found}; say which address clients shall use, for instance "
        f"--set brokerIP1={candidates[0] if candidates else _LOOPBACK_ADDRESS}",
    )


def is_guessed(broker_ip1: str | None, bind_address: str) -> bool:
    """Return whether `advertised_address` takes the address of the only interface."""
    return not broker_ip1 and bind_address in _WILDCARDS


def is_own(host: str) -> bool:
    """Return whether a host is this machine, by an address that others can reach. Blocks.

    Whoever may bind an address has it: that holds for every interface, IPv6 too.
    """
    try:
        address = resolve(host)
        if is_loopback(address) or address in _WILDCARDS:
            return False
        bind(address, 0).close()
    except OSError:
        return False
    return True


def why_unreachable(told: str, bound: str, *, contained: bool) -> str:
    """Return why clients may not reach the broker at the address that they are told, and the cure.

    Empty when nothing speaks against it, or the name is not known yet. Blocks.

    Args:
        contained: in a container, where clients are often told an address of its host.
    """
    try:
        address = resolve(told)
        listens = address if bound in _WILDCARDS else resolve(bound)
    except OSError:
        return ""
    own = is_own(told)
    if address != listens and (own or is_loopback(listens)) and not is_loopback(address):
        return (
            f"clients are told {told}, and the broker listens on {bound} alone: set bindAddress to "
            f"{told if own else '0.0.0.0'}, or leave brokerIP1 out"
        )
    if not (own or is_loopback(address) or contained):
        return (
            f"clients are told {told}, which is no address of this machine: nobody reaches the "
            "broker unless something there forwards to it (NAT, a load balancer); see brokerIP1"
        )
    return ""


def in_container(environment: Mapping[str, str] = os.environ, root: Path = Path("/")) -> bool:
    """Return whether this process runs in a container, as far as Docker, Podman and Kubernetes
    say so: its only interface is then one of the container's own network."""
    signs = (root / ".dockerenv", root / "run" / ".containerenv")
    return "KUBERNETES_SERVICE_HOST" in environment or any(sign.exists() for sign in signs)


def interface_addresses() -> list[str]:
    """Return the IPv4 address of each interface of this machine that is up."""
    if sys.platform != "linux":
        return _addresses_of_host_name()
    import fcntl

    addresses: list[str] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = _INTERFACE_REQUEST.pack(name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _IOCTL_GET_ADDRESS, request)
            except OSError:
                continue  # an interface without an IPv4 address
            addresses.append(socket.inet_ntoa(answer[_ADDRESS_PLACE]))
    return addresses


def _addresses_of_host_name() -> list[str]:
    try:
        rows = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    except OSError:
        return []
    return list(dict.fromkeys(str(row[4][0]) for row in rows))


def bind(host: str, port: int, *, alone: bool = False) -> socket.socket:
    """Return a TCP socket bound to an address; port 0 takes a free one.

    Args:
        alone: nobody else may bind the port, also before `listen`. A port that was given must be
            free again right after a broker has ended, so until one listens two programs may bind
            it. One that is found free (port 0) is always had alone.

    Raises:
        OSError: the address is not available; its text names it.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        _host(host), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        if port and not alone:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise refused(error, host, port) from error
    bound.setblocking(False)
    return bound


def listen(bound: socket.socket, backlog: int) -> None:
    """Listen on a bound socket.

    Raises:
        OSError: another socket listens on the address; its text names it.
    """
    try:
        bound.listen(backlog)
        # Its connections have it from here, so the port can be bound again while they end.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError as error:
        raise refused(error, *bound.getsockname()[:2]) from error


_CURES: Final = {
    errno.EADDRINUSE: "another program has it: stop that one, or set another port",
    errno.EADDRNOTAVAIL: "this machine has no such address: set one that it has, or 0.0.0.0",
    errno.EACCES: "only root may have the ports below 1024: set a higher one",
}


def refused(error: OSError, host: str, port: int, named_by: str = "") -> OSError:
    """Return the error that names the address, the key that it is from, the reason and the cure."""
    by = f", which {named_by} names" if named_by else ""
    why = f"cannot listen on {host}:{port}{by}: {os.strerror(error.errno or 0)}"
    cure = _CURES.get(error.errno or 0)
    return OSError(error.errno, f"{why}; {cure}" if cure else why)


async def accept_from(bound: socket.socket, make: Callable[[], asyncio.Protocol]) -> asyncio.Server:
    """Accept connections on a bound socket, some in each turn of the loop.

    Raises:
        OSError: as `listen`.
    """
    listen(bound, BACKLOG)  # here, because uvloop would not tell that it failed
    loop = asyncio.get_running_loop()
    server = await loop.create_server(make, sock=bound, backlog=ACCEPTS_PER_TURN)
    bound.listen(BACKLOG)  # again: the loop's own backlog is ACCEPTS_PER_TURN
    return server


def port_of(bound: socket.socket) -> int:
    """Return the port that a socket is bound to."""
    port: int = bound.getsockname()[1]
    return port


def bind_pair(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Return sockets for `port` and for the fast port below it; port 0 takes a free pair.

    Raises:
        OSError: one of them is not available.
    """
    for _ in range(PAIR_ATTEMPTS):
        main = bind(host, port)
        try:
            return main, bind(host, port_of(main) - FAST_PORT_DISTANCE, alone=not port)
        except OSError as error:
            main.close()
            if port or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
        except OverflowError:
            with contextlib.suppress(OSError):
                main.close()
    raise OSError(errno.EADDRINUSE, f"no free pair of ports was found on {host}")


def bind_three(host: str, distance: int) -> tuple[socket.socket, socket.socket, socket.socket]:
    """Return sockets for a free port, for its fast port, and for the one `distance` above it.

    Raises:
        OSError: none was found.
    """
    for _ in range(PAIR_ATTEMPTS):
        main, fast = bind_pair(host, 0)
        try:
            return main, fast, bind(host, port_of(main) + distance, alone=True)
        except (OSError, OverflowError):
            main.close()
            fast.close()
    raise OSError(errno.EADDRINUSE, f"no three free ports were found on {host}")


def resolve(host: str) -> str:
    """Return the address of a host name as text, an address as it is. May block for the lookup.

    Raises:
        OSError: the name is unknown.
    """
    found = socket.getaddrinfo(_host(host), None, type=socket.SOCK_STREAM)
    return str(found[0][4][0])


def _host(name: str) -> str | bytes:
    """Return a name as `getaddrinfo` takes it without loading the tables of all letters."""
    return name.encode() if name.isascii() else name
