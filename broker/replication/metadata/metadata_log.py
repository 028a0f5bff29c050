"""Writes a master's tables into its log, and brings them from there into those of a follower.

    master     row changes -> one record for each turn of the loop -> in sync -> file -> answered
    follower   record received -> rows changed -> file
    start, cut whole snapshot -> changes after it -> the tables are these rows

A change is answered when its record is as durable as any message: on every replica that counts
(`TableFile.journal`). What is written at intervals (offsets, delays, timers) is in the log before
its file is written. A record that was refused is owed: its rows go with the next one.

All rows are written again, as a snapshot, when a term begins, when the log has come into a later
file and has grown SNAPSHOT_SHARE times as much as the last one took, after CHANGES_MAX bytes of
changes, and when the file with the newest snapshot is to go. Until a newer one is whole that file
stays: the log always holds a whole snapshot and all that came after it. Rows are encoded as many
as fit into a record for each turn of the loop.

A follower removes log files no sooner than its master: messages may wait there for their time.

What calls what, under a controller; a broker without one calls nothing here, and nothing is
written:

    start                load the tables; fold; then follow, or start_as_master
    the log was cut      fold
    elected              start_as_master, then start the services that a master runs
    hands over           stop those services, await written, then the successor gets the rest of
                         the log: it repeats nothing; stop_as_master, fold, follow
    deposed              stop_as_master, stop those services; cut, fold, follow
"""

from __future__ import annotations

from typing import NamedTuple

from skylarkmq.broker.replication.metadata.metadata_changes import MetadataChanges
from skylarkmq.broker.replication.metadata.metadata_follower import MetadataFollower
from skylarkmq.broker.replication.metadata.metadata_queue import MetadataQueue
from skylarkmq.broker.replication.metadata.metadata_record import MetadataError
from skylarkmq.broker.replication.metadata.metadata_snapshots import CHECK_S, MetadataSnapshots
from skylarkmq.broker.replication.metadata.metadata_tables import (
    DeletingRows,
    MetadataTable,
    TimerRows,
)
from skylarkmq.common.clock import Clock
from skylarkmq.common.errors import StoreError
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.store.message_store import MessageStore


class MetadataTables(NamedTuple):
    """The tables that go over."""

    topics: MetadataTable
    groups: MetadataTable
    offsets: MetadataTable
    delay: MetadataTable
    timer: TimerRows
    config: MetadataTable
    deleting: DeletingRows


class MetadataLog:
    """The tables of a broker whose log other replicas have, as follower and as master. Loop thread.

    `MetadataFollower` reads the log; `MetadataChanges` and `MetadataSnapshots` write it. `fold`,
    `finish_removals` and `written` are theirs.
    """

    def __init__(self, store: MessageStore, clock: Clock, tables: MetadataTables) -> None:
        by_name: dict[str, MetadataTable] = {table.name: table for table in tables}
        at_intervals = (tables.offsets.name, tables.delay.name, tables.timer.name)
        self._deleting = tables.deleting
        self._timer_rows = tables.timer
        queue = self._queue = MetadataQueue(store, clock)
        self._follower = MetadataFollower(queue, store, by_name, tables.deleting)
        self._changes = MetadataChanges(queue, store, by_name, tables.deleting, at_intervals)
        self._snapshots = MetadataSnapshots(queue, store, clock, by_name, self._changes)
        self._timer = IntervalTimer(clock, CHECK_S, self._check)
        store.cleaning.keepers.append(self._may_remove)
        self.fold = self._follower.fold
        self.finish_removals = self._follower.finish_removals
        self.written = self._changes.written

    @property
    def is_whole(self) -> bool:
        """True when the tables are all that the log says."""
        return self._queue.is_whole

    @property
    def failure(self) -> MetadataError | None:
        """Why the master's tables cannot be followed; None: they can."""
        return self._follower.failure

    def follow(self) -> None:
        """Apply what comes with the master's log from now on; the tables are folded."""
        self._follower.follow()
        self._timer_rows.follow(True)

    async def start_as_master(self, term: int, store_host: bytes) -> None:
        """Write the tables into the log from now on. The log is this term's, and all is applied.

        Returns at once where the tables are all that the log says; else, before the first term,
        when every replica that counts has a whole snapshot. Then the services of a master may
        start, and clients be served.

        Args:
            store_host: packed address, for the records.

        Raises:
            StoreError: it could not be written, what was received could not be read, or a removal
                of queues was cut short by a crash and cannot be made up for here.
        """
        if self.failure is not None:
            raise self.failure
        self._follower.check_removals(
            ": let another replica lead; cut this log back to {place}, and let it follow"
        )
        self._follower.stop()
        if self.is_whole:
            self._timer_rows.take_over()
        self._timer_rows.follow(False)
        self._queue.term, self._queue.host = term, store_host
        self._changes.begin()
        writing = self._snapshots.begin()
        if not self.is_whole and not await writing:
            raise StoreError("the tables could not be written for other replicas")
        if self._queue.term != term:
            raise StoreError("this broker is no longer the master")
        self._timer.start()
        self._deleting.finish(self._follower.unfinished)
        self._follower.unfinished = {}

    def stop_as_master(self) -> None:
        """Write nothing more. Who waits for a change is told that it may not survive."""
        self._queue.term = None
        self._timer.stop()
        self._changes.stop()
        self._snapshots.stop()

    def _check(self) -> None:
        """Do what is due, each second."""
        self._changes.check()
        self._snapshots.check()

    def _may_remove(self, end_offset: int) -> bool:
        """Return whether the log up to a place may go."""
        if self._follower.follows:
            return self._follower.may_remove(end_offset)
        return self._queue.term is None or self._snapshots.may_remove(end_offset)
