"""`store verify`: all files of a store checked against each other, in one walk over the log.

The log is the truth: queues, index and checkpoint are compared with it record by record, so a
store of any size needs memory for its queues and not for its messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.sidecar import Kind, read_sidecar
from skylarkmq.protocol.flags import validate_topic
from skylarkmq.protocol.record import RecordStatus
from skylarkmq.store.checkpoint import FIELDS, FILE_SIZE
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.log.mapped_file import is_file_name
from skylarkmq.store.progress import Progress, no_progress
from skylarkmq.store.queue.consume_queue import UNIT_SIZE
from skylarkmq.store.stopped.reader import (
    NumberedFile,
    QueueKey,
    StoppedStore,
    is_queue_id,
)
from skylarkmq.store.stopped.walk import Place, PlaceKind, walk
from skylarkmq.tools.output import table
from skylarkmq.tools.store.findings import UNCLEAN, Findings
from skylarkmq.tools.store.tables import BACKUP, TABLES, read_table, readable
from skylarkmq.tools.store.verify_derived import IndexCheck, QueueCheck

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
        self._reached = store.min_offset  # the same, or the end of the blank record after it
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
        self._check_disk()
        return self

    def _check_disk(self) -> None:
        for path, blocks in self._store.files.unreadable.items():
            if blocks:
                self.findings.error(
                    "file.unreadable",
                    path,
                    min(blocks),
                    f"the disk cannot read {len(blocks)} blocks of 4096 bytes, of which this is "
                    "the first",
                    SALVAGE,
                )

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
            told = self.findings.info if self._store.is_unclean else self.findings.error
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
                told = self.findings.info if self._store.is_unclean else self.findings.warning
                told(
                    "log.leftover",
                    file.path,
                    at,
                    f"there are bytes after the end of the log at offset {place.offset}",
                    "the next start after an unclean stop clears them; no message is in them",
                )
                return

    def _why(self, place: Place) -> str:
        why = place.why
        if place.record.size and place.record.topic:
            record = place.record
            topic = record.topic.decode("utf-8", "replace")
            why += f" (it says topic {topic}, queue {record.queue_id}, {record.queue_offset})"
        if place.first_bytes(8)[4:] == _V2_MAGIC:
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
        return [*text, found.verdict]


KNOWN: Final = frozenset(
    (
        *("commitlog", "consumequeue", "consumequeue_ext", "index", "config"),
        *("checkpoint", "abort", "lock", "skylarkmq"),
        *("transaction", "timerwheel", "timerlog"),
    )
)
MOVE: Final = "move it out of the folder: brokers refuse to start with it"
_GROUP_SEPARATOR: Final = "@"


def check_files(store: StoppedStore, findings: Findings) -> None:
    """Look at everything that needs no walk over the log."""
    if store.is_unclean:
        findings.info(
            UNCLEAN,
            store.paths.abort,
            0,
            "the store was not stopped cleanly: it failed, or was copied while a broker ran on it",
            "the next start of a broker recovers it",
        )
    for name in store.names(store.paths.root):
        if name not in KNOWN:
            findings.info(
                "store.foreign", store.paths.root / name, 0, "no file of a store", "none is needed"
            )
    _check_log(store, findings)
    _check_queue_folders(store, findings)
    _check_index(store, findings)
    _check_small(store, findings)
    for name in TABLES:
        _check_table(store, findings, name)


def _check_log(store: StoppedStore, findings: Findings) -> None:
    folder = store.paths.commit_log
    _check_names(store, findings, folder, "log.foreign")
    _check_row(findings, "log", store.log_files, store.sizes.log)


def _check_names(store: StoppedStore, findings: Findings, folder: Path, kind: str) -> None:
    for name in store.names(folder):
        if not is_file_name(name):
            findings.error(kind, folder / name, 0, "its name is not 20 digits", MOVE)


def _check_row(findings: Findings, what: str, files: list[NumberedFile], size: int) -> None:
    """Files that should follow each other without a gap, all of one size."""
    for before, file in zip([None, *files], files, strict=False):
        if file.size != size:
            findings.error(
                f"{what}.size",
                file.path,
                file.size,
                f"it has {file.size} bytes, files of this kind have {size}",
                "put back the whole file; an empty last one may be removed",
            )
        if file.start % size:
            findings.error(f"{what}.name", file.path, 0, f"its name is no multiple of {size}", MOVE)
        if before is not None and before.start + size != file.start:
            findings.error(
                f"{what}.gap",
                file.path,
                0,
                f"files from offset {before.start + size} up to this one are missing",
                "put them back; store salvage makes a sound store of the rest",
            )


def _check_queue_folders(store: StoppedStore, findings: Findings) -> None:
    for base in (store.paths.consume_queue, store.paths.consume_queue_ext):
        for topic in store.names(base):
            why = validate_topic(topic)
            if why is not None or not store.files.is_folder(base / topic):
                findings.error("queue.foreign", base / topic, 0, why or "it is no folder", MOVE)
                continue
            for name in store.names(base / topic):
                path = base / topic / name
                if not is_queue_id(name) or not store.files.is_folder(path):
                    findings.error("queue.foreign", path, 0, "it is no queue's folder", MOVE)
                else:
                    _check_names(store, findings, path, "queue.foreign")
    for queue in store.queues.values():
        _check_row(findings, "queue", queue.files, store.sizes.queue)
        _check_row(findings, "ext", queue.ext_files, store.sizes.ext)
    if store.sizes.queue % UNIT_SIZE:
        findings.error(
            "queue.size",
            store.paths.consume_queue,
            0,
            f"queue files have {store.sizes.queue} bytes, no multiple of {UNIT_SIZE}",
            "put back whole files",
        )


def _check_index(store: StoppedStore, findings: Findings) -> None:
    for name in store.names(store.paths.index):
        path = store.paths.index / name
        if not (name.isascii() and name.isdigit()):
            findings.warning("index.foreign", path, 0, "its name is no number", "move it away")
            continue
        try:
            store.index_file(name).let_go()
        except CorruptFileError as error:
            findings.error(
                "index.size",
                path,
                error.position,
                error.why,
                "remove it and build the index again: store rebuild --only index --write",
            )


def _check_small(store: StoppedStore, findings: Findings) -> None:
    path = store.paths.checkpoint
    if not store.files.exists(path):
        findings.info("checkpoint.none", path, 0, "there is none", "a recovery takes longer")
    elif store.files.size(path) < FILE_SIZE:
        size = store.files.size(path)
        told = findings.warning if size < FIELDS.size else findings.info
        told(
            "checkpoint.size", path, size, f"it has {size} bytes of {FILE_SIZE}",
            "the next checkpoint repairs it",
        )  # fmt: skip
    for kind, own, cure in (
        (Kind.PROFILE, store.paths.profile, "remove it; the files tell the sizes too"),
        (Kind.RECOVERY_POINT, store.paths.recovery_point, "the next checkpoint repairs it"),
        (Kind.FLUSHED_OFFSET, store.paths.flushed_offset, "the next start repairs it"),
    ):
        try:
            read_sidecar(store.files, own, kind, dict[str, Any])
        except CorruptFileError as error:
            findings.warning("own.damage", own, error.position, error.why, cure)


def _check_table(store: StoppedStore, findings: Findings, name: str) -> None:
    path = store.paths.config / name
    main = read_table(store, path)
    backup = read_table(store, path.with_name(name + BACKUP))
    has_backup = backup is not None and backup.content is not None
    if main is None:
        if backup is not None:
            told = findings.warning if has_backup else findings.error
            told("table.missing", path, 0, "it is missing, its backup is there",
                 "brokers take the backup" if has_backup else "put back a good copy")  # fmt: skip
    elif main.content is None:
        told = findings.warning if has_backup else findings.error
        told(
            "table.damage",
            path,
            main.position,
            main.why,
            f"brokers take {name}{BACKUP}" if has_backup else "put back a good copy",
        )
    if backup is not None and backup.content is None:
        findings.warning(
            "table.backup", backup.path, backup.position, backup.why,
            "the next change of the table replaces it",
        )  # fmt: skip


def check_consumer_offsets(
    store: StoppedStore, findings: Findings, ends: dict[QueueKey, int]
) -> None:
    """Report groups whose next message lies after the end of its queue."""
    table: Any = readable(store, "consumerOffset.json").get("offsetTable")
    if not isinstance(table, dict):
        return
    for name, offsets in cast("dict[str, Any]", table).items():
        if not isinstance(offsets, dict):
            continue
        topic, _, group = name.partition(_GROUP_SEPARATOR)
        for queue_id, offset in cast("dict[str, Any]", offsets).items():
            key = topic, int(queue_id) if str(queue_id).isdigit() else -1
            if isinstance(offset, int) and key in ends and offset > ends[key]:
                findings.warning(
                    "table.offset-ahead",
                    store.paths.config / "consumerOffset.json",
                    0,
                    f"group {group} goes on with message {offset} of queue {queue_id} of {topic}, "
                    f"which ends at {ends[key]}",
                    "the group would wait; reset its offset",
                )
