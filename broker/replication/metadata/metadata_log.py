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

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import msgspec

from skylarkmq.broker.base.waiting import result_of
from skylarkmq.broker.replication.metadata.metadata_record import (
    NO_BASE,
    REMOVED,
    Change,
    MetadataError,
    MetadataFold,
    MetadataRecord,
    begin_of,
    decode_metadata,
    encode_metadata,
    encode_value,
    in_parts,
)
from skylarkmq.broker.replication.metadata.metadata_tables import (
    DeletingRows,
    MetadataTable,
    TimerRows,
)
from skylarkmq.common.clock import Clock
from skylarkmq.common.errors import StoreError
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.common.worker import Done
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import SYS_METADATA_TOPIC
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.record import decode_message
from skylarkmq.remoting.waiting import sleep
from skylarkmq.store.message_store import MessageStore, StoreState
from skylarkmq.store.message_writer import PutDone
from skylarkmq.store.queue.consume_queue import PRE_BLANK_SIZE
from skylarkmq.store.results import MessageInner, PutMessageResult, PutMessageStatus

log = logging.getLogger(__name__)

T = TypeVar("T")

QUEUE_ID: Final = 0
PART_SIZE: Final = 256 << 10
"""Bytes of rows in a record; they are encoded in one turn of the loop, 3 ms."""
SNAPSHOT_SHARE: Final = 16
"""The log grows by this many times a snapshot's bytes before the next one, but for a reason."""
CHANGES_MAX: Final = 16 << 20
"""Bytes of changes, at least, after which a snapshot makes the next fold short again."""
CHECK_S: Final = 1.0
READ_COUNT: Final = 256


class MetadataTables(NamedTuple):
    """The tables that go over."""

    topics: MetadataTable
    groups: MetadataTable
    offsets: MetadataTable
    delay: MetadataTable
    timer: TimerRows
    config: MetadataTable
    deleting: DeletingRows


class Folded(NamedTuple):
    """What a log says about the tables.

    Attributes:
        is_whole: the tables are what the log says. Else it holds no whole snapshot, which is so
            before the first term alone, and they are what their files say, with its changes.
        term: of the last record, 0 without one.
        cut_to: where to cut this log before it follows another one; None: nowhere. A crash came
            between a record and the removal of the queues that it tells of.
    """

    is_whole: bool
    term: int
    cut_to: int | None


class _Snapshot(NamedTuple):
    """The newest whole snapshot."""

    base: int  # queue offset of its first record
    physical_offset: int  # of that
    size: int  # bytes of all of its records' bodies


NO_SNAPSHOT: Final = _Snapshot(NO_BASE, -1, 0)


class MetadataLog:
    """The tables of a broker whose log other replicas have. Loop thread."""

    def __init__(self, store: MessageStore, clock: Clock, tables: MetadataTables) -> None:
        self._store = store
        self._clock = clock
        self._tables: dict[str, MetadataTable] = {table.name: table for table in tables}
        self._deleting = tables.deleting
        self._timer_rows = tables.timer
        self._at_intervals = {tables.offsets.name, tables.delay.name, tables.timer.name}
        file_size = store.config.mapped_file_size_commit_log
        self._part_size = min(PART_SIZE, file_size // 4)
        self._snapshot = NO_SNAPSHOT
        store.cleaning.keepers.append(self._may_remove)
        # As a follower
        self._follows = False
        self._fold = MetadataFold()
        self._first: tuple[int, int] = (NO_BASE, -1)  # (queue, physical offset): a first part's
        self._master_begin = 0  # of its log
        self.failure: MetadataError | None = None
        self._unfinished: dict[str, int] = {}  # topic -> place of the record of its removal
        # As a master
        self._term: int | None = None
        self._host = b""
        # Rows that no record has yet, or one that was refused, by table and key. Those of no table
        # are given; others are as they are when they are written.
        self._owed: dict[tuple[str, str], Change | None] = {}
        self._planned = False  # the next turn of the loop writes
        self._begun = 0  # records of changes that were written
        self._ended = 0  # of those, with an outcome
        self._refusal: StoreError | None = None  # the outcome of the last of those
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._changes_size = 0  # since the last snapshot
        self._told_begin = -1  # of this log, as the last record says
        self._is_wanted = False  # a snapshot, for a reason of its own
        self._writing: asyncio.Task[bool] | None = None
        self._timer = IntervalTimer(clock, CHECK_S, self._check)

    @property
    def is_master(self) -> bool:
        """True between `start_as_master` and `stop_as_master`."""
        return self._term is not None

    @property
    def is_whole(self) -> bool:
        """True when the tables are all that the log says."""
        return self._snapshot.base != NO_BASE

    # Reading the log

    def fold(self) -> Folded:
        """Have the tables as the log says, up to its end. Blocks; not while this is the master.

        Call after the store and the tables are loaded, and whenever the log was cut.

        Raises:
            MetadataError: a record cannot be read here.
        """
        try:
            return self._folded()
        except (msgspec.MsgspecError, ValueError) as error:
            raise MetadataError(f"the tables in the log cannot be read: {error}") from error

    def _folded(self) -> Folded:
        self._fold, self._snapshot, self._master_begin = MetadataFold(), NO_SNAPSHOT, 0
        self.failure = None
        low = self._store.min_offset(SYS_METADATA_TOPIC, QUEUE_ID)
        high = self._store.max_offset(SYS_METADATA_TOPIC, QUEUE_ID)
        begin = low
        for message in self._messages(max(low, high - 1), high):
            begin = max(low, begin_of(decode_metadata(message.body), message.queue_offset))
        ended: dict[str, tuple[int, int]] = {}  # topic -> (end of its queues, place of the record)
        for message in self._messages(begin, high):
            record = decode_metadata(message.body)
            self._note(message, record)
            for row in record.rows:
                if row.table == REMOVED:
                    end = msgspec.json.decode(row.value, type=int)
                    ended[row.key] = end, message.physical_offset
        tables, is_whole = self._fold.tables, self._fold.is_whole
        self._fold.tables = {}
        for name, table in self._tables.items():
            if is_whole:
                table.replace(tables.get(name, {}))
            else:
                for key, value in tables.get(name, {}).items():
                    table.put(key, value)
        self._unfinished = {
            topic: place for topic, (end, place) in ended.items() if self._has_below(topic, end)
        }
        cut_to = min(self._unfinished.values(), default=None)
        return Folded(is_whole, self._fold.term, cut_to)

    def _has_below(self, topic: str, end_offset: int) -> bool:
        """Return whether a topic has queues that begin below a place of the log."""
        store = self._store
        for name, queue_id in store.queues.queues:
            if name == topic:
                low = store.min_offset(topic, queue_id)
                for unit in store.queue_units(topic, queue_id, low, 1):
                    if unit.commit_offset < end_offset and unit.record_size != PRE_BLANK_SIZE:
                        return True
        return False

    def _messages(self, begin: int, end: int) -> Iterator[MessageExt]:
        while begin < end:
            units = self._store.queue_units(
                SYS_METADATA_TOPIC, QUEUE_ID, begin, min(READ_COUNT, end - begin)
            )
            for unit in units:
                message = self._store.look_message(unit.commit_offset)
                if message is None:
                    raise MetadataError(
                        f"the record at offset {unit.commit_offset} of the log cannot be read; "
                        "remove this replica's store and let it follow anew"
                    )
                yield message
            begin += max(1, len(units))

    def _note(self, message: MessageExt, record: MetadataRecord) -> bool:
        """Fold a record; return whether the tables are whole for the first time."""
        self._master_begin = max(self._master_begin, record.log_begin)
        was_whole = self.is_whole
        size = len(message.body)
        if record.kind == "snapshot" and record.part == 0:
            self._first = message.queue_offset, message.physical_offset
        if self._fold.take(message.queue_offset, record):
            base = self._fold.base
            self._snapshot = _Snapshot(base, self._first[1], size * (record.part + 1))
            return not was_whole
        return False

    # Following

    def follow(self) -> None:
        """Apply what comes with the master's log from now on; the tables are folded."""
        self._follows = self._store.follows = True
        self._timer_rows.follow(True)
        self._store.received.watch(SYS_METADATA_TOPIC, self._received)

    def finish_removals(self) -> None:
        """Remove the queues of deleted topics that a crash has kept here; the store has started.

        Raises:
            StoreError: one of them was made again, and its queues begin with the old messages.
        """
        for topic, place in self._unfinished.items():
            if self._tables["topics"].value(topic) is not None:
                raise StoreError(
                    f"the queues of topic {topic} begin with messages from before it was deleted "
                    f"and made again, at offset {place} of the log: remove this replica's store, "
                    "and let it follow anew"
                )
        for topic in self._unfinished:
            self._deleting.removed(topic)
        self._unfinished = {}

    def _received(self, data: bytes) -> None:
        if self.failure is not None:
            return
        try:
            message = decode_message(data)
            self.apply(message)
        except (MetadataError, RemoteProtocolError, msgspec.MsgspecError, ValueError) as error:
            self.failure = MetadataError(f"the master's tables cannot be followed: {error}")
            log.error("%s; this replica cannot become the master", self.failure)

    def apply(self, message: MessageExt) -> None:
        """Have what a record of the master says. Records come in their order, each once or again.

        Raises:
            MetadataError, MsgspecError, ValueError: it cannot be read here.
        """
        record = decode_metadata(message.body)
        if record.kind == "change":
            for row in record.rows:
                self._apply_row(row)
        is_new = self._note(message, record)
        if is_new:
            for name, table in self._tables.items():
                table.replace(self._fold.tables.get(name, {}))
        if self.is_whole:
            self._fold.tables = {}  # the tables themselves go on

    def _apply_row(self, row: Change) -> None:
        if row.table == REMOVED:
            self._deleting.removed(row.key)
            return
        table = self._tables.get(row.table)
        if table is None:
            raise MetadataError(f"there is no table {row.table} here: update this broker")
        if row.is_gone:
            table.remove(row.key)
        else:
            table.put(row.key, row.value)

    # Leading

    async def start_as_master(self, term: int, store_host: bytes) -> None:
        """Write the tables into the log from now on. The log is this term's, and all is applied.

        Returns when the log holds a whole snapshot on every replica that counts, which is at once
        but before the first term. Then the services of a master may start, and clients be served.

        Args:
            store_host: packed address, for the records.

        Raises:
            StoreError: it could not be written, what was received could not be read, or a removal
                of queues was cut short by a crash and cannot be made up for here.
        """
        if self.failure is not None:
            raise self.failure
        for topic, place in self._unfinished.items():
            if self._tables["topics"].value(topic) is not None:
                raise StoreError(
                    f"the queues of topic {topic} begin with messages from before it was deleted "
                    f"and made again: let another replica lead; cut this log back to {place}, and "
                    "let it follow"
                )
        self._follows = self._store.follows = False
        self._store.received.watch(None, None)
        if self.is_whole:
            self._timer_rows.take_over()
        self._timer_rows.follow(False)
        self._term, self._host = term, store_host
        self._ended, self._refusal = self._begun, None  # of an earlier term: they do not count
        self._told_begin = -1
        self._owed.clear()
        for table in self._tables.values():
            table.connect(self._wake, partial(self.written, table.name))
        self._deleting.lead(self)
        if self.is_whole:
            self._begin_snapshot()
        elif not await self._begin_snapshot():
            raise StoreError("the tables could not be written for other replicas")
        if self._term != term:
            raise StoreError("this broker is no longer the master")
        self._timer.start()
        self._deleting.finish(self._unfinished)
        self._unfinished = {}

    def stop_as_master(self) -> None:
        """Write nothing more. Who waits for a change is told that it may not survive."""
        self._term = None
        self._timer.stop()
        for table in self._tables.values():
            table.connect(_nothing, None)
        self._deleting.lead(None)
        self._writing = None  # it ends by itself, in a turn in which this is no master of its term
        waiters, self._waiters = self._waiters, []
        for _, waiter in waiters:
            if not waiter.done():
                waiter.set_exception(StoreError("this broker is no longer the master"))

    async def written(self, name: str | None = None) -> None:
        """Return when the changes so far are in the log as durably as messages are.

        Args:
            name: the table whose changes are waited for; None: all. Tables that are written at
                intervals are left out unless they are asked for.

        Raises:
            StoreError: they could not be written; they go with the next record.
        """
        if self._term is None:
            return
        number = self._write_changes(name=name)
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
        if self._term is not None:
            self._deleting.begun(topic)  # no longer
            self._owed[REMOVED, topic] = Change(REMOVED, topic, encode_value(end_offset))
            self._write_now()

    def _wake(self) -> None:
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self._write_planned)

    def _write_planned(self) -> None:
        self._planned = False
        if self._term is not None:
            self._write_now()

    def _write_now(self, *, even_none: bool = False) -> None:
        """Write what was touched; what fails is owed, and goes with the next record."""
        try:
            self._write_changes(name="", even_none=even_none)
        except StoreError as error:
            log.error("%s; trying again", error, exc_info=error)

    def _write_changes(self, *, name: str | None = None, even_none: bool = False) -> int:
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
        assert self._term is not None
        records = [
            MetadataRecord(
                kind="change",
                term=self._term,
                base=self._snapshot.base,
                log_begin=log_begin,
                rows=part,
            )
            for part in in_parts(rows, self._part_size)
        ]
        inners = [self._inner(record) for record in records]
        self._changes_size += sum(len(inner.body) for inner in inners)
        self._told_begin = log_begin
        self._owed.clear()
        self._begun += 1
        ended = partial(self._changes_ended, self._term, self._begun, owed)
        try:
            self._put(inners, lambda results: ended(_refusal_of(results)))
        except Exception as error:
            ended(StoreError(repr(error)))
            raise
        return self._begun

    def _row(self, name: str, key: str) -> Change:
        value = self._tables[name].value(key)
        return Change(name, key) if value is None else Change(name, key, encode_value(value))

    def _put(self, inners: Sequence[MessageInner], done: PutDone) -> None:
        """Store records, on a disk too, that is too full for messages: a deletion makes room."""
        if self._store.state is StoreState.RUNNING:
            self._store.writer.put_messages(inners, done)
        else:
            self._store.put_messages(inners, done)  # which refuses them

    def _changes_ended(
        self,
        term: int,
        number: int,
        owed: Mapping[tuple[str, str], Change | None],
        refusal: StoreError | None,
    ) -> None:
        if term != self._term:
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

    def _inner(self, record: MetadataRecord) -> MessageInner:
        return MessageInner(
            topic=SYS_METADATA_TOPIC,
            queue_id=QUEUE_ID,
            body=encode_metadata(record),
            properties=b"",
            born_host=self._host,
            store_host=self._host,
            born_timestamp=self._clock.now_ms(),
            is_copy=True,  # as large as it is, whatever maxMessageSize says
        )

    # Snapshots

    def _check(self) -> None:
        """Do what is due, each second."""
        is_behind = self._owed or self._told_begin != self._store.commit_log.min_offset
        if is_behind and self._ended == self._begun:
            self._write_now(even_none=True)
        if self._writing is None and self._is_due:
            self._begin_snapshot()

    @property
    def _is_due(self) -> bool:
        base, physical_offset, size = self._snapshot
        if base == NO_BASE or self._is_wanted:
            return True
        if self._changes_size > max(CHANGES_MAX, SNAPSHOT_SHARE * size):
            return True
        end = self._store.commit_log.wrote_offset
        in_later_file = end >= self._store.commit_log.next_file_offset(physical_offset)
        return in_later_file and end - physical_offset >= SNAPSHOT_SHARE * size

    def _may_remove(self, end_offset: int) -> bool:
        """Return whether the log up to a place may go."""
        if not self._follows and self._term is None:
            return True
        has_newer = end_offset <= self._snapshot.physical_offset
        if self._follows:
            return has_newer and end_offset <= self._master_begin
        self._is_wanted = self._is_wanted or not has_newer
        return has_newer

    def _begin_snapshot(self) -> asyncio.Task[bool]:
        """Write all rows, as they are in this turn of the loop."""
        assert self._term is not None
        self._is_wanted = False
        self._writing = asyncio.get_running_loop().create_task(self._write_snapshot(self._term))
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
        if self._term == term:
            self._is_wanted, self._writing = self._is_wanted or not is_whole, None
        return is_whole

    async def _put_snapshot(self, term: int) -> bool:
        begin, size, place = NO_BASE, 0, -1
        if self._term == term:
            self._write_changes()  # so that it tells nothing that a follower does not know yet
        self._changes_size = 0
        # Invariant: the first record is written in the turn in which the rows are taken, so that
        # no change comes between them in the log.
        for number, (rows, is_last) in enumerate(
            _with_last(in_parts(self._all_rows(), self._part_size))
        ):
            if self._term != term:
                return False
            record = MetadataRecord(
                kind="snapshot",
                term=term,
                base=self._snapshot.base,
                log_begin=self._store.commit_log.min_offset,
                rows=rows,
                begin=begin,
                part=number,
                is_last=is_last,
            )
            inner = self._inner(record)
            size += len(inner.body)
            [result] = await result_of(partial(self._put_one, inner))
            end = result.physical_offset + result.record_size
            while result.status is PutMessageStatus.UNCONFIRMED and self._term == term:
                # It is in the log, and followers that are slow have it when they have all before.
                if self._store.confirmed >= end:
                    break
                await sleep(self._clock, CHECK_S)
            if self._term != term:
                return False
            refusal = _refusal_of([result])
            if refusal is not None and self._store.confirmed < end:
                log.warning("the tables are not written for other replicas now: %s", refusal)
                return False
            if number == 0:
                begin, place = result.queue_offset, result.physical_offset
        self._snapshot = _Snapshot(begin, place, size)
        log.info("all tables are in the log at offset %d, %d bytes", place, size)
        return True

    def _put_one(self, inner: MessageInner, done: Done[list[PutMessageResult]]) -> None:
        self._put((inner,), lambda results: done(results, None))


def _refusal_of(results: Sequence[PutMessageResult]) -> StoreError | None:
    """Return why records are not as durable as their answers would say, None when they are."""
    for result in results:
        if result.status is not PutMessageStatus.PUT_OK:
            if result.status is PutMessageStatus.UNCONFIRMED:
                return StoreError("not all replicas in sync have confirmed it in time")
            return StoreError(f"{result.status.value} {result.why}".rstrip())
    return None


def _with_last(items: Iterator[T]) -> Iterator[tuple[T, bool]]:
    """Yield items with whether each is the last; there is at least one."""
    item = next(items)
    for following in items:
        yield item, False
        item = following
    yield item, True


def _nothing() -> None:
    """Do nothing: no one follows."""
