"""`store dump` of pop consumption's journal: one file of it, or what all of them add up to.

Of the folder `<root>/skylarkmq/pop`, what a broker that starts now would read:

    journal    the files, and whether a broker has stopped cleanly behind all that they say
    torn       where the last file ends early, as a crash leaves it
    damage     where a file ends early that had been on the disk: messages are delivered again
    queue      one for each queue of a group
    message    the messages of that queue that are in flight, by their offsets

The broker holds this against the queues when it starts, and leaves out what is no longer true.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from skylarkmq.common.read_only_files import ReadOnlyFiles
from skylarkmq.store.pop.journal_file import (
    HEAD_SIZE,
    VERSION,
    file_numbers,
    fold_files,
    frames_of,
    has_head,
)
from skylarkmq.store.pop.journal_records import (
    ACKNOWLEDGED,
    UNKNOWN,
    Forgot,
    Key,
    Record,
    Row,
    State,
    Took,
)

Rows = Iterator[dict[str, Any]]

_SOURCES: Final = {0: "topic", 1: "retries", 2: "old_retries", 3: "plus_retries"}
"""By the kind of a key: the topic, `%RETRY%<group>_<topic>`, `%RETRY%<group>`, `%RETRY%<g>+<t>`."""
_NAMES: Final = {
    "offset": "queue_offset",
    "visible_ms": "visible_timestamp",
    "copy_physical": "copy_physical_offset",
    "end_physical": "end_physical_offset",
}


def state_rows(files: ReadOnlyFiles, folder: Path) -> Rows:
    """Rows of what all files of the folder add up to.

    Raises:
        CorruptFileError: a file was written by a later release.
    """
    state, tear = fold_files(files, folder)
    yield {
        "kind": "journal",
        "files": file_numbers(files, folder),
        "clean": state.is_clean,
        "last_serial": state.last_serial,
        "queues": len(state.keys),
        "in_flight": sum(len(found.rows) for found in state.keys.values()),
    }
    if tear is not None:
        kind = "damage" if tear.is_damage else "torn"
        yield {"kind": kind, "position": tear.position, "file": tear.path.name}
    for key, found in sorted(state.keys.items()):
        yield {
            "kind": "queue",
            **_queue(key),
            "done_below": found.mark,
            "next_offset": found.next_offset,
            "in_flight": len(found.rows),
            "attempt_id": found.attempt_id or None,
        }
        for row in found.rows.values():
            yield {"kind": "message", **_queue(key), **_message(row)}


def file_rows(path: Path, number: int, data: bytes) -> Rows:
    """Rows of one file, each with the place of its frame.

    Raises:
        CorruptFileError: it was written by a later release.
    """
    position = 0
    if has_head(path, number, data):
        yield {"kind": "header", "position": 0, "version": VERSION, "number": number}
        position = HEAD_SIZE
        for frame in frames_of(data):
            for record in frame.records:
                kind = type(record).__name__.lower()
                yield {"kind": kind, "position": frame.position, **_record(record)}
            position = frame.position + frame.size
    rest = data[position:]
    if rest:
        kind = "damage" if rest.strip(b"\0") else "unwritten"
        yield {"kind": kind, "position": position, "size": len(rest)}


def _record(record: Record) -> dict[str, Any]:
    match record:
        case Took(key, next_offset, end_physical, rows, attempt_id):
            pass
        case State(key, state):
            next_offset, end_physical = state.next_offset, state.end_physical
            rows, attempt_id = tuple(state.rows.values()), state.attempt_id
        case Forgot(group, topic):
            return {"group": group, "topic": topic}
        case _:
            fields = {
                _NAMES.get(name, name): None if value == UNKNOWN else value
                for name, value in record._asdict().items()
            }
            named: Key | None = fields.pop("key", None)
            return fields if named is None else {**_queue(named), **fields}
    return {
        **_queue(key),
        "next_offset": next_offset,
        "end_physical_offset": None if end_physical == UNKNOWN else end_physical,
        "attempt_id": attempt_id or None,
        "messages": [_message(row) for row in rows],
    }


def _queue(key: Key) -> dict[str, Any]:
    return {
        "group": key.group,
        "topic": key.topic or None,
        "source": _SOURCES.get(key.kind, key.kind),
        "queue_id": key.queue_id,
    }


def _message(row: Row) -> dict[str, Any]:
    return {
        "queue_offset": row.offset,
        "physical_offset": row.physical_offset,
        "attempt": row.attempt,
        "serial": row.serial or None,
        "visible_timestamp": None if row.visible_ms == ACKNOWLEDGED else row.visible_ms,
        "copy_physical_offset": None if row.copy_physical == UNKNOWN else row.copy_physical,
    }
