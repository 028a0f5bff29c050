"""Stores of stopped replicas: their logs byte by byte, their messages by the reader."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from skylarkmq.protocol.record import RecordStatus, decode_message
from skylarkmq.store.stopped.reader import StoppedStore
from tests.failover.history import Operation, digest
from tests.failover.load import TOPIC

PART_SIZE: Final = 1 << 16


@dataclass(slots=True)
class LogComparison:
    """What the logs of all replicas have in common."""

    start: int  # the latest of their first bytes
    end: int  # the earliest of their ends
    ends: dict[str, int]
    differences: list[str] = field(default_factory=list[str])

    @property
    def size(self) -> int:
        return max(0, self.end - self.start)


def compare_logs(stores: Mapping[str, Path]) -> LogComparison:
    """Compare from where all logs have begun up to where the shortest one ends. Blocks.

    The shortest log holds all that was ever confirmed, when its replica was in sync at the end.
    """
    opened = {name: StoppedStore(root) for name, root in stores.items()}
    ends = {name: log_end(store) for name, store in opened.items()}
    start = max(store.min_offset for store in opened.values())
    comparison = LogComparison(start, min(ends.values()), ends)
    first, *others = opened
    for name in others:
        place = _first_difference(opened[first], opened[name], start, comparison.end)
        if place is not None:
            comparison.differences.append(f"the logs of {first} and {name} differ at {place}")
    return comparison


def log_end(store: StoppedStore) -> int:
    """Return where a log's last sound record ends.

    Raises:
        AssertionError: it does not end there, but goes on with damage.
    """
    offset = store.min_offset
    while (record := store.record_at(offset)) is not None:
        if record.status not in (RecordStatus.MESSAGE, RecordStatus.BLANK):
            assert record.status is RecordStatus.UNWRITTEN, (
                f"{store.paths.commit_log}: {record.status.value} at {offset}: {record.why}"
            )
            break
        offset += record.size
    return offset


def stored_messages(root: Path, who: str, end: int) -> Iterator[Operation]:
    """Yield what the queues of a stopped store hold below a place in the log, as reads."""
    store = StoppedStore(root)
    for (topic, queue_id), queue in store.queues.items():
        if topic != TOPIC:
            continue
        for queue_offset, unit in store.units(queue, *store.bounds(queue)):
            if not store.min_offset <= unit.commit_offset < end:
                continue
            data = store.message_bytes(unit.commit_offset)
            assert data is not None, f"{who}: nothing sound at {unit.commit_offset}"
            message = decode_message(data)
            assert (message.topic, message.queue_id, message.queue_offset) == (
                *(topic, queue_id),
                queue_offset,
            ), f"{who}: {message} stands in {topic}/{queue_id}:{queue_offset}"
            now = time.monotonic()
            place = f"{topic}/{queue_id}", queue_offset
            yield Operation("read", who, now, now, "read", *place, digest(message.body))


def _first_difference(left: StoppedStore, right: StoppedStore, start: int, end: int) -> int | None:
    offset = start
    while offset < end:
        parts = [_part(store, offset, min(PART_SIZE, end - offset)) for store in (left, right)]
        size = min(len(part) for part in parts)
        assert size, f"a log has no file at {offset}"
        if parts[0][:size] != parts[1][:size]:
            return offset + next(
                place for place in range(size) if parts[0][place] != parts[1][place]
            )
        offset += size
    return None


def _part(store: StoppedStore, offset: int, size: int) -> bytes:
    file = store.log_file_at(offset)
    if file is None:
        return b""
    return store.read(file.path, size, offset - file.start)
