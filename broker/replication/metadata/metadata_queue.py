"""The queue of the log that holds the tables: its records, read and written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from skylarkmq.broker.replication.metadata.metadata_record import (
    NO_BASE,
    Change,
    MetadataError,
    MetadataRecord,
    encode_metadata,
)
from skylarkmq.common.clock import Clock
from skylarkmq.common.errors import StoreError
from skylarkmq.protocol.flags import SYS_METADATA_TOPIC
from skylarkmq.protocol.message import MessageExt
from skylarkmq.store.message_store import MessageStore, StoreState
from skylarkmq.store.message_writer import PutDone
from skylarkmq.store.results import MessageInner, PutMessageResult, PutMessageStatus

QUEUE_ID: Final = 0
PART_SIZE: Final = 256 << 10
"""Bytes of rows in a record; they are encoded in one turn of the loop, 3 ms."""
READ_COUNT: Final = 256


class Snapshot(NamedTuple):
    """The newest whole snapshot."""

    base: int  # queue offset of its first record
    physical_offset: int  # of that
    size: int  # bytes of all of its records' bodies


NO_SNAPSHOT: Final = Snapshot(NO_BASE, -1, 0)


class MetadataQueue:
    """What followers read and a master writes. Loop thread.

    Attributes:
        newest: the newest whole snapshot in it.
        term: of the master that this broker is; None: it writes nothing.
        host: packed address of that, for the records.
        part_size: bytes of rows in a record, about.
    """

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self.newest = NO_SNAPSHOT
        self.term: int | None = None
        self.host = b""
        self.part_size = min(PART_SIZE, store.config.mapped_file_size_commit_log // 4)
        self._store = store
        self._clock = clock

    @property
    def is_whole(self) -> bool:
        """True when the log holds a whole snapshot."""
        return self.newest.base != NO_BASE

    @property
    def offsets(self) -> tuple[int, int]:
        """Where the queue begins and ends."""
        store = self._store
        return (
            store.min_offset(SYS_METADATA_TOPIC, QUEUE_ID),
            store.max_offset(SYS_METADATA_TOPIC, QUEUE_ID),
        )

    def messages(self, begin: int, end: int) -> Iterator[MessageExt]:
        """Read records.

        Raises:
            MetadataError: one of them cannot be read.
        """
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

    def inner(
        self,
        kind: Literal["change", "snapshot"],
        rows: list[Change],
        begin: int = NO_BASE,
        part: int = 0,
        *,
        is_last: bool = False,
    ) -> MessageInner:
        """Return a record of the master's term, to be put."""
        assert self.term is not None
        record = MetadataRecord(
            kind=kind,
            term=self.term,
            base=self.newest.base,
            log_begin=self._store.commit_log.min_offset,
            rows=rows,
            begin=begin,
            part=part,
            is_last=is_last,
        )
        return MessageInner(
            topic=SYS_METADATA_TOPIC,
            queue_id=QUEUE_ID,
            body=encode_metadata(record),
            properties=b"",
            born_host=self.host,
            store_host=self.host,
            born_timestamp=self._clock.now_ms(),
            is_copy=True,  # as large as it is, whatever maxMessageSize says
        )

    def put(self, inners: Sequence[MessageInner], done: PutDone) -> None:
        """Store records, on a disk too, that is too full for messages: a deletion makes room."""
        if self._store.state is StoreState.RUNNING:
            self._store.writer.put_messages(inners, done)
        else:
            self._store.put_messages(inners, done)  # which refuses them


def refusal_of(results: Sequence[PutMessageResult]) -> StoreError | None:
    """Return why records are not as durable as their answers would say, None when they are."""
    for result in results:
        if result.status is not PutMessageStatus.PUT_OK:
            if result.status is PutMessageStatus.UNCONFIRMED:
                return StoreError("not all replicas in sync have confirmed it in time")
            return StoreError(f"{result.status.value} {result.why}".rstrip())
    return None
