"""Brings the tables that the log holds into those of a follower, and of a broker that starts."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from skylarkmq.broker.replication.metadata.metadata_queue import (
    NO_SNAPSHOT,
    MetadataQueue,
    Snapshot,
)
from skylarkmq.broker.replication.metadata.metadata_record import (
    NO_BASE,
    REMOVED,
    Change,
    MetadataError,
    MetadataFold,
    MetadataRecord,
    begin_of,
    decode_metadata,
)
from skylarkmq.broker.replication.metadata.metadata_tables import DeletingRows, MetadataTable
from skylarkmq.common.errors import StoreError
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import SYS_METADATA_TOPIC
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.record import decode_message
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.queue.consume_queue import PRE_BLANK_SIZE

log = logging.getLogger(__name__)


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


class MetadataFollower:
    """Has the tables as the log says. Loop thread.

    Attributes:
        follows: what comes with the master's log is applied.
        failure: why that cannot go on; None: it does.
        unfinished: topics whose queues a crash has kept, with the places of the records that tell
            of their removal.
    """

    def __init__(
        self,
        queue: MetadataQueue,
        store: MessageStore,
        tables: Mapping[str, MetadataTable],
        deleting: DeletingRows,
    ) -> None:
        self.follows = False
        self.failure: MetadataError | None = None
        self.unfinished: dict[str, int] = {}
        self._queue = queue
        self._store = store
        self._tables = tables
        self._deleting = deleting
        self._fold = MetadataFold()
        self._first: tuple[int, int] = (NO_BASE, -1)  # (queue, physical offset): a first part's
        self._master_begin = 0  # of its log

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
        self._fold, self._queue.newest, self._master_begin = MetadataFold(), NO_SNAPSHOT, 0
        self.failure = None
        low, high = self._queue.offsets
        begin = low
        for message in self._queue.messages(max(low, high - 1), high):
            begin = max(low, begin_of(decode_metadata(message.body), message.queue_offset))
        ended: dict[str, tuple[int, int]] = {}  # topic -> (end of its queues, place of the record)
        for message in self._queue.messages(begin, high):
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
        self.unfinished = {
            topic: place for topic, (end, place) in ended.items() if self._has_below(topic, end)
        }
        cut_to = min(self.unfinished.values(), default=None)
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

    def _note(self, message: MessageExt, record: MetadataRecord) -> bool:
        """Fold a record; return whether the tables are whole for the first time."""
        self._master_begin = max(self._master_begin, record.log_begin)
        was_whole = self._queue.is_whole
        size = len(message.body)
        if record.kind == "snapshot" and record.part == 0:
            self._first = message.queue_offset, message.physical_offset
        if self._fold.take(message.queue_offset, record):
            base = self._fold.base
            self._queue.newest = Snapshot(base, self._first[1], size * (record.part + 1))
            return not was_whole
        return False

    # Following

    def follow(self) -> None:
        """Apply what comes with the master's log from now on; the tables are folded."""
        self.follows = self._store.follows = True
        self._store.received.watch(SYS_METADATA_TOPIC, self._received)

    def stop(self) -> None:
        """Apply nothing more: this broker comes to lead."""
        self.follows = self._store.follows = False
        self._store.received.watch(None, None)

    def may_remove(self, end_offset: int) -> bool:
        """Return whether a follower's log up to a place may go: no sooner than its master's."""
        has_newer = end_offset <= self._queue.newest.physical_offset
        return has_newer and end_offset <= self._master_begin

    def check_removals(self, cure: str) -> None:
        """Raise StoreError, with a cure, where a deleted topic was made again on old queues.

        Args:
            cure: with `{place}` for the place of the log at which it was deleted.
        """
        for topic, place in self.unfinished.items():
            if self._tables["topics"].value(topic) is not None:
                raise StoreError(
                    f"the queues of topic {topic} begin with messages from before it was deleted "
                    f"and made again{cure.format(place=place)}"
                )

    def finish_removals(self) -> None:
        """Remove the queues of deleted topics that a crash has kept here; the store has started.

        Raises:
            StoreError: one of them was made again, and its queues begin with the old messages.
        """
        self.check_removals(
            ", at offset {place} of the log: remove this replica's store, and let it follow anew"
        )
        for topic in self.unfinished:
            self._deleting.removed(topic)
        self.unfinished = {}

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
        if self._queue.is_whole:
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
