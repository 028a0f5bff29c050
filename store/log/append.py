"""One batch of appends: the records of a turn of the loop are laid out and stored with one write.

    add, add, ...   take a queue offset and a place in the log, collect the record's parts
    write           one write for each log file touched (more than one only at a roll), by the write
                    mode (`log_writer.py`)

The event loop is the put lock: one batch at a time is open, so offsets are dense and records lie in
the order of the calls. Syncs and commits of what was written before may end while it is open, so
nothing of it shows before `write`: a file that it rolled into joins the log then. When `write`
fails the store ends its writing for good, so an offset that was handed out and not stored is never
handed out again.

A record never spans two files: when it does not fit with 8 bytes to spare, the rest of the file
becomes a blank record and the next file begins.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java (DefaultAppendMessageCallback)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from zlib import crc32

from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.host_address import IPV4_HOST_SIZE
from skylarkmq.protocol.record import (
    FIXED_BY_HOSTS,
    FIXED_IPV4,
    HOSTS_BITS,
    HOSTS_SHIFT,
    LENGTHS_SIZE,
    MESSAGE_MAGIC,
    MIN_BLANK_SIZE,
    PROPERTIES_SIZE,
    encode_blank,
)
from skylarkmq.store.log.log_writer import LogWriter
from skylarkmq.store.log.mapped_file import MappedFile
from skylarkmq.store.results import MessageInner
from skylarkmq.store.units import Units, pack_unit

if TYPE_CHECKING:  # queues and key index stand on the log
    from skylarkmq.store.index.keys import Keyed
    from skylarkmq.store.queue.consume_queue import ConsumeQueue

TRANSACTION_BITS: Final = MessageSysFlag.TRANSACTION_MASK
TRANSACTION_COMMIT: Final = MessageSysFlag.TRANSACTION_COMMIT_TYPE
TRANSACTION_ROLLBACK: Final = MessageSysFlag.TRANSACTION_ROLLBACK_TYPE
# Bytes of a record beside body, topic with its size byte, and properties.
OVERHEAD: Final = FIXED_IPV4.size + LENGTHS_SIZE - 1

KEPT_SIZE_MAX: Final = 512 << 10
"""Bytes of the batch written last that stay in memory, for slaves that wait for them."""

NextFile = Callable[[], MappedFile]
DueTime = Callable[[int, int], int]  # (delay level, store timestamp ms) -> due time ms


class AppendBatch:
    """The records of one turn on their way into the log. Loop thread; reused for every turn.

    Its size is one idea: the place of the next record, and what is laid out before it.

    Attributes:
        written: what was written last, and where in the log it begins; no bytes when they are many.
    """

    __slots__ = (
        "_due_time",
        "_file",
        "_file_size",
        "_file_start",
        "_join",
        "_keyed",
        "_next_file",
        "_parts",
        "_position",
        "_rolled",
        "_runs",
        "_segments",
        "_units",
        "_writer",
        "size",
        "store_timestamp",
        "written",
    )

    def __init__(
        self,
        file_size: int,
        writer: LogWriter,
        next_file: NextFile,
        join: Callable[[], None],
        due_time: DueTime,
    ) -> None:
        """Make a batch; `begin` opens it.

        Args:
            join: called when what lies in the files from `next_file`, and before them, is written.
        """
        self._file_size = file_size
        self._writer = writer
        self._next_file = next_file
        self._join = join
        self._due_time = due_time
        self._file: MappedFile | None = None
        self._segments: list[tuple[MappedFile, list[bytes]]] = []
        self._parts: list[bytes] = []
        self._units = Units()
        self._runs = self._units.runs
        self._keyed: list[Keyed] = []  # records whose entries are not made yet
        self.size = 0
        self.store_timestamp = 0
        self._file_start = 0
        self._rolled = False
        self.written = 0, b""

    def begin(self, file: MappedFile | None, store_timestamp: int) -> None:
        """Start a batch at the end of `file`, the last log file.

        Raises:
            RuntimeError: the batch before it was not written; its messages would be gone, and its
                queue offsets with them.
        """
        if not self.is_empty:
            raise RuntimeError(
                f"a batch of {self.units.count} messages must be written before the next one begins"
            )
        self._file = file
        self._units = Units(store_timestamp)
        self._runs = self._units.runs
        self.size = 0
        self.store_timestamp = store_timestamp
        if file is None:
            self._position = self._file_size  # nothing fits: the first add rolls
        else:
            self._file_start = file.start_offset
            self._position = file.wrote_position

    def add(
        self,
        queue: ConsumeQueue,
        body: bytes,
        properties: bytes,
        born_timestamp: int,
        born_host: bytes,
        store_host: bytes,
        tags_code: int,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        delay_level: int = 0,
    ) -> int:
        """Lay one record out and return its physical offset.

        Its queue offset is `queue.next_offset - 1`; prepared and rollback records enter no queue.

        Raises:
            StoreFullError, OSError: the next file could not be had; nothing was taken.
            struct.error: a number does not fit its field; nothing was taken.
        """
        body_size = len(body)
        topic = queue.topic_part
        fixed = FIXED_IPV4
        sys_flag &= ~HOSTS_BITS  # they follow from the hosts, whatever a client wrote
        size = OVERHEAD + body_size + len(topic) + len(properties)
        if len(born_host) + len(store_host) != 2 * IPV4_HOST_SIZE:  # one of IPv6 has more
            hosts = (len(born_host) != IPV4_HOST_SIZE) | (len(store_host) != IPV4_HOST_SIZE) << 1
            sys_flag |= hosts << HOSTS_SHIFT
            fixed = FIXED_BY_HOSTS[hosts]
            size += fixed.size - FIXED_IPV4.size
        position = self._position
        if position + size + MIN_BLANK_SIZE > self._file_size:
            self._make_room(size)
            position = self._position
        physical_offset = self._file_start + position
        store_timestamp = self.store_timestamp
        queue_offset, kind = 0, sys_flag & TRANSACTION_BITS
        is_queued = not kind or kind == TRANSACTION_COMMIT
        if is_queued:
            if delay_level:
                tags_code = self._due_time(delay_level, store_timestamp)
            queue_offset = queue.next_offset
        head = fixed.pack(
            size, MESSAGE_MAGIC, crc32(body) & 0x7FFFFFFF, queue.queue_id, flag, queue_offset,
            physical_offset, sys_flag, born_timestamp, born_host, store_timestamp, store_host,
            reconsume_times, prepared_transaction_offset, body_size,
        )  # fmt: skip
        self._parts += (head, body, topic, PROPERTIES_SIZE.pack(len(properties)), properties)
        if is_queued:
            queue.next_offset = queue_offset + 1
            run = self._runs.get(queue)
            if run is None:
                run = self._runs[queue] = queue_offset, bytearray()
            units = run[1]
            units += pack_unit(physical_offset, size, tags_code)
        if kind != TRANSACTION_ROLLBACK:
            self._keyed.append((queue.prefix_code, properties, physical_offset))
        else:
            self._units.count += 1
        self._position = position + size
        self.size += size
        return physical_offset

    def add_message(self, queue: ConsumeQueue, inner: MessageInner) -> int:
        """Lay out a message that is an object; see `add`."""
        return self.add(
            queue,
            inner.body,
            inner.properties,
            inner.born_timestamp,
            inner.born_host,
            inner.store_host,
            inner.tags_code,
            inner.flag,
            inner.sys_flag,
            inner.reconsume_times,
            inner.prepared_transaction_offset,
            inner.delay_level,
        )

    @property
    def units(self) -> Units:
        """What the records so far add to their queues and to the key index."""
        if self._keyed:
            self._units.add_entries(self._keyed, self.store_timestamp)
            self._keyed.clear()
        return self._units

    @property
    def physical_offset(self) -> int:
        """Where the next record goes, as long as it fits into `room`."""
        return self._file_start + self._position

    @property
    def room(self) -> int:
        """Bytes that the next records may take without a roll."""
        return self._file_size - self._position - MIN_BLANK_SIZE

    def extend(self, records: bytes, units: Units | None = None) -> None:
        """Take records that were laid out for `physical_offset`.

        Args:
            units: what they add, as the first of the batch; None when it stands in `units`.
        """
        if units is not None:
            self._units = units
            self._runs = units.runs
        self._parts.append(records)
        self._position += len(records)
        self.size += len(records)

    def end_file(self, blank: bytes) -> None:
        """Take the blank record that ends the file, as another broker has written it.

        Raises:
            StoreFullError, OSError: as `add`; the file has not ended then.
        """
        self._roll(blank)

    def reserve(self, size: int) -> None:
        """Make sure that the next records, `size` bytes in total, lie in one file.

        Raises:
            StoreFullError, OSError: as `add`.
        """
        if self._position + size + MIN_BLANK_SIZE > self._file_size:
            self._make_room(size)

    def write(self, left_s: float | None = None) -> int:
        """Write the batch and return the end offset of the log. One blocking write a file.

        Args:
            left_s: when the batch left the loop, on the monotonic clock: a commit writes it. None:
                it is written here.

        Raises:
            OSError: the disk refused; the caller must end all writing.
        """
        self._close_segment()
        segments, self._segments = self._segments, []
        file, writer = self._file, self._writer
        for mapped, parts in segments:
            data, at = b"".join(parts), mapped.start_offset + mapped.wrote_position
            if left_s is None:
                writer.append(mapped, data, to_end=mapped is not file)
                self.written = at, data if len(data) <= KEPT_SIZE_MAX else b""
            else:
                writer.leave(mapped, data, left_s, to_end=mapped is not file)
        if self._rolled:
            self._rolled = False
            self._join()
        return 0 if file is None else file.start_offset + file.wrote_position

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to write, not even the blank rest of a file."""
        return not (self._parts or self._segments)

    def drop(self) -> None:
        """Forget what was added: the store has ended its writing."""
        self._parts, self._segments = [], []
        self._keyed.clear()

    def _close_segment(self) -> None:
        if self._file is not None and self._parts:
            self._segments.append((self._file, self._parts))
            self._parts = []

    def _make_room(self, size: int) -> None:
        self._roll()
        if self._position + size + MIN_BLANK_SIZE > self._file_size:
            self._roll()  # a file of an earlier run that could not be had before

    def _roll(self, blank: bytes = b"") -> None:
        following = self._next_file()  # first: without it the old file must stay as it is
        file = self._file
        if file is not None and self._position < file.size:
            self._parts.append(blank or encode_blank(file.size - self._position))
        self._close_segment()
        self._file = following
        self._file_start = following.start_offset
        self._position = following.wrote_position  # 0, unless the first file could not be had
        self._rolled = True
