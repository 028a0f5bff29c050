"""Recovery: find the end of the log, and make the queues say what the log says.

    clean stop (no `abort`)    walk the newest records; trust the queues if each of the records has
                               its unit, else build them all again
    unclean stop               walk from where the checkpoint says that log and queues are on the
                               disk, cut every queue back to there, and build the units of the
                               walked records again

Where a walk begins is a place in bytes when our own `recovery-point` goes with the checkpoint, so
that its length follows what was appended since; else, in a store that RocketMQ wrote, the start of
a file: the third newest one after a clean stop, or the newest that is old enough.

The walk checks each record: sizes, magic, body CRC, and the physical offset inside it, so a
leftover of another place or time is not taken for a record. It ends at the first place that holds
none. What follows is cut off, as it was never synced, unless what is known says that it was: then
the damage lies inside acknowledged data, the start is refused, naming file and byte, and the
log is not changed. What was on the disk is everything below the flushed offset that our last run
has left (`flushed_offset.py`), and below the recovery point; without one, what lies before a sound
record that is older than the checkpoint's time.

Sound records may stand after the end: a power cut leaves holes in what was not synced, and the
page cache of a killed process may rot. What is cut there is kept in a file of ours.

An unclean walk that ends early is the normal case after a crash; the bytes after the end become
zeros, and the tail is synced before it can be read. A crash during recovery leaves `abort` in
place, and the next start does the same again from the same checkpoint.

Unlike RocketMQ: the physical offset is checked, stale bytes are cleared, queue units of the walked
part are rebuilt and not trusted, damage inside durable data is refused and not cut off, and sound
records that are cut off are kept.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java (recoverNormally,
recoverAbnormally, isMappedFileMatchedRecover)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.refusal import is_no_space
from skylarkmq.protocol.record import RecordStatus, RecordView, read_record
from skylarkmq.store.checkpoint import UNKNOWN, Marks
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.log.log_walk import LogWalk, bytes_after
from skylarkmq.store.log.mapped_file import MappedFile, file_name
from skylarkmq.store.log.mapped_file_queue import MappedFileQueue
from skylarkmq.store.progress import Progress
from skylarkmq.store.queue.consume_queue import UNIT, ConsumeQueue, is_valid_unit
from skylarkmq.store.queue.queue_loader import QueueLoader
from skylarkmq.store.queue.unit_rebuild import UnitCheck, UnitRebuild
from skylarkmq.store.results import ConsumeQueueUnit
from skylarkmq.store.stopped.segments import SegmentFile

log = logging.getLogger(__name__)

CLEAN_WALK_FILES = 3
# Bytes before a recovery point that are read again, because the disk may have lied.
CHECK_SIZE = 16 << 20


@dataclass(slots=True)
class RecoveryReport:
    """What a recovery found and did."""

    clean: bool
    end_offset: int = 0
    truncated_bytes: int = 0  # cut off after the end: torn or unsynced records
    records: int = 0  # walked
    rebuilt: int = 0  # queue units built again
    store_timestamp: int = 0  # of the last record, ms
    keeps_queues: bool = False  # up to the recovery point they are on the disk as they were

    def text(self, begin_offset: int) -> str:
        """Return one line about a log that begins at an offset."""
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
        loader: QueueLoader,
        marks: Marks,
        delay_levels: DelayLevels,
        *,
        check_crc: bool,
        progress: Progress | None = None,
        removed: Mapping[bytes, int] | None = None,
        broken_folder: Path | None = None,
    ) -> None:
        """Take what was loaded.

        Args:
            broken_folder: where what is cut off is kept; None keeps nothing.
        """
        self._log = commit_log
        self._files = commit_log.mapped_files
        self._loader = loader
        self._queues = loader.table
        self._marks = marks
        self._delay_levels = delay_levels
        self._check_crc = check_crc
        self._progress = progress
        self._removed = removed or {}
        # The recovery point; None when there is none, or the files with it have expired.
        self._point: int | None = None
        # The log was on the disk up to there, whatever the disk holds now; None when not known.
        self._durable: int | None = None
        self._broken_folder = broken_folder
        self.has_changed = False  # a queue or the log, or may have

    def run(self, *, unclean: bool) -> RecoveryReport:
        """Recover, and leave log and queues at the end of the last sound record.

        Raises:
            CorruptFileError: a record that was on the disk for certain is damaged.
        """
        if self._marks.commit_log_offset >= self._log.min_offset:
            self._point = self._marks.commit_log_offset
        if self._marks.commit_log_offset != UNKNOWN:
            durable = max(self._marks.commit_log_offset, self._log.synced_end())
            self._durable = durable if durable >= self._log.min_offset else None
        report = self._run_clean() if not unclean else None
        if report is None:
            report = self._run_unclean()
        self._log.rewind(report.end_offset, report.store_timestamp)
        self._log.clock_steps.keep(self._log.min_offset, report.end_offset)
        self._loader.correct_min_offsets(self._log.min_offset)
        return report

    def _run_clean(self) -> RecoveryReport | None:
        """Walk the newest records; None when what is there does not look like a clean stop."""
        self._check_totals()
        self._check_begins()
        if self._loader.lacking:
            return None
        report = RecoveryReport(clean=True, keeps_queues=True)
        queued_end = max(
            (queue.max_physical_offset for queue in self._queues.queues.values()), default=0
        )
        if not self._walk(self._clean_begin(), report, dispatch_from=None, check_to=queued_end):
            log.warning("the log ends in damaged bytes after a clean stop; recovering in full")
            return None
        if self._loader.lacking:
            return None
        self.has_changed = True
        if queued_end > report.end_offset:
            self._loader.cut(report.end_offset, self._is_sound)
            self._check_totals()
            if self._loader.lacking:
                return None
        # What lies below it has its units, or is removed.
        queued_end = max(queued_end, self._point or 0)
        if queued_end < report.end_offset:
            rebuild = RecoveryReport(clean=True)
            self._walk(max(queued_end, self._log.min_offset), rebuild, dispatch_from=queued_end)
            report.rebuilt = rebuild.rebuilt
        self._files.truncate(report.end_offset)
        return report

    def _clean_begin(self) -> int:
        if self._point is not None:
            return self._begin_by_point(self._point)
        files = self._files.mapped
        return files[max(0, len(files) - CLEAN_WALK_FILES)].start_offset if files else 0

    def _begin_by_point(self, point: int) -> int:
        """Return where a record begins: before the recovery point, else right there."""
        begin = self._begin_before_point(point)
        if begin is not None:
            return begin
        mapped, last = self._files.find(point), self._files.last
        if mapped is None and last is not None and last.start_offset + last.size != point:
            return last.start_offset  # files are missing
        if mapped is not None and not self._may_begin(mapped, point):
            return mapped.start_offset
        return point if last is not None else 0

    def _begin_before_point(self, point: int) -> int | None:
        """Return where a record begins some way before the recovery point, as the queues say."""
        if point - CHECK_SIZE <= self._log.min_offset < point:
            return self._log.min_offset
        newest = max(
            self._queues.queues.values(),
            key=lambda queue: queue.max_physical_offset,
            default=None,
        )
        if newest is None:
            return None
        wanted = point - CHECK_SIZE
        unit = self._queues.first_at(newest, wanted)
        if unit == newest.max_offset:
            return None
        offset: int = UNIT.unpack(self._queues.stored_units(newest, unit, 1))[0]
        in_range = wanted <= offset < point
        return offset if in_range and self._is_record(offset) else None

    def _run_unclean(self) -> RecoveryReport:
        self.has_changed = True
        report = RecoveryReport(clean=False)
        files = self._files.mapped
        begin, dispatch_from = self._unclean_begin()
        self._rebuild_from(begin, dispatch_from, report)
        report.keeps_queues = dispatch_from == self._point
        says_nothing = self._point is None and report.store_timestamp < self._marks.min_timestamp
        if (self._loader.lacking or says_nothing) and dispatch_from > self._log.min_offset:
            log.warning(
                "building all queues from the log: %s",
                "its store times go back after those of the checkpoint"
                if says_nothing
                else "queue files are missing or damaged",
            )
            begin, report = self._log.min_offset, RecoveryReport(clean=False)
            # From here on the queues are on the disk up to nowhere, should this be cut short.
            self._queues.flusher.checkpoint.save(Marks(self._marks.physic_timestamp))
            self._loader.clear(begin)
            self._rebuild_from(begin, begin, report)
        report.truncated_bytes = bytes_after(self._files, report.end_offset)
        if report.truncated_bytes:
            log.warning(
                "cutting the log at offset %d: the %d bytes after it do not go on with a "
                "whole and sound record%s",
                report.end_offset,
                report.truncated_bytes,
                self._keep_broken(report),
            )
        self._files.truncate(report.end_offset, clear_size=report.truncated_bytes)
        for mapped in files:
            if mapped.start_offset + mapped.size > begin:
                mapped.file.datasync()
        return report

    def _keep_broken(self, report: RecoveryReport) -> str:
        """Keep what is about to be cut off if it holds sound records; what to say about it."""
        following = next_record(self._files, report.end_offset)
        if following is None or self._broken_folder is None:
            return ""
        told = f"; after the damage sound messages begin at offset {following.physical_offset}"
        try:
            path = self._files.copy_out(
                report.end_offset, report.truncated_bytes, self._broken_folder
            )
        except OSError as error:
            if not is_no_space(error):
                raise
            return f"{told}, and there is no room to keep them: {error}"
        return f"{told}: the bytes that are cut are kept in {path}"

    def _rebuild_from(self, begin: int, dispatch_from: int, report: RecoveryReport) -> None:
        """Cut the queues back to an offset, walk, and build the units from there on again."""
        self._loader.cut(dispatch_from, self._is_sound)
        self._check_begins()
        if dispatch_from == self._point:
            self._check_totals()
        self._walk(begin, report, dispatch_from=dispatch_from)

    def _check_totals(self) -> None:
        """Notice when a queue has lost units that it had on the disk."""
        if self._point is None or self._marks.unit_count < 0:
            return
        found, known = self._queues.totals(), (self._marks.queue_count, self._marks.unit_count)
        if found != known:
            log.warning(
                "there are %d queues with %d units in all, there were %d with %d", *found, *known
            )
            self._loader.lacking = True

    def _check_begins(self) -> None:
        """Notice when a queue has lost its first file, which otherwise looks expired."""
        if self._log.min_offset or self._loader.lacking:
            return  # messages have expired, or it is known
        for queue in self._queues.queues.values():
            if queue.first_offset:
                log.warning("%s begins with unit %d", queue.folder, queue.first_offset)
                self._loader.lacking = True
                return

    def _unclean_begin(self) -> tuple[int, int]:
        """Return where to begin the walk, and the offset below which all was on the disk."""
        if self._point is not None:
            return self._begin_by_point(self._point), self._point
        for mapped in reversed(self._files.mapped):
            first = read_record(
                mapped.view, 0, check_crc=False, physical_offset=mapped.start_offset
            )
            if (
                first.status is RecordStatus.MESSAGE
                and 0 < first.store_timestamp <= self._marks.min_timestamp
                and not self._follows_newer(mapped)
            ):
                return mapped.start_offset, mapped.start_offset
        return self._log.min_offset, self._log.min_offset

    def _follows_newer(self, mapped: MappedFile) -> bool:
        """Return whether the file before one holds what is newer than all that was on the disk.

        Then the clock went back in between, and the times after that say nothing.
        """
        before = self._files.find(mapped.start_offset - 1)
        if before is None:
            return False
        walk = LogWalk(self._files, check_crc=False, what="looking for a step of the clock")
        for offset, _, _, _, _, timestamp, _, _ in walk.records(before.start_offset):
            if offset >= mapped.start_offset:
                break
            if timestamp > self._marks.min_timestamp:
                return True
        return False

    @staticmethod
    def _may_begin(mapped: MappedFile, offset: int) -> bool:
        """Return whether a record, a blank one, or nothing begins at an offset."""
        record = read_record(mapped.view, offset - mapped.start_offset, physical_offset=offset)
        return record.status in (RecordStatus.MESSAGE, RecordStatus.BLANK, RecordStatus.UNWRITTEN)

    def _is_record(self, offset: int) -> bool:
        mapped = self._files.find(offset)
        if mapped is None:
            return False
        record = read_record(mapped.view, offset - mapped.start_offset, physical_offset=offset)
        return record.status is RecordStatus.MESSAGE

    def _is_sound(self, queue: ConsumeQueue, queue_offset: int, unit: ConsumeQueueUnit) -> bool:
        """Return whether the log holds the record that a unit speaks of; trust expired ones."""
        if not is_valid_unit(unit.commit_offset, unit.record_size):
            return False  # a page that never came to the disk, in a file that others follow
        if unit.commit_offset < self._log.min_offset:
            return True
        mapped = self._files.find(unit.commit_offset)
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

    def _walk(
        self, begin: int, report: RecoveryReport, *, dispatch_from: int | None, check_to: int = 0
    ) -> bool:
        """Go over the records from offset `begin` on and note the end of the last sound one.

        Args:
            dispatch_from: build the units of records at or after this offset; None builds none.
            check_to: compare records below it with their units, and those below the recovery point.

        Returns:
            Whether the log ends properly, in bytes that were never written.
        """
        walk = LogWalk(
            self._files,
            check_crc=self._check_crc,
            what="recovering the log",
            progress=self._progress,
        )
        rebuild = UnitRebuild(
            self._loader, self._delay_levels, self._removed, self._log.clock_steps
        )
        check_to = max(check_to, self._point or 0)
        check = UnitCheck(self._queues, check_to, self._removed)
        rebuild.run(walk.records(begin), dispatch_from, check)
        if not check.is_sound:
            self._loader.lacking = True
        report.end_offset = walk.end_offset
        report.records += rebuild.records
        report.rebuilt += rebuild.rebuilt
        if rebuild.records:
            report.store_timestamp = rebuild.store_timestamp
        else:
            report.store_timestamp = max(report.store_timestamp, self._timestamp_before(begin))
        self._refuse_durable_damage(walk)
        return walk.stop is None or walk.stop.status is RecordStatus.UNWRITTEN

    def _timestamp_before(self, begin: int) -> int:
        """Store time that no record before a walk exceeds, as far as that is known."""
        return self._marks.physic_timestamp if begin > self._log.min_offset else 0

    def _refuse_durable_damage(self, walk: LogWalk) -> None:
        if self._durable is not None:
            if walk.reached < self._durable:
                raise self._damage(walk, f"the log was on the disk up to offset {self._durable}")
        elif walk.stop is not None:
            following = next_record(self._files, walk.end_offset)
            if following is not None and following.store_timestamp < self._marks.physic_timestamp:
                raise self._damage(
                    walk,
                    "messages after it are sound and were on the disk "
                    f"(the next one is at offset {following.physical_offset})",
                )

    def _damage(self, walk: LogWalk, but: str) -> CorruptFileError:
        """Return the refusal of a log that lacks what was on the disk."""
        mapped = self._files.find(walk.end_offset)
        if mapped is None or walk.stop is None:
            start = walk.reached - walk.reached % self._log.file_size
            return CorruptFileError(
                self._files.folder / file_name(start),
                walk.reached - start,
                f"the file is missing, but {but} before the stop; {_cure(walk.end_offset)}",
            )
        return CorruptFileError(
            mapped.file.path,
            walk.end_offset - mapped.start_offset,
            f"{walk.stop.why or 'nothing is written here'}, but {but} before the stop; "
            f"{_cure(walk.end_offset)}",
        )


def next_record(files: MappedFileQueue, offset: int) -> RecordView | None:
    """Return the first sound record that begins after a place that holds none."""
    for mapped in files.mapped:
        segment = SegmentFile(mapped.file, mapped.start_offset)
        place = segment.find_record(max(0, offset + 1 - mapped.start_offset), mapped.size)
        while place is not None:
            record = segment.look(place, check_crc=True).record
            if record.status is RecordStatus.MESSAGE:
                return record
            place = segment.find_record(place + 1, mapped.size)
    return None


def _cure(end_offset: int) -> str:
    return (
        "the log was not changed: put a good copy of this file in its place, save what is sound "
        "with `skylarkmq store salvage`, or give up all that follows with `skylarkmq store "
        f"truncate --to {end_offset}`"
    )
