"""Windows of unique keys: what was stored in a topic lately is not stored there again.

A topic that asks for a window has one: the unique keys (property UNIQ_KEY) of the messages that
were stored in it in the last seconds, the youngest ones, at most so many. Who stores a message
looks there first. A message whose key is known is not stored; its sender is told where the first
copy lies, when that copy is as durable as its own sender was told (`MessageWriter.answer_known`).

A key is noted when its record is laid out. A record that is not written then ends the store for
good, and no key outlives the process: after a start a window is made again from the topic's queues
and the log (`rebuild`), so it knows what the log has, and nothing else. A follower keeps no window;
it makes them when it leads, from the log that it has received.

    digest of a key -> store time, physical offset, queue offset, queue id, in one number

Keys leave in the order in which they came: by their time, or sooner when there are too many.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from skylarkmq.common.first_use import on_first_use
from skylarkmq.protocol.properties import STORE_AGAIN, UNIQ_KEY, find_property
from skylarkmq.protocol.topic_attributes import DeduplicationWindow
from skylarkmq.store.queue.consume_queue import PRE_BLANK_SIZE

if TYPE_CHECKING:
    import hashlib

    from skylarkmq.store.log.commit_log import CommitLog
    from skylarkmq.store.read.message_reader import MessageReader
else:  # by the first topic with a window
    hashlib = on_first_use("hashlib")

_UNIQUE: Final = UNIQ_KEY.encode() + b"\x01"
_STORE_AGAIN: Final = STORE_AGAIN.encode() + b"\x01"
DIGEST_SIZE: Final = 15
"""Bytes of a digest; Python's object for it takes 48, with 16 it would take 64."""
# Bits of a place, from the lowest on; the store time is above them.
_QUEUE_ID_BITS: Final = 16
_QUEUE_OFFSET_BITS: Final = 50
_PHYSICAL_BITS: Final = 58
_QUEUE_OFFSET_AT: Final = _QUEUE_ID_BITS
_PHYSICAL_AT: Final = _QUEUE_OFFSET_AT + _QUEUE_OFFSET_BITS
_TIME_AT: Final = _PHYSICAL_AT + _PHYSICAL_BITS
_OBJECT_SIZE: Final = 48
"""Bytes of a digest, and of a place, as objects."""
EXPIRE_MAX: Final = 10_000
"""Keys that one call of `expire` forgets."""
PAGE_COUNT: Final = 128
"""Records that are read between two turns of the loop."""
UNITS_AT_ONCE: Final = 4096


class Known(NamedTuple):
    """Where the first copy of a message lies."""

    queue_id: int
    queue_offset: int
    physical_offset: int
    store_timestamp: int  # ms


class Window:
    """The unique keys of one topic. Loop thread.

    Attributes:
        hits: messages that were not stored because their key was known.
        evictions: keys that were forgotten before their time, because there were too many.
    """

    __slots__ = ("_digests", "_places", "_size", "_window_ms", "evictions", "hits")

    def __init__(self, size: DeduplicationWindow) -> None:
        self._size = size
        self._window_ms = size.seconds * 1000
        # Invariant: `_digests` has the keys of `_places` in the order of their store times.
        self._places: dict[bytes, int] = {}
        self._digests: deque[bytes] = deque()
        self.hits = 0
        self.evictions = 0

    @property
    def size(self) -> DeduplicationWindow:
        """How much is remembered."""
        return self._size

    @property
    def count(self) -> int:
        """Keys that are kept, also those whose time is over since the last look."""
        return len(self._places)

    @property
    def memory_size(self) -> int:
        """Bytes of memory that they take."""
        kept = len(self._places) * 2 * _OBJECT_SIZE
        return kept + sys.getsizeof(self._places) + sys.getsizeof(self._digests)

    def resize(self, size: DeduplicationWindow) -> None:
        """Remember another time, or another number of keys, from now on."""
        self._size = size
        self._window_ms = size.seconds * 1000
        self._evict()

    def look(self, digest: bytes, now_ms: int) -> Known | None:
        """Return where the message of a key was stored within the window, and count that."""
        place = self._places.get(digest)
        if place is None or now_ms - (place >> _TIME_AT) >= self._window_ms:
            return None
        self.hits += 1
        return _known(place)

    def note(
        self, digest: bytes, now_ms: int, queue_id: int, queue_offset: int, physical_offset: int
    ) -> None:
        """Remember a message that is stored now; what is known of its key within the window stays.

        Args:
            now_ms: its store time, which is not before those of earlier calls.
        """
        places = self._places
        before = places.get(digest)
        if before is not None:
            if now_ms - (before >> _TIME_AT) < self._window_ms:
                return
            self._forget_until(digest)
        places[digest] = (
            ((now_ms << _PHYSICAL_BITS | physical_offset) << _QUEUE_OFFSET_BITS | queue_offset)
            << _QUEUE_ID_BITS
        ) | queue_id
        self._digests.append(digest)
        if len(places) > self._size.keys:
            self.expire(now_ms, 2)
            self._evict()

    def expire(self, now_ms: int, count_max: int = EXPIRE_MAX) -> None:
        """Forget the first keys whose time is over, a bounded number."""
        digests, places = self._digests, self._places
        last_ms = now_ms - self._window_ms
        for _ in range(min(count_max, len(digests))):
            if places[digests[0]] >> _TIME_AT > last_ms:
                return
            del places[digests.popleft()]

    def _forget_until(self, digest: bytes) -> None:
        """Forget a key whose time is over, and those before it, which are older."""
        while True:
            first = self._digests.popleft()
            del self._places[first]
            if first == digest:
                return

    def _evict(self) -> None:
        while len(self._places) > self._size.keys:
            del self._places[self._digests.popleft()]
            self.evictions += 1


def _known(place: int) -> Known:
    return Known(
        place & (1 << _QUEUE_ID_BITS) - 1,
        place >> _QUEUE_OFFSET_AT & (1 << _QUEUE_OFFSET_BITS) - 1,
        place >> _PHYSICAL_AT & (1 << _PHYSICAL_BITS) - 1,
        place >> _TIME_AT,
    )


def digest_of(properties: bytes) -> bytes | None:
    """Return what a window knows a message by; None when it is always to be stored.

    A message with STORE_AGAIN=true is a copy of one that was stored, and is to be stored all the
    same, such as a dead letter that goes back to its topic. It is neither looked for nor noted.

    Args:
        properties: encoded.
    """
    key = find_property(properties, _UNIQUE)
    if key is None or (
        _STORE_AGAIN in properties and find_property(properties, _STORE_AGAIN) == b"true"
    ):
        return None
    return _blake2b()(key, digest_size=DIGEST_SIZE).digest()


@cache
def _blake2b() -> type[hashlib.blake2b]:
    """Return the hash: looked up once, for every message needs it."""
    return hashlib.blake2b


class Mark:
    """A message's key in the window of its topic. Loop thread."""

    __slots__ = ("_digest", "_window")

    def __init__(self, window: Window, digest: bytes) -> None:
        self._window = window
        self._digest = digest

    def look(self, now_ms: int) -> Known | None:
        """Return where a message of this key was stored within the window, and count that."""
        return self._window.look(self._digest, now_ms)

    def note(self, now_ms: int, queue_id: int, queue_offset: int, physical_offset: int) -> None:
        """Remember that the message is stored."""
        self._window.note(self._digest, now_ms, queue_id, queue_offset, physical_offset)


class Deduplication:
    """The windows of a store, by topic. Loop thread; `rebuild` before it serves, too.

    Attributes:
        windows: empty as long as no topic wants one, so that others pay for one look.
    """

    def __init__(self, commit_log: CommitLog, reader: MessageReader) -> None:
        self.windows: dict[str, Window] = {}
        self._log = commit_log
        self._reader = reader

    def mark(self, topic: str, properties: bytes) -> Mark | None:
        """Return what a message of a topic is known by; None when it is stored in any case."""
        window = self.windows.get(topic)
        digest = None if window is None else digest_of(properties)
        return None if window is None or digest is None else Mark(window, digest)

    def want(self, topic: str, size: DeduplicationWindow | None) -> None:
        """Give a topic a window, which begins without a key; change it, or take it away."""
        window = self.windows.get(topic)
        if size is None:
            self.windows.pop(topic, None)
        elif window is None:
            self.windows[topic] = Window(size)
        elif window.size != size:
            window.resize(size)

    def rebuild(
        self, topic: str, size: DeduplicationWindow, queue_ids: Iterable[int], now_ms: int
    ) -> Iterator[None]:
        """Give a topic a window that knows its stored messages; the loop may turn between steps.

        Nothing may be stored in the topic before the end. All of the log is shown.

        Args:
            queue_ids: all queues of the topic that may have messages.
        """
        window = Window(size)
        places: list[tuple[int, int, int]] = []  # (physical offset, queue offset, queue id)
        for queue_id in queue_ids:
            begin = self._first_after(topic, queue_id, now_ms - size.seconds * 1000)
            yield from self._collect(places, topic, queue_id, begin, size.keys)
        places.sort()
        del places[: -size.keys]
        newest_ms = 0  # other brokers' store times may go back
        for number, (physical_offset, queue_offset, queue_id) in enumerate(places, 1):
            record = self._log.read(physical_offset)
            digest = None if record is None else digest_of(record.properties)
            if record is not None and digest is not None:
                # A clock that was ahead keeps no key of the time after it.
                stored_ms = self._log.clock_steps.bounded(physical_offset, record.store_timestamp)
                newest_ms = max(newest_ms, stored_ms)
                window.note(digest, newest_ms, queue_id, queue_offset, physical_offset)
            if not number % PAGE_COUNT:
                yield
        self.windows[topic] = window

    def _first_after(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Return the queue offset of the first message that was stored after a time."""
        reader = self._reader
        offset = reader.offset_by_time(topic, queue_id, time_ms)  # the nearest, which may be later
        first, end = reader.min_offset(topic, queue_id), reader.max_offset(topic, queue_id)
        while offset > first and reader.message_time(topic, queue_id, offset - 1) > time_ms:
            offset -= 1
        while offset < end and reader.message_time(topic, queue_id, offset) <= time_ms:
            offset += 1
        return max(offset, first)

    def _collect(
        self,
        places: list[tuple[int, int, int]],
        topic: str,
        queue_id: int,
        begin: int,
        count_max: int,
    ) -> Iterator[None]:
        """Add where the messages of a queue lie, at most `count_max`, the last ones."""
        end = self._reader.max_offset(topic, queue_id)
        offset = max(begin, end - count_max)
        while offset < end:
            units = self._reader.queue_units(topic, queue_id, offset, UNITS_AT_ONCE)
            if not units:
                return
            places += [
                (unit.commit_offset, number, queue_id)
                for number, unit in enumerate(units, offset)
                if unit.record_size != PRE_BLANK_SIZE
            ]
            offset += len(units)
            yield
        if len(places) > 2 * count_max:
            places.sort()
            del places[:-count_max]
