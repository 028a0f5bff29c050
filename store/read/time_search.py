"""Store times: of a record, and the search for the message that was stored nearest to a time."""

from __future__ import annotations

import struct
from collections.abc import Callable

from skylarkmq.protocol.record import SYS_FLAG_POSITION

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_BORN_HOST_IPV6 = 0x10
_STORE_TIMESTAMP_POSITION = 56  # with an IPv4 born host
_IPV6_EXTRA = 12


def store_timestamp_at(buffer: memoryview | bytes, position: int) -> int:
    """The store time of the record at a position, ms."""
    (sys_flag,) = _INT.unpack_from(buffer, position + SYS_FLAG_POSITION)
    position += _STORE_TIMESTAMP_POSITION
    if sys_flag & _BORN_HOST_IPV6:
        position += _IPV6_EXTRA
    timestamp: int = _LONG.unpack_from(buffer, position)[0]
    return timestamp


def nearest_in_time(low: int, high: int, timestamp_ms: int, time_of: Callable[[int], int]) -> int:
    """The offset in [low, high) of the message stored nearest to a time, the earlier on a tie."""
    first, end = low, high
    while low < high:
        middle = (low + high) // 2
        if time_of(middle) < timestamp_ms:
            low = middle + 1
        else:
            high = middle
    if low == end:
        return low - 1
    if low == first:
        return low
    after = time_of(low) - timestamp_ms
    before = timestamp_ms - time_of(low - 1)
    return low if after < before or after == 0 else low - 1
