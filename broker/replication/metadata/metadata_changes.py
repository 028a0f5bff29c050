"""Writes a master's changes of tables into the log, and tells when they are there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from functools import partial

from skylarkmq.broker.replication.metadata.metadata_queue import MetadataQueue, refusal_of
from skylarkmq.broker.replication.metadata.metadata_record import (
    REMOVED,
    Change,
    encode_value,
    in_parts,
)
from skylarkmq.broker.replication.metadata.metadata_tables import DeletingRows, MetadataTable
from skylarkmq.common.errors import StoreError
from skylarkmq.store.message_store import MessageStore

log = logging.getLogger(__name__)


class MetadataChanges:
    """The changes of a master; a `DeletionJournal` too. Loop thread.

    Attributes:
        size: bytes of changes since the last snapshot.
    """

    def __init__(
        self,
        queue: MetadataQueue,
        store: MessageStore,
        tables: Mapping[str, MetadataTable],
        deleting: DeletingRows,
        at_intervals: Collection[str],
    ) -> None:
        """Make it; it writes between `begin` and `stop`.

        Args:
            at_intervals: the tables that are written at intervals.
        """
        self.size = 0
        self._queue = queue
        self._store = store
        self._tables = tables
        self._deleting = deleting
        self._at_intervals = frozenset(at_intervals)
        # Rows that no record has yet, or one that was refused, by table and key. Those of no table
        # are given; others are as they are when they are written.
        self._owed: dict[tuple[str, str], Change | None] = {}
        self._planned = False  # the next turn of the loop writes
        self._begun = 0  # records of changes that were written
        self._ended = 0  # of those, with an outcome
        self._refusal: StoreError | None = None  # the outcome of the last of those
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._told_begin = -1  # of this log, as the last record says

    def begin(self) -> None:
        """Write changes from now on: a term begins."""
        self._ended, self._refusal = self._begun, None  # of an earlier term: they do not count
        self._told_begin = -1
        self._owed.clear()
        for table in self._tables.values():
            table.connect(self._wake, partial(self.written, table.name))
        self._deleting.lead(self)

    def stop(self) -> None:
        """Write nothing more. Who waits for a change is told that it may not survive."""
        for table in self._tables.values():
            table.connect(_nothing, None)
        self._deleting.lead(None)
        waiters, self._waiters = self._waiters, []
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(StoreError("this broker is no longer the master"))

    def check(self) -> None:
        """Write what is owed, and where the log begins; each second."""
        is_behind = self._owed or self._told_begin != self._store.commit_log.min_offset
        if is_behind and self._ended == self._begun:
            self._write_now(even_none=True)

    async def written(self, name: str | None = None) -> None:
        """Return when the changes so far are in the log as durably as messages are.

        Args:
            name: the table whose changes are waited for; None: all. Tables that are written at
                intervals are left out unless they are asked for.

        Raises:
            StoreError: they could not be written; they go with the next record.
        """
        if self._queue.term is None:
            return
        number = self.write(name=name)
        if self._ended >= number:
            if self._refusal is not None and self._owed:
                raise self._refusal
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append((number, waiter))
        await waiter

    async def begun(self, topic: str) -> None:
        """See `DeletionJournal`."""
        self._deleting.begun(topic)
        await self.written()

    def removed(self, topic: str, end_offset: int) -> None:
        """See `DeletionJournal`."""
        if self._queue.term is not None:
            self._deleting.begun(topic)  # no longer
            self._owed[REMOVED, topic] = Change(REMOVED, topic, encode_value(end_offset))
            self._write_now()

    def _wake(self) -> None:
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._write_planned)

    def _write_planned(self) -> None:
        self._planned = False
        if self._queue.term is not None:
            self._write_now()

    def _write_now(self, *, even_none: bool = False) -> None:
        """Write what was touched; what fails is owed, and goes with the next record."""
        try:
            self.write(name="", even_none=even_none)
        except StoreError as error:
            log.error("%s; trying again", error, exc_info=error)

    def write(self, *, name: str | None = None, even_none: bool = False) -> int:
        """Write what was touched; return the number of the last record of changes.

        Args:
            name: as for `written`; empty: no table in particular.

        Raises:
            StoreError: they could not be written; they are owed.
        """
        try:
            return self._put_changes(name, even_none)
        except Exception as error:
            raise StoreError(f"the tables' changes are not in the log: {error!r}") from error

    def _put_changes(self, name: str | None, even_none: bool) -> int:
        left_out = self._at_intervals - {name} if name is not None else set[str]()
        for table in self._tables.values():
            if table.name not in left_out:
                for key in table.touched():
                    self._owed.setdefault((table.name, key))
        owed = self._owed.copy()
        rows = [self._row(*key) if row is None else row for key, row in owed.items()]
        if not rows and not even_none:
            return self._begun
        log_begin = self._store.commit_log.min_offset
        assert self._queue.term is not None
        inners = [
            self._queue.inner("change", part) for part in in_parts(rows, self._queue.part_size)
        ]
        self.size += sum(len(inner.body) for inner in inners)
        self._told_begin = log_begin
        self._owed.clear()
        self._begun += 1
        ended = partial(self._changes_ended, self._queue.term, self._begun, owed)
        try:
            self._queue.put(inners, lambda results: ended(refusal_of(results)))
        except Exception as error:
            ended(StoreError(repr(error)))
            raise
        return self._begun

    def _row(self, name: str, key: str) -> Change:
        value = self._tables[name].value(key)
        return Change(name, key) if value is None else Change(name, key, encode_value(value))

    def _changes_ended(
        self,
        term: int,
        number: int,
        owed: Mapping[tuple[str, str], Change | None],
        refusal: StoreError | None,
    ) -> None:
        if term != self._queue.term:
            return
        self._ended, self._refusal = number, refusal
        if refusal is not None:
            self._owed = {**owed, **self._owed}
        served = [waiter for upto, waiter in self._waiters if upto <= number]
        self._waiters = [item for item in self._waiters if item[0] > number]
        for waiter in served:
            if waiter.done():
                continue
            if self._refusal is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(self._refusal)


def _nothing() -> None:
    """Do nothing: no one follows."""
