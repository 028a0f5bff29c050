"""A table in memory and its file: written as a whole after a change, and those who wait are told.

    changed --interval--> taken --the log's sync--> written --> told

A change is acknowledged when it is on the disk. Unlike RocketMQ, whose answers say nothing about
the disk: a power cut right after "topic created" loses the topic there. Each write is a group
commit: what changes while it is under way waits for the next one, which carries all of it.

`FollowingTable` is for tables that speak of messages, "delivered up to here": consumer offsets,
delay offsets, the checkpoint of timed messages. Such a table is taken an interval after its change,
any other at once. On the disk it must come after the log. Else a power cut could keep an offset and
take the messages below it, and new messages that get their queue offsets would be skipped as old
ones. Unlike RocketMQ, which does not wait for the log.

Invariant: the file of a `FollowingTable` is written only after the log is on the disk up to where
it ended when the table was taken. Whatever the table speaks of lies below that end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from skylarkmq.broker.base.waiting import result_of, synced
from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.common.errors import StoreError
from skylarkmq.common.table_file import TableWriter, Text
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

Done = Callable[[BaseException | None], None]
Journal = Callable[[], Awaitable[None]]
Take = Callable[[], Text | None]


class TableFile:
    """Follows which changes of one table are on the disk, and frees those who wait. Loop thread.

    Attributes:
        journal: returns when the changes so far are in a log that other replicas have; then the
            file is written, and those who wait are freed. None: there is no other replica.
    """

    def __init__(self, writer: TableWriter, path: Path, take: Take) -> None:
        """Make a table without changes.

        Args:
            take: takes the table as it is on the loop, and returns what makes the text of that on
                the tables thread; None when what is on the disk still says how everything is.
        """
        self._writer = writer
        self._path = path
        self._take = take
        # Invariant: durable <= changes and wanted <= changes; they count changes since the start.
        self.changes: int = 0
        self.journal: Journal | None = None
        self._wanted = 0
        self._durable = 0
        self._waiters: list[tuple[int, Done]] = []
        self._writing: asyncio.Task[None] | None = None

    @property
    def pending(self) -> bool:
        """True while something changed that is not on the disk yet."""
        return self._durable < self.changes

    def mark(self) -> None:
        """Note a change that waits for the next write."""
        self.changes += 1

    def changed(self) -> None:
        """Note a change and have it written."""
        self.mark()
        self.write()

    def write(self) -> None:
        """Have every change so far written: now, or right after the write under way."""
        self._wanted = self.changes
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_wanted())

    def persisted(self, done: Done) -> None:
        """Call `done` once all changes so far are on the disk, at once when they are.

        After a write that failed, `done` gets its error; the changes stay pending, and the next
        call or change tries again.
        """
        if self.pending:
            self._waiters.append((self.changes, done))
            self.write()
        else:
            done(None)

    async def durable(self) -> None:
        """Return when all changes so far are on the disk.

        Raises:
            OSError, StoreError: the write failed, of the file or in the journal; the changes stay
                pending, and the next call or change tries again.
        """
        await result_of(lambda done: self.persisted(lambda error: done(None, error)))

    async def flush(self) -> None:
        """Return when everything is on the disk, what changes meanwhile too; errors are logged."""
        with suppress(OSError, StoreError):
            while self.pending:
                await self.durable()

    async def _write_wanted(self) -> None:
        tried = self._durable
        while tried < self._wanted or self._waiters:
            tried = self.changes
            failure: Exception | None = None
            try:
                text = self._take()
                tried = self.changes  # what is brought up to date when it is taken counts too
                if text is not None:
                    if self.journal is not None:
                        await self.journal()
                    await self._write_text(text)
                self._durable = tried
            except Exception as error:
                log.error("%s could not be written: %s", self._path, error)
                failure = error
            served = [done for change, done in self._waiters if change <= tried]
            self._waiters = [item for item in self._waiters if item[0] > tried]
            for done in served:
                done(failure)
        self._writing = None

    async def _write_text(self, text: Text) -> None:
        await result_of(
            lambda done: self._writer.write(self._path, text, lambda error: done(None, error))
        )


class FollowingTable(TableFile):
    """Writes one table at intervals while it changes, each time after the log. Loop thread."""

    def __init__(
        self,
        writer: TableWriter,
        path: Path,
        take: Take,
        store: MessageStore,
        clock: Clock,
        interval_s: float,
    ) -> None:
        """Make a table without changes.

        Args:
            interval_s: how long after a change the table is taken.
        """
        super().__init__(writer, path, take)
        self._store = store
        self._clock = clock
        self._interval_s = interval_s
        self._timer: TimerHandle | None = None

    def changed(self) -> None:
        """Note a change; the file follows within the interval."""
        self.changes += 1
        if self._timer is None and self._writing is None:
            self._plan()

    def write(self) -> None:
        """Have every change so far written, without waiting for the intervals."""
        super().write()
        self._store.sync(_nothing)

    async def stop(self) -> None:
        """Return when everything is on the disk, and write nothing more; a failure is logged.

        Call while the store still syncs.
        """
        await self.flush()
        self._cancel_timer()

    def _plan(self) -> None:
        when_s = self._clock.monotonic() + self._interval_s
        self._timer = self._clock.call_at(when_s, super().write)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _write_wanted(self) -> None:
        self._cancel_timer()
        await super()._write_wanted()
        if self.pending and self._store.failure is None:
            self._plan()

    async def _write_text(self, text: Text) -> None:
        await result_of(synced(self._store, at_once=bool(self._waiters)))
        await super()._write_text(text)


async def durable(*tables: TableFile) -> None:
    """Return when every change made so far to these tables is on the disk.

    Raises:
        RemoteProtocolError: SERVICE_NOT_AVAILABLE; a table could not be written. The change is in
            force in memory and written with the next one.
    """
    for table in tables:
        try:
            await table.durable()
        except Exception as error:
            raise RemoteProtocolError(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the change is in force, but could not be written to the disk: {error}",
            ) from error


def _nothing() -> None:
    """Do nothing: no call waits for this sync alone."""
