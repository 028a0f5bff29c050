"""The parts of the records of one batch, before they become columns.

Reading a record in Python costs by the operation, so of each one a reader keeps three slices: the
fixed part, the body and the properties. A record with an IPv6 host has a longer fixed part; it is
narrowed to the layout of the others and its hosts lie aside, so that all fixed parts, back to
back, have one stride.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from skylarkmq.protocol.record import (
    BORN_HOST_POSITION,
    FIXED_BY_HOSTS,
    HOSTS_MASK,
    HOSTS_SHIFT,
)

LongHosts = dict[int, tuple[bytes, bytes]]
"""Packed born and store host by row."""

_BODY_SIZE: Final = struct.Struct(">i")
_TIME_SIZE: Final = 8
_NO_HOST: Final = bytes(8)


class Gathered:
    """Lists with one item a row.

    Attributes:
        heads: fixed parts in the layout of two IPv4 hosts, 88 bytes each.
        long_hosts: the hosts of the rows where one is IPv6; in their heads stand zeros.
        topics: names.
        brokers: runs: a broker's name and how many rows in a row have it.
        bodies: what the column is to show; empty when it is not asked for.
        properties: encoded texts; empty when no column of them is asked for.
        extra: further columns by name, made by whoever gathered.
    """

    __slots__ = ("bodies", "brokers", "extra", "heads", "long_hosts", "properties", "topics")

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.long_hosts: LongHosts = {}
        self.topics: list[str] = []
        self.brokers: list[tuple[str, int]] = []
        self.bodies: list[bytes | memoryview] = []
        self.properties: list[bytes] = []
        self.extra: dict[str, Any] = {}


def narrowed(
    data: bytes | memoryview, position: int, sys_flag: int
) -> tuple[bytes, tuple[bytes, bytes], int, int]:
    """Return the record at `position`, which has an IPv6 host, as if it had none.

    That is its fixed part with zeros for hosts, the two packed hosts, where its body starts in
    `data`, and its body's size: -1 when the data ends before.
    """
    hosts = sys_flag >> HOSTS_SHIFT & HOSTS_MASK
    born_size, store_size = 20 if hosts & 1 else 8, 20 if hosts & 2 else 8
    body_start = position + FIXED_BY_HOSTS[hosts].size
    born = position + BORN_HOST_POSITION
    time = born + born_size
    store = time + _TIME_SIZE
    tail = store + store_size
    head = b"".join(
        (
            data[position:born],
            _NO_HOST,
            data[time:store],
            _NO_HOST,
            data[tail:body_start],
        )
    )
    packed = bytes(data[born:time]), bytes(data[store:tail])
    if len(data) < body_start:
        return head, packed, body_start, -1
    return head, packed, body_start, _BODY_SIZE.unpack_from(data, body_start - _BODY_SIZE.size)[0]
