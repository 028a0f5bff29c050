"""The bytes between a master and its slaves, on the HA port. No I/O.

Slave to master, a report; the first one says where to begin, and 0 begins at the last file:

    position  size  field    type
    0         8     offset   int64 BE   end of the slave's log

Master to slave, a part of the log, or a heartbeat when the size is 0:

    position  size  field    type
    0         8     offset   int64 BE   place of the first byte in the log
    8         4     size     int32 BE   bytes that follow; they are of one file
    12        n     data     bytes of the log, cut anywhere

There is no greeting, no version and no checksum: both ends check what they can.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../ha/HAService.java (HAClient),
HAConnection.java
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from skylarkmq.common.errors import StoreError

REPORT: Final = struct.Struct(">q")
REPORT_SIZE: Final = 8
assert REPORT.size == REPORT_SIZE
PART_HEAD: Final = struct.Struct(">qi")
PART_HEAD_SIZE: Final = 12
assert PART_HEAD.size == PART_HEAD_SIZE

PART_SIZE_MAX: Final = (4 << 20) - PART_HEAD_SIZE
"""Bytes of one part: RocketMQ's slave reads it, with its head, into a buffer of 4 MiB."""


class HaProtocolError(StoreError):
    """The other end does not speak as a master, or a slave, does."""


class LogPart(NamedTuple):
    """Bytes of a master's log; none in a heartbeat."""

    offset: int
    data: bytes


def encode_report(offset: int) -> bytes:
    """Return a slave's report: its log ends at `offset`."""
    return REPORT.pack(offset)


def encode_head(offset: int, size: int) -> bytes:
    """Return what stands before `size` bytes of the log; of a heartbeat, all of it."""
    return PART_HEAD.pack(offset, size)


class ReportDecoder:
    """Cuts what a slave sends into reports."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Sequence[int]:
        """Return the offsets of the reports that are whole with these bytes.

        Raises:
            HaProtocolError: an offset is negative, so this is no slave.
        """
        offsets: Sequence[int]
        if len(data) == REPORT_SIZE and not self._rest:  # it mostly comes alone
            offsets = REPORT.unpack(data)
        else:
            data = self._rest + data
            end = len(data) - len(data) % REPORT_SIZE
            self._rest = data[end:]
            offsets = [offset for (offset,) in REPORT.iter_unpack(data[:end])]
        for offset in offsets:
            if offset < 0:
                raise HaProtocolError(f"offset {offset} is no place of a log: this is no slave")
        return offsets


class PartDecoder:
    """Cuts what a master sends into parts of its log. Holds at most one that has not ended."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0  # bytes of the pieces
        self._wanted = PART_HEAD_SIZE  # bytes with which a head, then a part, is whole

    def feed(self, data: bytes) -> list[LogPart]:
        """Return the parts that are whole with these bytes.

        Raises:
            HaProtocolError: an offset is negative or a size is out of range: this is no master.
        """
        self._pieces.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return []
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        parts: list[LogPart] = []
        place, self._wanted = 0, PART_HEAD_SIZE
        while len(data) - place >= PART_HEAD_SIZE:
            offset, size = PART_HEAD.unpack_from(data, place)
            if offset < 0 or not 0 <= size <= PART_SIZE_MAX:
                raise HaProtocolError(
                    f"offset {offset} with {size} bytes is no part of a log: this is no master, or "
                    f"its haTransferBatchSize is above {PART_SIZE_MAX}"
                )
            end = place + PART_HEAD_SIZE + size
            if end > len(data):
                self._wanted = PART_HEAD_SIZE + size
                break
            parts.append(LogPart(offset, data[place + PART_HEAD_SIZE : end]))
            place = end
        rest = data[place:] if place else data
        self._pieces = [rest] if rest else []
        self._size = len(rest)
        return parts
