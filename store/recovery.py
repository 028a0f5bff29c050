"""Recovery: find the end of the log, and make the queues say what the log says.

    clean stop (no `abort`)    walk the newest three files; trust the queues up to the end found
    unclean stop               walk from the newest file that the checkpoint covers, cut every queue
                               back to where the walk began, and build their units again on the way

The walk checks each record: sizes, magic, body CRC, and the physical offset inside it, so a
leftover of another place or time is not taken for a record. It ends at the first place that holds
none. What lies behind was never synced and is cut off, with one exception: when a sound record
behind is older than what the checkpoint says is on the disk, the damage lies inside acknowledged
data. Then the start is refused, naming file and byte, and nothing is changed.

An unclean walk that ends early is the normal case after a crash; the bytes behind the end become
zeros and the tail is synced before anybody reads it. A crash during recovery leaves `abort` in
place, and the next start does the same again from the same checkpoint.

Unlike RocketMQ: the physical offset is checked, stale bytes are cleared, queue units of the walked
part are rebuilt and not trusted, and damage inside durable data is refused and not cut off.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java (recoverNormally,
recoverAbnormally, isMappedFileMatchedRecover)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from skylarkmq.protocol.flags import RMQ_SYS_SCHEDULE_TOPIC, validate_topic
from skylarkmq.protocol.record import RecordStatus, RecordView, read_record
from skylarkmq.protocol.tags_code import cached_tags_code
from skylarkmq.store.append import TRANSACTION_BITS, TRANSACTION_COMMIT
from skylarkmq.store.checkpoint import Marks
from skylarkmq.store.commit_log import CommitLog
from skylarkmq.store.consume_queue import ConsumeQueue
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.errors import CorruptFileError
from skylarkmq.store.mapped_file import MappedFile
from skylarkmq.store.queue_table import QueueTable
from skylarkmq.store.results import ConsumeQueueUnit

log = logging.getLogger(__name__)

CLEAN_WALK_FILES = 3
_MAGIC_BYTES = b"\xda\xa3\x20\xa7"
_SEARCH_SIZE = 1 << 20


@dataclass(slots=True)
class RecoveryReport:
    """What a recovery found and did."""

    clean: bool
    end_offset: int = 0
    truncated_bytes: int = 0  # cut off behind the end: torn or unsynced records
    records: int = 0  # walked
    rebuilt: int = 0  # queue units built again
    store_timestamp: int = 0  # of the last record, ms

    def text(self, begin_offset: int) -> str:
        """One line for the log, of a log that begins at an offset."""
        if self.clean and self.end_offset == begin_offset:
            return "the store is empty"
        how = "the store was stopped cleanly" if self.clean else "recovered from an unclean stop"
        return (
            f"{how}: log from offset {begin_offset} to {self.end_offset}, {self.records} records "
            f"read again, {self.rebuilt} queue units rebuilt, {self.truncated_bytes} bytes cut off"
        )


class Recovery:
    """One recovery of a loaded log and its loaded queues. Blocks; before the loop serves."""

    def __init__(
        self,
        commit_log: CommitLog,
        queues: QueueTable,
        marks: Marks,
        delay_levels: DelayLevels,
        *,
        check_crc: bool,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._marks = marks
        self._delay_levels = delay_levels
        self._check_crc = check_crc

    def run(self, *, unclean: bool) -> RecoveryReport:
        """Recover, and leave log and queues at the end of the last sound record.

        Raises:
            CorruptFileError: a record that was on the disk for certain is damaged.
        """
        report = self._run_clean() if not unclean else None
        if report is None:
            report = self._run_unclean()
        self._log.rewind(report.end_offset, report.store_timestamp)
        self._queues.correct_min_offsets(self._log.min_offset)
        return report

    def _run_clean(self) -> RecoveryReport | None:
        """Walk the newest files; None when what is there does not look like a clean stop."""
        if self._queues.lacking:
            return None
        files = self._log.mapped_files.mapped
        report = RecoveryReport(clean=True)
        if files:
            begin = files[max(0, len(files) - CLEAN_WALK_FILES)].start_offset
            if not self._walk(begin, report, dispatch_from=None):
                log.warning("the log ends in damaged bytes after a clean stop; recovering in full")
                return None
        behind = max(
            (queue.max_physical_offset for queue in self._queues.queues.values()), default=0
        )
        if behind > report.end_offset:
            self._queues.cut(report.end_offset, self._is_sound)
        elif behind < report.end_offset:
            rebuild = RecoveryReport(clean=True)
            self._walk(max(behind, self._log.min_offset), rebuild, dispatch_from=behind)
            report.rebuilt = rebuild.rebuilt
        self._log.mapped_files.truncate(report.end_offset)
        return report

    def _run_unclean(self) -> RecoveryReport:
        report = RecoveryReport(clean=False)
        files = self._log.mapped_files.mapped
        if not files:
            self._queues.cut(0, self._is_sound)
            return report
        begin = self._first_file().start_offset
        written_end = files[-1].start_offset + files[-1].size
        self._rebuild_from(begin, report)
        if self._queues.lacking and begin > self._log.min_offset:
            log.warning("queue files are missing or damaged; building all queues from the log")
            begin, report = self._log.min_offset, RecoveryReport(clean=False)
            self._queues.clear(self._log.min_offset)
            self._rebuild_from(begin, report)
        report.truncated_bytes = self._nonzero_bytes(report.end_offset, written_end)
        if report.truncated_bytes:
            log.warning(
                "cutting the log at offset %d: %d bytes behind it were not stored completely",
                report.end_offset,
                report.truncated_bytes,
            )
        self._log.mapped_files.truncate(report.end_offset, clear_size=report.truncated_bytes)
        for mapped in self._log.mapped_files.mapped:
            if mapped.start_offset >= begin:
                mapped.file.datasync()
        return report

    def _rebuild_from(self, begin: int, report: RecoveryReport) -> None:
        """Cut the queues back to `begin`, walk from there, and build their units again."""
        self._queues.cut(begin, self._is_sound)
        self._walk(begin, report, dispatch_from=begin)

    def _first_file(self) -> MappedFile:
        """The newest file whose first record was on the disk, in log and queues, for certain."""
        files = self._log.mapped_files.mapped
        for mapped in reversed(files):
            first = read_record(
                mapped.view, 0, check_crc=False, physical_offset=mapped.start_offset
            )
            if (
                first.status is RecordStatus.MESSAGE
                and 0 < first.store_timestamp <= self._marks.min_timestamp
            ):
                return mapped
        return files[0]

    def _is_sound(self, queue: ConsumeQueue, queue_offset: int, unit: ConsumeQueueUnit) -> bool:
        """Whether the log holds the record that a unit speaks of; expired ones are believed."""
        if unit.commit_offset < self._log.min_offset:
            return True
        mapped = self._log.mapped_files.find(unit.commit_offset)
        if mapped is None:
            return False
        record = read_record(
            mapped.view,
            unit.commit_offset - mapped.start_offset,
            check_crc=False,
            physical_offset=unit.commit_offset,
        )
        found = record.status, record.size, record.topic, record.queue_id, record.queue_offset
        topic = queue.topic.encode()
        return found == (
            RecordStatus.MESSAGE, unit.record_size, topic, queue.queue_id, queue_offset
        )  # fmt: skip

    def _walk(self, begin: int, report: RecoveryReport, *, dispatch_from: int | None) -> bool:
        """Go over the records from offset `begin` on and note the end of the last sound one.

        Args:
            dispatch_from: build the units of records at or behind this offset; None builds none.

        Returns:
            Whether the log ends properly, in bytes that were never written.
        """
        offset = report.end_offset = begin
        while (mapped := self._log.mapped_files.find(offset)) is not None:
            position = offset - mapped.start_offset
            record = read_record(
                mapped.view, position, check_crc=self._check_crc, physical_offset=offset
            )
            if record.status is RecordStatus.MESSAGE:
                report.records += 1
                report.store_timestamp = max(report.store_timestamp, record.store_timestamp)
                if dispatch_from is not None and offset >= dispatch_from:
                    report.rebuilt += self._rebuild(record)
                offset += record.size
                report.end_offset = offset
            elif record.status is RecordStatus.BLANK:
                offset = mapped.start_offset + mapped.size
                if self._log.mapped_files.find(offset) is None:
                    return True  # the end is in front of the blank record
                report.end_offset = offset
            else:
                self._refuse_durable_damage(mapped, position, record)
                return record.status is RecordStatus.UNWRITTEN
        return True

    def _rebuild(self, record: RecordView) -> int:
        """Put the record's unit into its queue; 1 when it has one."""
        if record.sys_flag & TRANSACTION_BITS not in (0, TRANSACTION_COMMIT):
            return 0
        topic = record.topic.decode("ascii", "replace")
        if validate_topic(topic) is not None:
            log.error("the record at offset %d has no usable topic", record.physical_offset)
            return 0
        unit = record.physical_offset, record.size, self._tags_code(topic, record)
        self._queues.rebuild_unit(
            topic, record.queue_id, record.queue_offset, unit, record.store_timestamp
        )
        return 1

    def _tags_code(self, topic: str, record: RecordView) -> int:
        if topic == RMQ_SYS_SCHEDULE_TOPIC:
            level = self._delay_levels.level_of(record.properties)
            if level:
                return self._delay_levels.due_time(level, record.store_timestamp)
        return 0 if record.tags is None else cached_tags_code(record.tags)

    def _refuse_durable_damage(self, mapped: MappedFile, position: int, record: RecordView) -> None:
        behind = self._next_record(mapped, position)
        if behind is not None and behind.store_timestamp < self._marks.physic_timestamp:
            why = record.why or "nothing is written here"
            raise CorruptFileError(
                mapped.file.path,
                position,
                f"{why}, but messages behind it are sound and were on the disk before the stop "
                f"(the next one is at offset {behind.physical_offset}); nothing was changed: "
                "put a good copy of this file in its place",
            )

    def _next_record(self, mapped: MappedFile, position: int) -> RecordView | None:
        """The first sound record behind a place that holds none."""
        for candidate in self._log.mapped_files.mapped:
            if candidate.start_offset < mapped.start_offset:
                continue
            start = position + 1 if candidate is mapped else 0
            found = _search_record(candidate, start)
            if found is not None:
                return found
        return None

    def _nonzero_bytes(self, begin: int, end: int) -> int:
        """How far behind `begin` the last byte lies that is not zero."""
        last = begin
        offset = begin
        while offset < end and (mapped := self._log.mapped_files.find(offset)) is not None:
            position = offset - mapped.start_offset
            chunk = bytes(mapped.view[position : position + _SEARCH_SIZE])
            stripped = len(chunk.rstrip(b"\0"))
            if stripped:
                last = offset + stripped
            offset += len(chunk)
        return last - begin


def _search_record(mapped: MappedFile, start: int) -> RecordView | None:
    """Find a sound record in a file by its magic and the offset that it carries."""
    position = start
    while position < mapped.size:
        chunk = bytes(mapped.view[position : position + _SEARCH_SIZE + len(_MAGIC_BYTES)])
        at = chunk.find(_MAGIC_BYTES)
        while at >= 0:
            place = position + at - 4
            if place >= start:
                record = read_record(
                    mapped.view, place, physical_offset=mapped.start_offset + place
                )
                if record.status is RecordStatus.MESSAGE:
                    return record
            at = chunk.find(_MAGIC_BYTES, at + 1)
        position += _SEARCH_SIZE
    return None
