"""Writes all rows of a master's tables into the log, now and then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, TypeVar

from skylarkmq.broker.base.waiting import result_of
from skylarkmq.broker.replication.metadata.metadata_changes import MetadataChanges
from skylarkmq.broker.replication.metadata.metadata_queue import MetadataQueue, Snapshot, refusal_of
from skylarkmq.broker.replication.metadata.metadata_record import (
    NO_BASE,
    Change,
    encode_value,
    in_parts,
)
from skylarkmq.broker.replication.metadata.metadata_tables import MetadataTable
from skylarkmq.common.clock import Clock
from skylarkmq.common.worker import Done
from skylarkmq.remoting.waiting import sleep
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.results import MessageInner, PutMessageResult, PutMessageStatus

log = logging.getLogger(__name__)

T = TypeVar("T")

SNAPSHOT_SHARE: Final = 16
"""The log grows by this many times a snapshot's bytes before the next one, but for a reason."""
CHANGES_MAX: Final = 16 << 20
"""Bytes of changes, at least, after which a snapshot makes the next fold short again."""
CHECK_S: Final = 1.0
"""How often a master looks whether it can go on with them, or whether one is due."""


class MetadataSnapshots:
    """The snapshots of a master. Loop thread."""

    def __init__(
        self,
        queue: MetadataQueue,
        store: MessageStore,
        clock: Clock,
        tables: Mapping[str, MetadataTable],
        changes: MetadataChanges,
    ) -> None:
        self._queue = queue
        self._store = store
        self._clock = clock
        self._tables = tables
        self._changes = changes
        self._is_wanted = False  # one, for a reason of its own
        self._writing: asyncio.Task[bool] | None = None

    def stop(self) -> None:
        """Write none any more."""
        self._writing = None  # it ends by itself, in a turn in which this is no master of its term

    def check(self) -> None:
        """Begin one if one is due; each second."""
        if self._writing is None and self._is_due:
            self.begin()

    def may_remove(self, end_offset: int) -> bool:
        """Return whether a master's log up to a place may go; else a snapshot is due."""
        has_newer = end_offset <= self._queue.newest.physical_offset
        self._is_wanted = self._is_wanted or not has_newer
        return has_newer

    @property
    def _is_due(self) -> bool:
        base, physical_offset, size = self._queue.newest
        if base == NO_BASE or self._is_wanted:
            return True
        if self._changes.size > max(CHANGES_MAX, SNAPSHOT_SHARE * size):
            return True
        end = self._store.commit_log.wrote_offset
        in_later_file = end >= self._store.commit_log.next_file_offset(physical_offset)
        return in_later_file and end - physical_offset >= SNAPSHOT_SHARE * size

    def begin(self) -> asyncio.Task[bool]:
        """Write all rows, as they are in this turn of the loop."""
        assert self._queue.term is not None
        self._is_wanted = False
        self._writing = asyncio.get_running_loop().create_task(
            self._write_snapshot(self._queue.term)
        )
        return self._writing

    def _all_rows(self) -> Iterator[Change]:
        """Return all rows of all tables as they are now; each is encoded when it is read."""
        taken = [(table.name, table.taken()) for table in self._tables.values()]
        return (
            Change(name, key, encode_value(value)) for name, rows in taken for key, value in rows
        )

    async def _write_snapshot(self, term: int) -> bool:
        """Write all rows; False when that failed: it is tried again, while this is the master."""
        try:
            is_whole = await self._put_snapshot(term)
        except Exception:
            log.exception("the tables are not written for other replicas now")
            is_whole = False
        if self._queue.term == term:
            self._is_wanted, self._writing = self._is_wanted or not is_whole, None
        return is_whole

    async def _put_snapshot(self, term: int) -> bool:
        begin, size, place = NO_BASE, 0, -1
        if self._queue.term == term:
            self._changes.write()  # so that it tells nothing that a follower does not know yet
        self._changes.size = 0
        # Invariant: the first record is written in the turn in which the rows are taken, so that
        # no change comes between them in the log.
        for number, (rows, is_last) in enumerate(
            _with_last(in_parts(self._all_rows(), self._queue.part_size))
        ):
            if self._queue.term != term:
                return False
            inner = self._queue.inner("snapshot", rows, begin, number, is_last=is_last)
            size += len(inner.body)
            [result] = await result_of(partial(self._put_one, inner))
            end = result.physical_offset + result.record_size
            while result.status is PutMessageStatus.UNCONFIRMED and self._queue.term == term:
                # It is in the log, and followers that are slow have it when they have all before.
                if self._store.confirmed >= end:
                    break
                await sleep(self._clock, CHECK_S)
            if self._queue.term != term:
                return False
            refusal = refusal_of([result])
            if refusal is not None and self._store.confirmed < end:
                log.warning("the tables are not written for other replicas now: %s", refusal)
                return False
            if number == 0:
                begin, place = result.queue_offset, result.physical_offset
        self._queue.newest = Snapshot(begin, place, size)
        log.info("all tables are in the log at offset %d, %d bytes", place, size)
        return True

    def _put_one(self, inner: MessageInner, done: Done[list[PutMessageResult]]) -> None:
        self._queue.put((inner,), lambda results: done(results, None))


def _with_last(items: Iterator[T]) -> Iterator[tuple[T, bool]]:
    """Yield items with whether each is the last; there is at least one."""
    item = next(items)
    for following in items:
        yield item, False
        item = following
    yield item, True
