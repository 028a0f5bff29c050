"""`store cat`: messages of a stopped store, by place, queue, key or time.

By key it goes through the key index, unless it is told to read the log; by time it begins at the
log file in which the time falls. A message is shown when its record is sound, and never otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from skylarkmq.client.message_view import StoredMessage, stored_message
from skylarkmq.client.namespace import Namespace
from skylarkmq.common.errors import StoreError
from skylarkmq.protocol.compression import decompress
from skylarkmq.protocol.errors import WireError
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.record import decode_message
from skylarkmq.protocol.tags_code import index_key_hash
from skylarkmq.store.index.keys import message_keys
from skylarkmq.store.index.service import IndexSearch
from skylarkmq.store.progress import Progress, no_progress
from skylarkmq.store.queue.consume_queue import PRE_BLANK_SIZE
from skylarkmq.store.stopped.reader import StoppedStore
from skylarkmq.store.stopped.walk import Place, PlaceKind, walk

OPENED_MAX: Final = 1 << 30
"""Bytes of a decompressed body."""
_EVER: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which messages are wanted; of what is None nothing is asked."""

    offset: int | None = None  # physical
    topic: str | None = None
    queue_id: int | None = None
    first: int = 0  # queue offsets
    last: int | None = None
    key: str | None = None
    begin_ms: int | None = None  # store times
    end_ms: int | None = None
    scan: bool = False  # read the log and no index


class Chosen(NamedTuple):
    """One message: its record, or why it cannot be shown."""

    physical_offset: int
    record: bytes | None
    why: str = ""


def select(
    store: StoppedStore, wanted: Selection, progress: Progress = no_progress
) -> Iterator[Chosen]:
    """Yield what is wanted, oldest first.

    Raises:
        StoreError: there is no such queue, or the selection does not go together.
    """
    if wanted.offset is not None:
        yield _at(store, wanted.offset)
    elif wanted.queue_id is not None:
        yield from _of_queue(store, wanted)
    elif wanted.key is not None and not wanted.scan:
        yield from _by_key(store, wanted)
    else:
        yield from _of_log(store, wanted, progress)


def _at(store: StoppedStore, offset: int) -> Chosen:
    record = store.message_bytes(offset)
    if record is not None:
        return Chosen(offset, record)
    found = store.record_at(offset)
    why = "no log file holds this offset"
    if found is not None:
        why = f"no sound message starts here: {found.why or found.status.value}"
    return Chosen(offset, None, why)


def _of_queue(store: StoppedStore, wanted: Selection) -> Iterator[Chosen]:
    if wanted.topic is None:
        raise StoreError("a queue needs a topic")
    queue = store.queues.get((wanted.topic, wanted.queue_id or 0))
    if queue is None:
        raise StoreError(f"{wanted.topic} has no queue {wanted.queue_id}")
    first, end = store.bounds(queue)
    last = end - 1 if wanted.last is None else min(wanted.last, end - 1)
    for _, unit in store.units(queue, max(first, wanted.first), last + 1):
        if unit.record_size == PRE_BLANK_SIZE or unit.commit_offset < store.min_offset:
            continue
        chosen = _at(store, unit.commit_offset)
        if chosen.record is None or _fits(decode_message(chosen.record), wanted):
            yield chosen


def _by_key(store: StoppedStore, wanted: Selection) -> Iterator[Chosen]:
    if wanted.topic is None or wanted.key is None:
        raise StoreError(
            "the key index knows keys by their topic; name it, or read the log: --scan"
        )
    files = [store.index_file(name) for name in store.index_names]
    search = IndexSearch(index_key_hash(wanted.topic, wanted.key), _EVER, -1, _EVER)
    for _ in search.run(files):
        pass
    for file in files:
        file.let_go()
    for offset in sorted({*search.offsets}):
        if offset < store.min_offset:
            continue
        chosen = _at(store, offset)
        if chosen.record is None or _fits(decode_message(chosen.record), wanted):
            yield chosen


def _of_log(store: StoppedStore, wanted: Selection, progress: Progress) -> Iterator[Chosen]:
    for place in walk(store, _begin(store, wanted.begin_ms), progress=progress):
        if place.kind is PlaceKind.DAMAGE:
            yield Chosen(place.offset, None, place.why)
        if place.kind is not PlaceKind.MESSAGE or not _may_fit(place, wanted):
            continue
        record = place.first_bytes(place.size)
        if _fits(decode_message(record, check_crc=False), wanted):
            yield Chosen(place.offset, record)


def _begin(store: StoppedStore, begin_ms: int | None) -> int | None:
    """Start of the newest file that was begun before a time."""
    begin = None
    for file in store.log_files if begin_ms is not None else ():
        record = store.record_at(file.start, check_crc=False)
        if record is None or record.store_timestamp >= (begin_ms or 0):
            break
        begin = file.start
    return begin


def _may_fit(place: Place, wanted: Selection) -> bool:
    """What can be told without decoding the message."""
    record = place.record
    if wanted.topic is not None and record.topic != wanted.topic.encode():
        return False
    return wanted.key is None or wanted.key.encode() in message_keys(record.properties)


def _fits(message: MessageExt, wanted: Selection) -> bool:
    time = message.store_timestamp
    if wanted.begin_ms is not None and time < wanted.begin_ms:
        return False
    if wanted.end_ms is not None and time > wanted.end_ms:
        return False
    keys = [message.unique_key, *message.keys.split(" ")]
    return wanted.key is None or (
        message.topic == (wanted.topic or message.topic) and wanted.key in keys
    )


def message_of(record: bytes) -> StoredMessage:
    """Return a record as the SDK shows messages; no store tells its broker's name."""
    return stored_message(decode_message(record), "", Namespace(None))


def opened_body(message: MessageExt) -> bytes:
    """The body as its producer wrote it; as it is stored where it cannot be decompressed."""
    try:
        return decompress(message.body, message.sys_flag, OPENED_MAX)
    except WireError:
        return message.body
