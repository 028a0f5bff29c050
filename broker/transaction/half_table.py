"""Which half messages have not ended: a bit for each queue offset of the half topic.

    start       every half message below it has ended; kept as the half topic's consumer offset
    bit n       half message n, at `start` or above, has ended
    op start    every op message below it names half messages below `start` alone; kept as the op
                topic's consumer offset, from which a start reads again

Ended means: committed, rolled back, written again at another offset, or given up, and all of that
stored. A half message that is written again keeps its first offset in a property; `moved` leads
from there to where it is now, so that a verdict for any of its former places finds it.

Memory: a bit for each half message from `start` on, 16 bytes or so for 256 op messages, and at most
MOVED_MAX entries of places.

Pure; loop thread.
Source: apache/rocketmq@rocketmq-all-4.9.8
broker/.../transaction/queue/TransactionalMessageServiceImpl.java (check, calculateOpOffset)
"""

from __future__ import annotations

import re
from typing import Final

OPS_IN_CHUNK: Final = 256
MOVED_MAX: Final = 200_000
_FULL: Final = 0xFF
_FULL_BYTES: Final = re.compile(rb"\xff*")  # a million bits in microseconds
_TRIM_SIZE: Final = 4096


class HalfTable:
    """The state of all half messages of one queue."""

    __slots__ = ("_base", "_bits", "_chunks", "_ended_count", "_op_start", "moved", "start")

    def __init__(self, start: int = 0, op_start: int = 0) -> None:
        self.start = start
        self.moved: dict[int, int] = {}  # first queue offset -> where it is now
        self._base = start - start % 8  # queue offset of the lowest bit of the first byte
        self._bits = bytearray()
        self._ended_count = 0  # set bits from `start` on
        self._op_start = op_start
        self._chunks: dict[int, list[int]] = {}  # op offset // 256 -> [op messages, highest half]

    # Half messages

    def is_ended(self, offset: int) -> bool:
        """Return whether the half message at a queue offset has ended."""
        if offset < self.start:
            return True
        index = (offset - self._base) >> 3
        return index < len(self._bits) and bool(self._bits[index] >> (offset & 7) & 1)

    def end(self, offset: int) -> None:
        """Note that the half message at a queue offset has ended; twice is as good as once."""
        if self.is_ended(offset):
            return
        index = (offset - self._base) >> 3
        missing = index + 1 - len(self._bits)
        if missing > 0:
            self._bits += bytes(missing)
        self._bits[index] |= 1 << (offset & 7)
        self._ended_count += 1
        if offset == self.start:
            self._advance()

    def skip_to(self, offset: int) -> None:
        """Note that nothing below a queue offset is there anymore."""
        if offset <= self.start:
            return
        first = (self.start - self._base) >> 3
        passed = int.from_bytes(self._bits[first : (offset - self._base + 7) >> 3], "little")
        passed &= (1 << (offset - self._base - 8 * first)) - 1
        self._ended_count -= (passed >> (self.start & 7)).bit_count()
        self.start = offset
        self._advance()

    def pending_count(self, end: int) -> int:
        """Return how many half messages below a queue offset have not ended."""
        return max(0, end - self.start - self._ended_count)

    def next_pending(self, offset: int, end: int) -> int:
        """Return the first half message from `offset` on that has not ended, else `end`."""
        offset = max(offset, self.start)
        bits, base = self._bits, self._base
        limit = min(end, base + 8 * len(bits))
        while offset < limit:
            byte = bits[(offset - base) >> 3] >> (offset & 7)
            if byte == _FULL >> (offset & 7):
                offset = base + 8 * self._full_end((offset - base) >> 3)
                continue
            while byte & 1:
                byte >>= 1
                offset += 1
            break
        return min(offset, end)

    def move(self, first_offset: int, offset: int) -> None:
        """Note that a half message is at another offset now; the caller ends the place it left."""
        if first_offset in self.moved or len(self.moved) < MOVED_MAX:
            self.moved[first_offset] = offset

    def _advance(self) -> None:
        bits, start = self._bits, self.start
        limit = self._base + 8 * len(bits)
        while start < limit:
            byte = bits[(start - self._base) >> 3]
            if not start & 7 and byte == _FULL:
                passed = self._base + 8 * self._full_end((start - self._base) >> 3) - start
                start += passed
                self._ended_count -= passed
            elif byte >> (start & 7) & 1:
                start += 1
                self._ended_count -= 1
            else:
                break
        self.start = start
        unused = min((start - self._base) >> 3, len(bits))
        if unused >= _TRIM_SIZE or unused == len(bits):
            del bits[:unused]
            self._base = start - start % 8 if not bits else self._base + 8 * unused

    def _full_end(self, index: int) -> int:
        """Return the first byte after the one at `index` that has an open half message."""
        full = _FULL_BYTES.match(self._bits, index + 1)
        return index + 1 if full is None else full.end()

    # Op messages

    def note_op(self, op_offset: int, half_offset: int) -> None:
        """Note a stored op message; `half_offset` is the highest one that it names."""
        if op_offset < self._op_start:
            return
        chunk = self._chunks.setdefault(op_offset // OPS_IN_CHUNK, [0, -1])
        chunk[0] += 1
        chunk[1] = max(chunk[1], half_offset)

    def op_start(self, half_end: int, op_end: int) -> int:
        """Return the op offset from which a start has to read.

        Args:
            half_end, op_end: after the last visible message of both topics.
        """
        if self.start >= half_end:  # nothing is open, so no op message is needed again
            self._op_start = max(self._op_start, op_end)
            self._chunks.clear()
        while True:
            index = self._op_start // OPS_IN_CHUNK
            chunk = self._chunks.get(index)
            end = (index + 1) * OPS_IN_CHUNK
            if chunk is None or chunk[0] < end - self._op_start or chunk[1] >= self.start:
                return self._op_start
            del self._chunks[index]
            self._op_start = end
