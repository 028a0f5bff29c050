"""What must hold for a store after whatever happened to it; one checker for all fault tests.

I1   every acknowledged message is readable at its acknowledged offset, body and CRC intact
I2   queue offsets are dense and unique; the max offset is the count
I3   nothing that nobody sent, nothing twice
I4   the order of the sends is the order of the log
I5   queue units and records agree (offset, size, tag hash), none missing, none too many
I6   the key index, once it has caught up, leads from each key to each message that has it
I8   topics and groups that were acknowledged exist
I10  a strict reader of the 4.9 format reads the files, the end of the log included
I11  recovering again changes no byte but timestamps
I12  damage of what was on the disk is refused, with its place
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from skylarkmq.protocol.record import decode_message
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.results import ConsumeQueueUnit, GetMessageStatus
from tests.support.index_files import check as check_index_file
from tests.support.index_files import key_hash, keys_of
from tests.support.store_files import (
    LogFiles,
    LogRecord,
    QueueUnits,
    java_hash,
    read_log,
    read_queues,
)

Queue = tuple[str, int]
# What a second start may write anew: timestamps, the part of the index that was not synced, and
# what a crash left of an extension behind a hole, which goes once the hole is filled.
UNSYNCED_FILES = ("checkpoint", "index/", "consumequeue_ext/")

INDEX_HEADER_SIZE, INDEX_ITEM = 40, struct.Struct(">iqii")
EXT_ADDRESS_MAX = -(1 << 63) + (1 << 31)  # a tags code that is the address of an extension


@dataclass(eq=False, slots=True)
class Sent:
    """A message that was handed to the store."""

    number: int  # place in the order of all sends
    topic: str
    queue_id: int
    tags: str
    body: bytes
    acked_at: tuple[int, int] | None = None  # queue offset, physical offset
    shown: bool = False  # acknowledged without waiting for the disk


@dataclass(slots=True)
class Promise:
    """What a store has promised at some moment.

    The log holds messages in the order in which they were handed in, so what is left of it is
    always `log[:k]` for some k, less the files at its start that cleaning has removed.
    """

    log: list[Sent]
    kept_count: int  # k must not be below this
    acked: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    shown: dict[Queue, int] = field(default_factory=dict[Queue, int])  # max offsets readers saw
    topics: frozenset[str] = frozenset()
    log_begin: int | None = None  # where the log began; None when its files were being opened


def require(condition: bool, invariant: str, text: str) -> None:
    """Fail with the name of the invariant that does not hold."""
    if not condition:
        raise AssertionError(f"{invariant}: {text}")


def check_files(
    files: Mapping[str, bytes], log_file_size: int, queue_file_size: int
) -> LogFiles:  # fmt: skip
    """I2, I5, I10 by the files alone, once everything is written. Returns what the log holds."""
    log = read_log(files, log_file_size)
    expected: dict[Queue, QueueUnits] = {}
    for record in log.records:
        first, units = expected.setdefault(record.queue, QueueUnits(record.queue_offset, []))
        require(
            record.queue_offset == first + len(units),
            "I2",
            f"{record.queue} has number {record.queue_offset} in place {first + len(units)}",
        )
        tags = record.properties.get("TAGS")
        code = java_hash(tags) if tags else 0
        units.append((record.physical_offset, record.size, code))
    found: dict[Queue, QueueUnits] = {}
    for key, (first, stored) in read_queues(files, queue_file_size).items():
        units = [unit for unit in stored if unit[0] >= log.begin_offset]
        wanted = expected[key].units if key in expected else []
        for number, (offset, size, code) in enumerate(units):
            if code <= EXT_ADDRESS_MAX and number < len(wanted):  # see check_reads
                units[number] = offset, size, wanted[number][2]
        if units:
            found[key] = QueueUnits(first + len(stored) - len(units), units)
    for key in sorted({*expected, *found}):
        require(
            found.get(key) == expected.get(key),
            "I5",
            f"the units of {key} are {found.get(key)}, the log says {expected.get(key)}",
        )
    return log


def check_log(log: LogFiles, log_file_size: int, promise: Promise) -> int:
    """I1, I3, I4 by the records in the log. Returns how many of the sent messages are there, or
    were until cleaning removed them."""
    records, begin = log.records, promise.log_begin
    require(
        begin is None or begin <= log.begin_offset <= begin + log_file_size,
        "I3",
        f"the log began at {begin} and begins at {log.begin_offset}",
    )
    numbers = [record.properties.get("N") for record in records]
    require(len(set(numbers)) == len(records), "I3", f"messages are there twice: {numbers}")
    removed = _removed_count(log, promise)
    count = removed + len(records)
    require(count <= len(promise.log), "I3", f"{count} messages of {len(promise.log)} sent")
    for record, sent in zip(records, promise.log[removed:], strict=False):
        got = record.properties.get("N"), record.topic, record.queue_id, record.body
        want = str(sent.number), sent.topic, sent.queue_id, sent.body
        require(got == want, "I3/I4", f"message {got[0]} stands where {want[0]} was sent")
    require(
        count >= promise.kept_count,
        "I1",
        f"{count} messages are left, {promise.kept_count} were promised",
    )
    places = {record.properties["N"]: record for record in records}
    for number, (queue_offset, physical_offset) in promise.acked.items():
        found = places.get(str(number))
        if found is not None:
            place = found.queue_offset, found.physical_offset
            require(
                place == (queue_offset, physical_offset),
                "I1",
                f"message {number} was acknowledged at {queue_offset}, {physical_offset} "
                f"and is at {place}",
            )
    return count


def _removed_count(log: LogFiles, promise: Promise) -> int:
    """How many messages stood in the log files that cleaning has removed."""
    if log.begin_offset == 0:
        return 0
    if log.records:
        first = int(log.records[0].properties["N"])
        return next(at for at, sent in enumerate(promise.log) if sent.number == first)
    places = [sent.acked_at for sent in promise.log]
    return max(at for at, place in enumerate(places, 1) if place and place[1] < log.begin_offset)


def check_reads(store: MessageStore, records: list[LogRecord], sent: list[Sent]) -> None:
    """I1, I2, I5 through the store's own reads: every message is found where the log says.

    Args:
        sent: the messages that the log holds, or held before cleaning.
    """
    queues: dict[Queue, list[LogRecord]] = {(each.topic, each.queue_id): [] for each in sent}
    ends = Counter((each.topic, each.queue_id) for each in sent)
    for record in records:
        queues[record.queue].append(record)
    for (topic, queue_id), expected in queues.items():
        limits = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        end = ends[topic, queue_id]
        first = end - len(expected)
        require(
            limits == (first, end),
            "I2",
            f"{topic}-{queue_id} reaches from {limits[0]} to {limits[1]}, not {first} to {end}",
        )
        codes = [unit.tags_code for unit in _all_units(store, topic, queue_id, first, end)]
        tags = [record.properties.get("TAGS") for record in expected]
        require(
            codes == [java_hash(tag) if tag else 0 for tag in tags],
            "I5",
            f"the tags codes of {topic}-{queue_id} are {codes}",
        )
        offset = first
        while offset < end:
            result = store.get_message(topic, queue_id, offset, 32)
            require(
                result.status is GetMessageStatus.FOUND and result.count > 0,
                "I1",
                f"reading {topic}-{queue_id} at {offset}: {result.status}",
            )
            at = offset - first
            _check_views(result.views, expected[at : at + result.count])
            offset = result.next_begin_offset
    for key in store.queues.queues:
        require(key in queues or store.max_offset(*key) == 0, "I5", f"{key} has units, no records")


def check_starts(store: MessageStore) -> None:
    """I2: each queue begins with the first of its messages that is left, once cleaning rests.

    A store that has failed cleans no more. A log file that was on its way out by then goes all the
    same, and no queue follows it until the next start; so a reader there has to get every message
    that is left, and only those.
    """
    failed, log_begin = store.failure is not None, store.commit_log.min_offset
    for (topic, queue_id), queue in store.queues.queues.items():
        if not failed:
            for unit in store.queue_units(topic, queue_id, queue.min_offset, 1):
                left = unit.commit_offset >= log_begin
                require(left, "I2", f"{topic}-{queue_id} begins in front of the log")
            continue
        offset = queue.min_offset
        while offset < queue.max_offset:
            result = store.get_message(topic, queue_id, offset, 32)
            end = result.next_begin_offset
            units = _all_units(store, topic, queue_id, offset, end)[: end - offset]
            left_count = sum(unit.commit_offset >= log_begin for unit in units)
            require(
                end > offset and result.count == left_count,
                "I2",
                f"of {topic}-{queue_id} from {offset} to {end} a failed store gives "
                f"{result.count} messages, not {left_count}",
            )
            offset = end


def _all_units(
    store: MessageStore, topic: str, queue_id: int, first: int, end: int
) -> list[ConsumeQueueUnit]:
    units: list[ConsumeQueueUnit] = []
    while first + len(units) < end:
        more = store.queue_units(topic, queue_id, first + len(units), end)
        require(bool(more), "I5", f"{topic}-{queue_id} has no unit {first + len(units)}")
        units += more
    return units


def check_index(
    files: Mapping[str, bytes], log: LogFiles, slot_count: int, item_count: int
) -> None:
    """I6, I10: the index files are RocketMQ's, and together hold each key of each record once."""
    items: Counter[tuple[int, int]] = Counter()
    for name in sorted(name for name in files if name.startswith("index/")):
        count = check_index_file(files[name], slot_count, item_count)
        first = INDEX_HEADER_SIZE + 4 * slot_count + INDEX_ITEM.size
        for hashed, offset, _, _ in INDEX_ITEM.iter_unpack(
            files[name][first : first + count * INDEX_ITEM.size]
        ):
            if offset >= log.begin_offset:
                items[hashed, offset] += 1
    wanted = Counter(
        (key_hash(f"{record.topic}#{key}"), record.physical_offset)
        for record in log.records
        for key in keys_of(record)
    )
    require(
        items == wanted,
        "I6",
        f"the index lacks {sorted(wanted - items)[:5]} and has {sorted(items - wanted)[:5]}",
    )


def _check_views(views: list[memoryview], expected: list[LogRecord]) -> None:
    data, position = b"".join(views), 0
    for record in expected:
        message = decode_message(data, position)
        got = message.topic, message.queue_id, message.queue_offset, message.body
        want = record.topic, record.queue_id, record.queue_offset, record.body
        require(got == want, "I1", f"a read gave {got[:3]} instead of {want[:3]}")
        position += message.store_size
    require(position == len(data), "I1", "a read gave more than its count says")


def check_shown(store: MessageStore, shown: Mapping[Queue, int]) -> None:
    """Under SYNC_FLUSH a power cut takes nothing back that a reader could see."""
    for (topic, queue_id), offset in shown.items():
        left = store.max_offset(topic, queue_id)
        require(left >= offset, "visibility", f"{topic}-{queue_id} lost {left} to {offset}")


def check_topics(files: Mapping[str, bytes], topics: frozenset[str]) -> None:
    """I8: the table is there, whole, and has every topic whose creation was acknowledged."""
    if not topics:
        return
    text = files.get("config/topics.json")
    require(text is not None, "I8", "topics.json is missing")
    missing = topics - set(json.loads(text or b"[]"))
    require(not missing, "I8", f"topics.json lacks {sorted(missing)}")


def check_same(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> None:
    """I11: two images are equal but for timestamps."""
    names = [*before, *(name for name in after if name not in before)]
    differing = [
        name
        for name in names
        if not name.startswith(UNSYNCED_FILES) and before.get(name) != after.get(name)
    ]
    require(not differing, "I11", f"a second start changed {differing}")
