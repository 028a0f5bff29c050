"""Feeds one follower: the log goes out from a place on, as parts.

A part has bytes of one file and of one term, and may end within a record. Bytes that are in memory
go out as views of the log's files; older ones are read by a worker. A follower that reads slowly
has at most BUFFER_SIZE and one round waiting for it. A file that expires meanwhile stays readable
until it is sent.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from skylarkmq.broker.replication.failover.replica_events import OpenStream, Part
from skylarkmq.broker.replication.failover.replica_protocol import encode_part_head
from skylarkmq.broker.replication.failover.terms import Lineage
from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.store.message_store import MessageStore

if TYPE_CHECKING:
    from skylarkmq.broker.replication.failover.replica_connection import FollowerConnection

ROUND_SIZE: Final = 512 << 10
"""Bytes of the log that a follower gets in one turn of the loop; others have theirs between."""


class LogFeed:
    """The stream of one session. Loop thread.

    Attributes:
        offset: the place of the next byte that the follower gets.
        ended: nothing is sent any more.
    """

    __slots__ = (
        "_connection",
        "_is_reading",
        "_session",
        "_starts",
        "_store",
        "_term",
        "ended",
        "offset",
    )

    def __init__(
        self,
        connection: FollowerConnection,
        store: MessageStore,
        stream: OpenStream,
        lineage: Lineage,
    ) -> None:
        """Prepare; `go_on` sends.

        Args:
            lineage: of the store's log.
        """
        self._connection = connection
        self._store = store
        self._term = stream.term
        self._session = stream.session
        self._is_reading = False  # a worker reads old bytes for it
        # Of later terms, the next one last.
        self._starts = sorted({row.start for row in lineage}, reverse=True)
        self.offset = stream.offset
        self.ended = False

    def go_on(self) -> None:
        """Write what is stored and not sent, as much as a turn has room for."""
        connection = self._connection
        if self.ended or self._is_reading or connection.is_paused:
            return
        links, store = connection.links, self._store
        log = store.commit_log
        offset, stored = self.offset, log.stored_offset
        end = min(offset + ROUND_SIZE, stored)
        pieces: list[bytes | memoryview] = []
        is_cold = False
        while offset < end and not is_cold:
            is_cold = not store.is_in_memory(offset)
            data = memoryview(b"") if is_cold else log.part(offset, self._room(offset, end))
            if not data:
                break
            pieces += (self._head(offset, data), data)
            offset += len(data)
        if pieces:
            self._write(pieces, offset)
        if offset >= stored:
            links.turns.wait(self)
        elif offset < log.min_offset:
            self._refuse_expired()
        elif is_cold:
            self._is_reading = True
            store.read_part(offset, ROUND_SIZE, self._read)
        else:
            links.turns.plan(self)

    def _read(self, data: bytes | None, error: BaseException | None) -> None:
        """Send what a worker has read from the disk."""
        self._is_reading = False
        if self.ended:
            return
        if data is None:
            self._connection.refuse("disk", f"the log cannot be read at {self.offset}: {error}")
            return
        view = memoryview(data)
        pieces: list[bytes | memoryview] = []
        offset, end = self.offset, self.offset + len(data)
        while offset < end:
            begin = offset - self.offset
            part = view[begin : begin + self._room(offset, end)]
            pieces += (self._head(offset, part), part)
            offset += len(part)
        if pieces:
            self._write(pieces, end)
        # Without pieces the file has expired, which the next look finds.
        self._connection.links.turns.plan(self)

    def _room(self, offset: int, end: int) -> int:
        """How many bytes a part from `offset` on may have, below `end`."""
        starts = self._starts
        while starts and starts[-1] <= offset:
            starts.pop()
        term_end = starts[-1] if starts else math.inf
        return int(min(self._connection.links.part_size, end - offset, term_end - offset))

    def _head(self, offset: int, data: memoryview) -> bytes:
        confirmed = self._connection.links.confirmed
        return encode_part_head(Part(self._term, self._session, offset, data, confirmed))

    def _write(self, pieces: list[bytes | memoryview], offset: int) -> None:
        self.offset = offset
        self._connection.write_parts(pieces)

    def _refuse_expired(self) -> None:
        self._connection.refuse(
            "expired",
            f"it wants the log from {self.offset} on, and the oldest file begins at "
            f"{self._store.commit_log.min_offset}: what it lacks has expired. It begins anew with "
            "what is left; to spare it that, keep messages longer (fileReservedTime)",
        )


class FeedTurns:
    """When each stream goes on: in the next turn of the loop, or when more is stored. Loop thread.

    So no follower holds up the others.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: set[LogFeed] = set()  # their followers have everything
        self._planned: set[LogFeed] = set()  # they go on in the next turn
        self._turn: TimerHandle | None = None

    def stored(self) -> None:
        """Feed those that have everything: more of the log is stored."""
        waiting, self._waiting = self._waiting, set()
        for feed in waiting:
            feed.go_on()

    def wait(self, feed: LogFeed) -> None:
        """Let a stream go on when more is stored: its follower has everything."""
        self._waiting.add(feed)

    def plan(self, feed: LogFeed) -> None:
        """Let a stream go on in the next turn of the loop: there may be more for it."""
        self._waiting.discard(feed)
        self._planned.add(feed)
        if self._turn is None:
            self._turn = self._clock.call_at(self._clock.monotonic(), self._feed)

    def forget(self, feed: LogFeed) -> None:
        """Let a stream rest, which has ended."""
        self._waiting.discard(feed)
        self._planned.discard(feed)
        if self._turn is not None and not self._planned:
            self._turn.cancel()
            self._turn = None

    def _feed(self) -> None:
        self._turn = None
        planned, self._planned = self._planned, set()
        for feed in planned:
            feed.go_on()
