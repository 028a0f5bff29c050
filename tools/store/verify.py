"""`store verify`: everything in a store held against everything else, in one walk over the log.

The log is the truth: queues, index and checkpoint are held against what it says, record by record,
so a store of any size needs memory for its queues and not for its messages.
"""

from __future__ import annotations

from typing import Any, Final

from skylarkmq.protocol.flags import validate_topic
from skylarkmq.protocol.record import RecordStatus
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.progress import Progress
from skylarkmq.store.stopped.reader import StoppedStore
from skylarkmq.tools.store.findings import Findings
from skylarkmq.tools.store.output import table
from skylarkmq.tools.store.verify_files import check_consumer_offsets, check_files
from skylarkmq.tools.store.verify_index import IndexCheck
from skylarkmq.tools.store.verify_queues import QueueCheck
from skylarkmq.tools.store.walk import Place, PlaceKind, no_progress, walk

SALVAGE: Final = "put a good copy of the file in its place, or copy what is sound: store salvage"
_V2_MAGIC: Final = b"\xda\xa3\x20\xab"


class Verification:
    """One look at a whole store."""

    def __init__(
        self,
        store: StoppedStore,
        levels: DelayLevels,
        *,
        limit: int,
        progress: Progress = no_progress,
    ) -> None:
        self.findings = Findings(limit)
        self.records = 0
        self.units = 0
        self.entries = 0
        self.end_offset = store.min_offset
        self._reached = store.min_offset  # the same, or the end of the blank record behind it
        self._store = store
        self._levels = levels
        self._progress = progress
        self._last_ms = 0

    def run(self) -> Verification:
        """Look at everything."""
        check_files(self._store, self.findings)
        queues = QueueCheck(self._store, self.findings, self._levels)
        index = IndexCheck(self._store, self.findings)
        for place in walk(self._store, progress=self._progress, what="verifying"):
            if place.kind in (PlaceKind.MESSAGE, PlaceKind.BLANK):
                self._reached = place.offset + place.size
            if place.kind is PlaceKind.MESSAGE:
                self.records += 1
                self.end_offset = place.offset + place.size
                self._last_ms = max(self._last_ms, place.record.store_timestamp)
                self._check_message(place)
                queues.take(place)
                index.take(place.record)
            else:
                self._check_rest(place)
        queues.finish(self.end_offset, self._progress)
        index.finish(self.end_offset)
        self.units, self.entries = queues.units, index.entries
        self._check_marks()
        check_consumer_offsets(self._store, self.findings, queues.ends)
        return self

    def _check_message(self, place: Place) -> None:
        why = validate_topic(place.record.topic.decode("utf-8", "replace"))
        if why is not None or place.record.queue_id < 0:
            self.findings.error(
                "log.topic",
                place.file.path,
                place.position,
                f"the record at offset {place.offset} cannot be in a queue: "
                + (why or f"queue {place.record.queue_id}"),
                "no broker serves it; nothing else is harmed",
            )

    def _check_rest(self, place: Place) -> None:
        if place.kind is PlaceKind.DAMAGE:
            self.findings.error(
                "log.damage",
                place.file.path,
                place.position,
                f"{self._why(place)}; the next sound place is {place.size} bytes further, "
                f"at offset {place.offset + place.size}",
                SALVAGE,
            )
        elif place.kind is PlaceKind.BLANK and place.record.size != place.size:
            self.findings.warning(
                "log.blank",
                place.file.path,
                place.position,
                f"the blank record says {place.record.size} bytes, {place.size} are left",
                "none is needed: readers go on with the next file",
            )
        elif place.kind is PlaceKind.END:
            self._check_end(place)

    def _check_end(self, place: Place) -> None:
        if place.record.status is not RecordStatus.UNWRITTEN:
            told = self.findings.warning if self._store.is_unclean else self.findings.error
            told(
                "log.tail",
                place.file.path,
                place.position,
                f"the log ends at offset {place.offset} in bytes that are no message: "
                + self._why(place),
                "the next start cuts them off"
                if self._store.is_unclean
                else "a message may be lost, for the stop was clean: " + SALVAGE,
            )
            return
        later = [file for file in self._store.log_files if file.start > place.file.start]
        for file, begin in ((place.file, place.position), *((file, 0) for file in later)):
            at = self._store.first_written(file.path, begin)
            if at is not None:
                self.findings.warning(
                    "log.leftover",
                    file.path,
                    at,
                    f"there are bytes behind the end of the log at offset {place.offset}",
                    "the next start after an unclean stop clears them; no message is in them",
                )
                return

    def _why(self, place: Place) -> str:
        why = place.record.why or "nothing is written here"
        if place.record.size and place.record.topic:
            record = place.record
            topic = record.topic.decode("utf-8", "replace")
            why += f" (it says topic {topic}, queue {record.queue_id}, {record.queue_offset})"
        if bytes(place.view[place.position + 4 : place.position + 8]) == _V2_MAGIC:
            why += ": a record of RocketMQ 5's second form, which 4.9 and we cannot read"
        return why

    def _check_marks(self) -> None:
        marks, path = self._store.marks, self._store.paths.checkpoint
        for own, offset in (
            (self._store.paths.recovery_point, marks.commit_log_offset),
            (self._store.paths.flushed_offset, self._store.flushed_offset),
        ):
            if offset <= self._reached:
                continue
            self.findings.error(
                "checkpoint.offset",
                own,
                0,
                f"the log was on the disk up to offset {offset}, "
                f"and its last message ends at {self.end_offset}",
                "messages are lost: put back the log files as they were",
            )
        for name, position, timestamp in (
            ("log", 0, marks.physic_timestamp),
            ("queues", 8, marks.logics_timestamp),
        ):
            if self.records and timestamp > self._last_ms:
                self.findings.warning(
                    "checkpoint.time",
                    path,
                    position,
                    f"the {name} were on the disk up to {timestamp}, and the newest message of "
                    f"the log is of {self._last_ms}",
                    "the newest messages may be lost; compare with a copy of the store",
                )

    def as_dict(self) -> dict[str, Any]:
        """The result as the JSON output has it."""
        return {
            "root": str(self._store.paths.root),
            "records": self.records,
            "units": self.units,
            "entries": self.entries,
            "end_offset": self.end_offset,
            **self.findings.as_dict(),
        }

    def lines(self) -> list[str]:
        """The result for humans."""
        found = self.findings
        text = [
            f"{self.records} records, {self.units} queue units and {self.entries} index entries "
            f"looked at; the log ends at offset {self.end_offset}"
        ]
        for finding in found.kept:
            text += [
                f"{finding.severity.value:<7} {finding.kind}  {finding.path} "
                f"at byte {finding.position}",
                f"        {finding.cause}",
                f"        -> {finding.cure}",
            ]
        if found.kinds:
            text += ["", *table(("kind", "count"), sorted(found.kinds.items()))]
        if found.left_off:
            text.append(f"{found.left_off} findings are not shown; --limit shows more of a kind")
        return [*text, "the store is sound" if found.is_sound else "the store is not sound"]
