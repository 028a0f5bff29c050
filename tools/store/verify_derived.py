"""Consume queues and key index checked against the log, from which both are derived.

While the log is walked each record's unit is looked up, and runs of units that were found are
remembered; at the end the units outside of these runs are those that lead nowhere. Neighbouring
units with the same fault become one finding, at the first of them.

Index entries stand in the order of the log, so both are walked side by side: each entry must lead
to a message with that key, and none may be missing. Each file is also checked against itself: its
header, the chains of its items, and the slots that they hang on.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.protocol.record import RecordStatus, RecordView
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.index.file import (
    FIRST_ITEM,
    HEADER_SIZE,
    ITEM,
    ITEM_SIZE,
    SLOT_SIZE,
    IndexFile,
    IndexItem,
    time_difference,
)
from skylarkmq.store.index.keys import ENTRY, record_entries
from skylarkmq.store.log.mapped_file import file_name
from skylarkmq.store.progress import Progress, no_progress
from skylarkmq.store.queue.consume_queue import PRE_BLANK_SIZE, UNIT_SIZE
from skylarkmq.store.results import ConsumeQueueUnit
from skylarkmq.store.stopped.reader import QueueFolder, QueueKey, StoppedStore
from skylarkmq.store.stopped.walk import Place
from skylarkmq.tools.store.findings import Findings, Severity
from skylarkmq.tools.store.queue_places import QueuePlace, queue_places

REBUILD_QUEUES: Final = "build the queues from the log again: store rebuild --write"


@dataclass(slots=True)
class _Fault:
    """Units first..last that all lack the same."""

    kind: str
    first: int
    last: int
    why: str  # of the first one


@dataclass(slots=True)
class _Queue:
    """What the walk has seen of one queue."""

    key: QueueKey
    folder: QueueFolder | None
    next_offset: int  # after the last message
    runs: list[list[int]] = field(default_factory=list[list[int]])  # [first, after the last]
    faults: list[_Fault] = field(default_factory=list[_Fault])


class QueueCheck:
    """Takes the places of all messages, in log order."""

    def __init__(self, store: StoppedStore, findings: Findings, levels: DelayLevels) -> None:
        self.units = 0
        self.ends: dict[QueueKey, int] = {}  # next queue offset, once finished
        self._store = store
        self._findings = findings
        self._levels = levels
        self._queues: dict[QueueKey, _Queue] = {}

    def take(self, place: Place) -> None:
        """Look at the units of a message."""
        for wanted in queue_places(place.record, self._levels, self._store.removed):
            self._take(place, wanted)

    def _take(self, place: Place, wanted: QueuePlace) -> None:
        key = wanted.topic, wanted.queue_id
        queue = self._queues.get(key)
        if queue is None:
            folder = self._store.queues.get(key)
            queue = self._queues[key] = _Queue(key, folder, wanted.queue_offset)
        if wanted.queue_offset != queue.next_offset:
            self._out_of_order(queue, place, wanted)
        queue.next_offset = wanted.queue_offset + 1
        self._note_run(queue, wanted.queue_offset)
        if queue.folder is None:
            self._fault(queue, "queue.missing", wanted.queue_offset, "the queue has no folder")
            return
        unit = self._store.unit(queue.folder, wanted.queue_offset)
        if unit is None or unit.record_size <= 0 or unit.commit_offset < 0:
            why = f"no unit leads to the message at offset {place.offset}"
            self._fault(queue, "queue.missing-unit", wanted.queue_offset, why)
        elif unit[:2] != (place.offset, place.size):
            why = (
                f"the unit says offset {unit.commit_offset} and {unit.record_size} bytes, "
                f"the message is at {place.offset} and has {place.size}"
            )
            self._fault(queue, "queue.wrong-unit", wanted.queue_offset, why)
        else:
            self.units += 1
            self._check_code(queue, queue.folder, unit, wanted)

    def _check_code(
        self, queue: _Queue, folder: QueueFolder, unit: ConsumeQueueUnit, wanted: QueuePlace
    ) -> None:
        code = self._store.tags_code(folder, unit)
        if code != wanted.tags_code:
            why = f"the tags code is {code}, the message's is {wanted.tags_code}"
            if code is None:
                why = "the unit of the extension that it names is not there"
            self._fault(queue, "queue.tags-code", wanted.queue_offset, why)

    def _out_of_order(self, queue: _Queue, place: Place, wanted: QueuePlace) -> None:
        name = f"queue {queue.key[1]} of {queue.key[0]}"
        if wanted.queue_offset > queue.next_offset:
            self._findings.error(
                "log.lost-messages",
                place.file.path,
                place.position,
                f"{name} goes on with message {wanted.queue_offset}; the log has none from "
                f"{queue.next_offset} on",
                "messages were lost before this place; put back a good copy of the log",
            )
            return
        told = self._findings.info if wanted.queue_offset == 0 else self._findings.error
        told(
            "log.queue-restart" if wanted.queue_offset == 0 else "log.queue-order",
            place.file.path,
            place.position,
            f"{name} goes back from message {queue.next_offset} to {wanted.queue_offset}",
            "none is needed when the topic was deleted and made again",
        )
        queue.runs.clear()
        queue.faults.clear()

    @staticmethod
    def _note_run(queue: _Queue, queue_offset: int) -> None:
        if queue.runs and queue.runs[-1][1] == queue_offset:
            queue.runs[-1][1] += 1
        else:
            queue.runs.append([queue_offset, queue_offset + 1])

    @staticmethod
    def _fault(queue: _Queue, kind: str, queue_offset: int, why: str) -> None:
        last = queue.faults[-1] if queue.faults else None
        if last is not None and (last.kind, last.last + 1) == (kind, queue_offset):
            last.last = queue_offset
        else:
            queue.faults.append(_Fault(kind, queue_offset, queue_offset, why))

    def finish(self, end_offset: int, progress: Progress = no_progress) -> None:
        """Look at the units that no message asked for, and tell everything."""
        size = self._store.sizes.queue
        for number, (key, folder) in enumerate(self._store.queues.items()):
            progress("verifying queues", number * size, len(self._store.queues) * size)
            first, end = self._store.bounds(folder)
            queue = self._queues.setdefault(key, _Queue(key, folder, end))
            self.ends[key] = end
            self._check_others(queue, folder, first, end, end_offset)
            self._check_rest(folder, end)
        for queue in self._queues.values():
            for fault in queue.faults:
                self._tell(queue, fault)

    def _check_others(
        self, queue: _Queue, folder: QueueFolder, first: int, end: int, log_end: int
    ) -> None:
        at = first
        for begin, stop in [*sorted(queue.runs), [end, end]]:
            for queue_offset, unit in self._store.units(folder, at, min(begin, end)):
                self._check_other(queue, queue_offset, unit, log_end)
            at = max(at, stop)

    def _check_other(
        self, queue: _Queue, queue_offset: int, unit: ConsumeQueueUnit, log_end: int
    ) -> None:
        in_front = not queue.runs or queue_offset < queue.runs[0][0]
        if unit.record_size == PRE_BLANK_SIZE or unit.commit_offset < self._store.min_offset:
            if not in_front:
                why = "padding, or an expired message, stands between messages"
                self._fault(queue, "queue.padding", queue_offset, why)
            return
        if unit.commit_offset >= log_end:
            why = f"it leads to offset {unit.commit_offset}, and the log ends at {log_end}"
            self._fault(queue, "queue.ahead", queue_offset, why)
            return
        record = self._store.record_at(unit.commit_offset)
        why = f"it leads to offset {unit.commit_offset}, where no log file is"
        if record is not None and record.status is RecordStatus.MESSAGE:
            own = (*queue.key, queue_offset)
            if any(place[:3] == own for place in queue_places(record, self._levels)):
                return  # of the time before the numbers went back
            topic = record.topic.decode("utf-8", "replace")
            why = (
                f"it leads to offset {unit.commit_offset}, the message {record.queue_offset} of "
                f"queue {record.queue_id} of {topic}"
            )
        elif record is not None:
            why = f"it leads to offset {unit.commit_offset}: {record.why}"
        self._fault(queue, "queue.dangling", queue_offset, why)

    def _check_rest(self, folder: QueueFolder, end: int) -> None:
        for file in folder.files:
            begin = max(0, end * UNIT_SIZE - file.start)
            at = self._store.first_written(file.path, begin)
            if at is not None:
                self._findings.warning(
                    "queue.leftover",
                    file.path,
                    at,
                    f"there are bytes after the end of the queue at unit {end}",
                    REBUILD_QUEUES,
                )
                return

    def _tell(self, queue: _Queue, fault: _Fault) -> None:
        path, position = self._place(queue, fault.first)
        count = fault.last - fault.first + 1
        units = f"unit {fault.first}" if count == 1 else f"units {fault.first} to {fault.last}"
        at_end = fault.last >= queue.next_offset - 1
        severity, cure = Severity.ERROR, REBUILD_QUEUES
        if fault.kind == "queue.tags-code":
            severity = Severity.WARNING
            cure += " (or name the broker's messageDelayLevel: --delay-levels)"
        elif self._store.is_unclean and at_end:
            severity, cure = Severity.INFO, "the next start repairs it"
        self._findings.add(severity, fault.kind, path, position, f"{units}: {fault.why}", cure)

    def _place(self, queue: _Queue, queue_offset: int) -> tuple[Path, int]:
        place = None if queue.folder is None else self._store.unit_place(queue.folder, queue_offset)
        if place is not None:
            return place[0].path, place[1]
        position = queue_offset * UNIT_SIZE
        within = position % self._store.sizes.queue
        topic, queue_id = queue.key
        folder = self._store.paths.consume_queue / topic / str(queue_id)
        return folder / file_name(position - within), within


REBUILD_INDEX: Final = "build the index from the log again: store rebuild --only index --write"
_CHUNK_ITEMS: Final = 4096
_COUNT_POSITION: Final = 36
_USED_POSITION: Final = 32
_END_OFFSET_POSITION: Final = 24


class _Entry(NamedTuple):
    file: IndexFile
    number: int
    item: IndexItem

    @property
    def position(self) -> int:
        return self.file.shape.item_position(self.number)


class IndexCheck:
    """Takes the messages in log order."""

    def __init__(self, store: StoppedStore, findings: Findings) -> None:
        self.entries = 0
        self._store = store
        self._findings = findings
        self._items = self._all_items()
        self._next = next(self._items, None)
        self._is_there = bool(store.index_names)
        # Keys without entries, of neighbouring messages: [first offset, last offset, count]
        self._missing: list[int] | None = None
        self._last_path: Path = store.paths.index
        self._last_position = 0

    def take(self, record: RecordView) -> None:
        """Look at the entries of a message."""
        if not self._is_there:
            return
        offset = record.physical_offset
        while self._next is not None and self._next.item.physical_offset < offset:
            self._tell_dangling(self._next)
            self._step()
        wanted = [key_hash for key_hash, _, _ in ENTRY.iter_unpack(record_entries(record))]
        while self._next is not None and self._next.item.physical_offset == offset:
            entry = self._next
            if entry.item.key_hash in wanted:
                wanted.remove(entry.item.key_hash)
                self.entries += 1
                self._check_time(entry, record)
            else:
                self._tell(
                    "index.wrong-key",
                    entry,
                    f"item {entry.number} leads to offset {offset}, whose message has no key of "
                    f"hash {entry.item.key_hash}",
                )
            self._step()
        if wanted:
            self._note_missing(offset, len(wanted))
        elif self._missing is not None and record_entries(record):
            self._tell_missing("between others")

    def finish(self, end_offset: int) -> None:
        """Tell what is left over and what is missing at the end."""
        while self._next is not None:
            self._tell_dangling(self._next, end_offset)
            self._step()
        if self._missing is not None:
            self._tell_missing("at the end", at_end=True)
        if not self._is_there:
            self._findings.info(
                "index.none",
                self._store.paths.index,
                0,
                "there is no key index",
                "none is needed with messageIndexEnable=false; else our broker builds it",
            )

    def _step(self) -> None:
        if self._next is not None:
            self._last_path, self._last_position = self._next.file.path, self._next.position
        self._next = next(self._items, None)

    def _note_missing(self, offset: int, count: int) -> None:
        if self._missing is None:
            self._missing = [offset, offset, 0]
        self._missing[1] = offset
        self._missing[2] += count

    def _tell_missing(self, where: str, *, at_end: bool = False) -> None:
        assert self._missing is not None
        first, last, count = self._missing
        self._missing = None
        is_usual = at_end and self._store.is_unclean
        (self._findings.info if is_usual else self._findings.warning)(
            "index.missing-keys",
            self._last_path,
            self._last_position,
            f"{count} keys of messages at offsets {first} to {last} are missing {where}",
            f"our broker adds them when it starts, or {REBUILD_INDEX}" if at_end else REBUILD_INDEX,
        )

    def _check_time(self, entry: _Entry, record: RecordView) -> None:
        header = entry.file.header
        expected = time_difference(record.store_timestamp, header.begin_timestamp)
        # The first item of a rolled file is counted from the end of the file before: RocketMQ's.
        if entry.number != FIRST_ITEM and entry.item.time_difference != expected:
            self._tell(
                "index.time",
                entry,
                f"item {entry.number} says {entry.item.time_difference} s, its message "
                f"{expected} s",
            )

    def _tell_dangling(self, entry: _Entry, end_offset: int | None = None) -> None:
        offset = entry.item.physical_offset
        if offset < self._store.min_offset:
            return  # expired with its log file
        why = "where no sound message starts"
        if end_offset is not None and offset >= end_offset:
            why = f"and the log ends at {end_offset}"
        self._tell("index.dangling", entry, f"item {entry.number} leads to offset {offset}, {why}")

    def _tell(self, kind: str, entry: _Entry, cause: str) -> None:
        self._findings.warning(kind, entry.file.path, entry.position, cause, REBUILD_INDEX)

    # Files by themselves

    def _all_items(self) -> Iterator[_Entry]:
        last_offset = -1
        for name in self._store.index_names:
            try:
                file = self._store.index_file(name)
            except CorruptFileError:
                continue  # told by its size
            for entry in self._items_of(file):
                if entry.item.physical_offset < last_offset:
                    self._tell("index.order", entry, f"item {entry.number} goes back in the log")
                    continue
                last_offset = entry.item.physical_offset
                yield entry
            file.let_go()

    def _items_of(self, file: IndexFile) -> Iterator[_Entry]:
        shape, header = file.shape, file.header
        if not 0 <= header.next_item <= shape.item_count:
            self._bad(file, _COUNT_POSITION, f"the header says {header.next_item} as next item")
            return
        newest = array("i", bytes(SLOT_SIZE * shape.slot_count))
        for start in range(FIRST_ITEM, header.next_item, _CHUNK_ITEMS):
            stop = min(start + _CHUNK_ITEMS, header.next_item)
            part = file.file.pread((stop - start) * ITEM_SIZE, shape.item_position(start))
            for number, fields in enumerate(ITEM.iter_unpack(part), start):
                item = IndexItem(*fields)
                entry = _Entry(file, number, item)
                slot = item.key_hash % shape.slot_count
                if item.key_hash < 0 or item.previous != newest[slot]:
                    self._tell(
                        "index.chain",
                        entry,
                        f"item {number} names {item.previous} as the one before it in its slot, "
                        f"which is {newest[slot]}",
                    )
                newest[slot] = number
                yield entry
        self._check_slots(file, newest)

    def _check_slots(self, file: IndexFile, newest: array[int]) -> None:
        header, used = file.header, 0
        found = file.file.pread(SLOT_SIZE * file.shape.slot_count, HEADER_SIZE)
        for slot, number in enumerate(newest):
            used += number > 0
            position = slot * SLOT_SIZE
            raw = int.from_bytes(found[position : position + SLOT_SIZE], "big", signed=True)
            if (raw if 0 < raw < header.next_item else 0) != number:
                why = f"slot {slot} names item {raw}, its newest is {number}"
                self._bad(file, HEADER_SIZE + position, why)
        if header.slots_used != used:
            self._bad(
                file, _USED_POSITION, f"the header says {header.slots_used} slots in use of {used}"
            )
        if header.next_item > FIRST_ITEM:
            last = file.item(header.next_item - 1).physical_offset
            if last != header.end_offset:
                why = f"the header ends at offset {header.end_offset}, the last item at {last}"
                self._bad(file, _END_OFFSET_POSITION, why)

    def _bad(self, file: IndexFile, position: int, why: str) -> None:
        self._findings.warning("index.structure", file.path, position, why, REBUILD_INDEX)
