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

    @property
    def behind(self) -> int:
        """Bytes of the log that are stored and not sent to the follower."""
        return max(0, self._store.commit_log.stored_offset - self.offset)

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
            links.wait(self)
        elif offset < log.min_offset:
            self._refuse_expired()
        elif is_cold:
            self._is_reading = True
            store.read_part(offset, ROUND_SIZE, self._read)
        else:
            links.plan(self)

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
        self._connection.links.plan(self)  # none: the file has expired, which the next look finds

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
        self._connection.links.bytes_sent += offset - self.offset
        self.offset = offset
        self._connection.write_parts(pieces)

    def _refuse_expired(self) -> None:
        self._connection.refuse(
            "expired",
            f"it wants the log from {self.offset} on, and the oldest file begins at "
            f"{self._store.commit_log.min_offset}: what it lacks has expired. It begins anew with "
            "what is left; to spare it that, keep messages longer (fileReservedTime)",
        )
