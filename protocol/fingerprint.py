"""Which message stands at a queue offset: what a reader notes of the last one that it has read.

Offsets are given again: when a topic is deleted and made anew, when a power cut or an older backup
makes the log shorter, when a cluster begins with an empty disk. A reader that keeps its position
looks at the message before it again, and knows by the fingerprint whether it is still that one.

    physical_offset   where it lies in the log
    store_timestamp   when the broker stored it, ms since the epoch
    checksum          CRC-32 of its id and of when it was sent; no text of a user's stands here

Two messages that were stored at different times are different ones. Of one time, as while a broker
waits for a clock that was set back, they are the same if they lie at one place, or if their
checksums are equal: a log that was repaired or restored may have them at other places.
"""

from __future__ import annotations

from typing import Final, NamedTuple, cast
from zlib import crc32

from skylarkmq.protocol.message import MessageExt

INT64_MAX: Final = 2**63 - 1


class Fingerprint(NamedTuple):
    """See the module."""

    physical_offset: int
    store_timestamp: int
    checksum: int

    def is_same(self, other: Fingerprint) -> bool:
        """Return whether both are of one message."""
        return self.store_timestamp == other.store_timestamp and (
            self.physical_offset == other.physical_offset or self.checksum == other.checksum
        )

    def new_since(self, there: Fingerprint) -> int | None:
        """Return from which store time on messages are new to a reader that has read this one.

        None: it is still there. 0: all of them, as their times tell nothing: they are of another
        broker, or of a clock that was set back.

        Args:
            there: what stands at its offset now.
        """
        if self.is_same(there):
            return None
        return self.store_timestamp + 1 if there.store_timestamp > self.store_timestamp else 0

    @classmethod
    def of(cls, message: MessageExt) -> Fingerprint:
        """Return the fingerprint of a stored message."""
        text = f"{message.born_timestamp} {message.unique_key or ''}"
        checksum = crc32(text.encode("utf-8", "surrogatepass"))
        return cls(message.physical_offset, message.store_timestamp, checksum)

    @classmethod
    def from_json(cls, value: object) -> Fingerprint:
        """Return the fingerprint of a list of its numbers.

        Raises:
            ValueError: it is no such list.
        """
        given = cast("list[object]", value) if isinstance(value, list) else []
        numbers = [each for each in given if type(each) is int and 0 <= each <= INT64_MAX]
        if len(numbers) == len(given) == len(cls._fields):
            return cls(*numbers)
        raise ValueError(f"{value!r:.40} is no fingerprint of a message")
