"""A host as the store keeps it: the address bytes, then the port as a 32-bit integer.

    size  parts
    8     IPv4 address (4), port int32 BE
    20    IPv6 address (16), port int32 BE

Which of the two it is stands in two bits of the message's system flag, not in the bytes.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../message/MessageExt.java
(socketAddress2ByteBuffer)
"""

import struct
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

from skylarkmq.protocol.errors import LocalProtocolError

IPV4_HOST_SIZE: Final = 8
IPV6_HOST_SIZE: Final = 20

_PORT: Final = struct.Struct(">i")
_IPV4_HOST: Final = struct.Struct(">BBBBi")
assert _IPV4_HOST.size == IPV4_HOST_SIZE
assert 16 + _PORT.size == IPV6_HOST_SIZE


class HostAddress(NamedTuple):
    """An address in text form and a port."""

    ip: str
    port: int

    def __str__(self) -> str:
        """Return `ip:port`, the address in brackets when it is IPv6."""
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"

    def pack(self) -> bytes:
        """Return the 8 or 20 bytes of the record.

        An IPv4 address mapped into IPv6 (`::ffff:a.b.c.d`, from a dual-stack socket) becomes IPv4,
        as in
        Java: else the record's layout would depend on how the listener was opened.

        Raises:
            LocalProtocolError: `ip` is no address, or the port is out of range.
        """
        if not 0 <= self.port <= 0xFFFF:
            raise LocalProtocolError(f"port {self.port} is out of range")
        try:
            address = ip_address(self.ip)
        except ValueError as error:
            raise LocalProtocolError(f"{self.ip[:64]!a} is no IP address") from error
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address.packed + _PORT.pack(self.port)

    @staticmethod
    def unpack(data: bytes) -> "HostAddress":
        """Return the host of 8 or 20 bytes; the port is taken as it stands.

        Raises:
            LocalProtocolError: another number of bytes.
        """
        return unpack_host(data)


def network_of(host: bytes) -> bytes:
    """Return what counts as one address where peers share something: of IPv6 a network of 64 bits.

    Args:
        host: as `HostAddress.pack` has it.
    """
    return host[:-4][:8]


def network_at(peer: str) -> bytes:
    """Return the same of a peer's `host:port`; of a host that is no address its text."""
    return _network_at(peer.rpartition(":")[0])


@lru_cache(maxsize=4096)
def _network_at(host: str) -> bytes:
    try:
        return network_of(HostAddress(host.strip("[]"), 0).pack())
    except LocalProtocolError:
        return host.encode()


@lru_cache(maxsize=4096)
def unpack_host(data: bytes) -> HostAddress:
    """Return the host of 8 or 20 bytes, remembered: a consumer meets few hosts, in each message."""
    if len(data) == IPV4_HOST_SIZE:
        first, second, third, fourth, port = _IPV4_HOST.unpack(data)
        return HostAddress(f"{first}.{second}.{third}.{fourth}", port)
    if len(data) == IPV6_HOST_SIZE:
        return HostAddress(str(IPv6Address(data[:16])), _PORT.unpack_from(data, 16)[0])
    raise LocalProtocolError(f"a host has 8 or 20 bytes, not {len(data)}")
