"""The two message ids: where the broker keeps a message, and what its producer called it.

    offset id (`msgId` of a send answer), upper-case hex, 32 or 56 characters
        store host (8 or 20 bytes: address, port int32 BE), physical offset int64 BE

    unique id (property UNIQ_KEY), upper-case hex, 32 or 56 characters
        address of the producer (4 or 16 bytes), process id (low 16 bits), seed int32,
        milliseconds since the current month began in local time int32, counter int16 (wraps)

A batch's offset ids are joined by commas. An offset id of 32 characters is IPv4, else IPv6.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../message/MessageDecoder.java (createMessageId,
decodeMessageId), MessageClientIDSetter.java
"""

import struct
from datetime import datetime
from typing import Final

from skylarkmq.common.clock import Clock
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError
from skylarkmq.protocol.host_address import (
    IPV4_HOST_SIZE,
    IPV6_HOST_SIZE,
    HostAddress,
    unpack_host,
)

OFFSET_ID_IPV4_LENGTH: Final = 32
OFFSET_ID_IPV6_LENGTH: Final = 56
BATCH_ID_SEPARATOR: Final = ","

_OFFSET: Final = struct.Struct(">q")
assert 2 * (IPV4_HOST_SIZE + _OFFSET.size) == OFFSET_ID_IPV4_LENGTH
assert 2 * (IPV6_HOST_SIZE + _OFFSET.size) == OFFSET_ID_IPV6_LENGTH

_UNIQUE_FRONT: Final = struct.Struct(">HI")
_HEX: Final = tuple(f"{byte:02X}" for byte in range(256))
_MAX_STEP_BACK_MS: Final = 1_000_000


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """Return the offset id of the record at `physical_offset` of the broker at `store_host`.

    Args:
        store_host: the packed address, 8 or 20 bytes.
        physical_offset: bytes, not negative.
    """
    return store_host.hex().upper() + "%016X" % physical_offset  # noqa: UP031 - on every send


def decode_offset_message_id(text: str) -> tuple[HostAddress, int]:
    """Return the store host and the physical offset of an offset id; either case of hex is read.

    Raises:
        RemoteProtocolError: `text` is no offset id.
    """
    if len(text) not in (OFFSET_ID_IPV4_LENGTH, OFFSET_ID_IPV6_LENGTH):
        raise _bad_id(text, "an offset message id has 32 or 56 characters")
    if not text.isascii() or not text.isalnum():
        raise _bad_id(text, "an offset message id is hexadecimal")
    try:
        data = bytes.fromhex(text)
    except ValueError as error:
        raise _bad_id(text, "an offset message id is hexadecimal") from error
    physical_offset: int = _OFFSET.unpack_from(data, len(data) - _OFFSET.size)[0]
    if physical_offset < 0:
        raise _bad_id(text, "the offset of an offset message id is negative")
    return unpack_host(data[: -_OFFSET.size]), physical_offset


class UniqueIdGenerator:
    """Makes the ids that a producer gives to its messages before it sends them.

    Unique within a month per address, process and seed, up to 65,536 ids a millisecond. One thread.
    """

    def __init__(self, ip: bytes, pid: int, seed: int, clock: Clock) -> None:
        """Make a generator.

        Args:
            ip: the producer's address, 4 or 16 bytes.
            pid: the process; its low 16 bits count.
            seed: any number that tells generators of one process apart; its low 32 bits count.
        """
        if len(ip) not in (4, 16):
            raise LocalProtocolError(f"an address has 4 or 16 bytes, not {len(ip)}")
        front = ip + _UNIQUE_FRONT.pack(pid & 0xFFFF, seed & 0xFFFFFFFF)
        self._front: Final = front.hex().upper()
        self._clock: Final = clock
        self._counter = 0
        self._last_ms = -1
        self._long_front = ""
        self._start_ms = 0
        self._next_start_ms = 0
        self._set_month(clock.now_ms())

    def next(self) -> str:
        """Return a new id."""
        return self.at(self._clock.now_ms())

    def at(self, now_ms: int) -> str:
        """Return a new id; `now_ms` is what the clock says now."""
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        low = counter & 0xFF
        if now_ms != self._last_ms or not low:
            self._set_front(now_ms, counter >> 8)
        return self._long_front + _HEX[low]

    def _set_front(self, now_ms: int, counter_high: int) -> None:
        """Make what the next ids have in common: all but the last byte of the counter."""
        if now_ms >= self._next_start_ms:
            self._set_month(now_ms)
        elapsed_ms = now_ms - self._start_ms
        if -_MAX_STEP_BACK_MS < elapsed_ms < 0:
            # The clock was set back over the start of the month; the counter keeps ids apart.
            elapsed_ms = 0
        self._long_front = f"{self._front}{elapsed_ms & 0xFFFFFFFF:08X}{counter_high:02X}"
        self._last_ms = now_ms

    def _set_month(self, now_ms: int) -> None:
        now = datetime.fromtimestamp(now_ms / 1000)
        start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        if start.month == 12:
            following = start.replace(year=start.year + 1, month=1)
        else:
            following = start.replace(month=start.month + 1)
        self._start_ms = int(start.timestamp() * 1000)
        self._next_start_ms = int(following.timestamp() * 1000)


def _bad_id(text: str, why: str) -> RemoteProtocolError:
    return RemoteProtocolError(ResponseCode.SYSTEM_ERROR, f"{why}: {text[:64]!a}")
