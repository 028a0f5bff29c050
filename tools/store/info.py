"""`store info`: what a folder holds, from names, sizes, the ends of files and the small files.

Quick for any size of store: of the log only the newest file is walked, of a queue the ends.
"""

from __future__ import annotations

from typing import Any

from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.sidecar import Kind, decode_sidecar
from skylarkmq.protocol.flags import RMQ_SYS_WHEEL_TIMER_TOPIC
from skylarkmq.protocol.record import RecordStatus
from skylarkmq.store.index.file import HEADER, HEADER_SIZE, IndexHeader
from skylarkmq.store.stopped.reader import QueueFolder, StoppedStore
from skylarkmq.store.stopped.walk import PlaceKind, walk
from skylarkmq.store.timer.checkpoint import CHECKPOINT_NAME, TimerState, read_checkpoint
from skylarkmq.store.timer.rules import TIMER_QUEUE_ID, cancelled_key, due_of
from skylarkmq.store.timer.run_file import ENTRY
from skylarkmq.tools.output import size_text, table, when
from skylarkmq.tools.store.derive import expired_end
from skylarkmq.tools.store.ownership import owner_of
from skylarkmq.tools.store.tables import BACKUP, TABLES, read_table

Info = dict[str, Any]


def gather(store: StoppedStore) -> Info:
    """Everything as the JSON output has it."""
    return {
        "root": str(store.paths.root),
        "running": owner_of(store.files, store.paths),
        "clean_stop": not store.is_unclean,
        "sizes": store.sizes.as_dict(),
        "sizes_known_from": store.sizes.origin,
        "commit_log": _log(store),
        "queues": [_queue(store, queue) for queue in store.queues.values()],
        "index": _index(store),
        "checkpoint": _checkpoint(store),
        "tables": _tables(store),
        "own_files": _own(store),
        "timed_messages": waiting_timers(store),
    }


def _log(store: StoppedStore) -> Info:
    files = store.log_files
    end_offset, last_ms, first_ms = store.min_offset, 0, 0
    if files:
        first = store.record_at(files[0].start, check_crc=False)
        first_ms = first.store_timestamp if first is not None else 0
    for place in walk(store, _newest_start(store), check_crc=False):
        if place.kind is PlaceKind.MESSAGE:
            end_offset, last_ms = place.offset + place.size, place.record.store_timestamp
    return {
        "folder": str(store.paths.commit_log),
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "min_offset": store.min_offset,
        "end_offset": end_offset,
        "first_store_timestamp": first_ms,
        "last_store_timestamp": last_ms,
    }


def _newest_start(store: StoppedStore) -> int:
    """Start of the newest file that begins with a record."""
    for file in reversed(store.log_files):
        record = store.record_at(file.start, check_crc=False)
        if record is not None and record.store_timestamp:
            return file.start
    return store.min_offset


def _queue(store: StoppedStore, queue: QueueFolder) -> Info:
    first, end = store.bounds(queue)
    return {
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "min_offset": expired_end(store, queue),
        "max_offset": end,
        "first_unit": first,
        "files": len(queue.files),
        "bytes": sum(file.size for file in queue.files),
        "ext_files": len(queue.ext_files),
    }


def _index(store: StoppedStore) -> Info:
    files: list[Info] = []
    for name in store.index_names:
        path = store.paths.index / name
        size, header = store.files.size(path), IndexHeader(0, 0, 0, 0, 0, 0)
        if size >= HEADER_SIZE:
            header = IndexHeader(*HEADER.unpack(store.read(path, HEADER_SIZE)))
        files.append({"name": name, "bytes": size, **header._asdict()})
    return {"files": files, "entries": sum(max(0, file["next_item"] - 1) for file in files)}


def _checkpoint(store: StoppedStore) -> Info:
    marks = store.marks
    point = marks.index_point
    return {
        "exists": store.files.exists(store.paths.checkpoint),
        "physic_timestamp": marks.physic_timestamp,
        "logics_timestamp": marks.logics_timestamp,
        "index_timestamp": marks.index_timestamp,
        "commit_log_offset": marks.commit_log_offset if marks.commit_log_offset >= 0 else None,
        "index_end_offset": point.end_offset if point is not None else None,
    }


def _tables(store: StoppedStore) -> list[Info]:
    found: list[Info] = []
    for name in TABLES:
        table_file = read_table(store, store.paths.config / name)
        backup = store.files.exists(store.paths.config / (name + BACKUP))
        if table_file is None and not backup:
            continue
        content = (table_file.content if table_file is not None else None) or {}
        found.append(
            {
                "name": name,
                "bytes": table_file.size if table_file is not None else None,
                "readable": bool(content),
                "entries": sum(len(part) for part in _maps(content)),
                "version": _counter(content.get("dataVersion")),
                "backup": backup,
            }
        )
    return found


def _counter(version: Any) -> Any:
    match version:
        case {"counter": counter}:
            return counter
        case _:
            return None


def _maps(content: Info) -> list[dict[str, Any]]:
    return [
        value for key, value in content.items() if isinstance(value, dict) and key != "dataVersion"
    ]


def _own(store: StoppedStore) -> list[Info]:
    found: list[Info] = []
    for kind, path in (
        (Kind.PROFILE, store.paths.profile),
        (Kind.RECOVERY_POINT, store.paths.recovery_point),
        (Kind.FLUSHED_OFFSET, store.paths.flushed_offset),
        (Kind.CUT_BACK, store.paths.cut_back),
        (Kind.TIMER_CHECKPOINT, store.paths.timer / CHECKPOINT_NAME),
        (Kind.DELAY_HISTORY, store.paths.delay_history),
    ):
        if store.files.exists(path):
            data = store.files.read_all(path)
            try:
                content, why = decode_sidecar(path, kind, data), None
            except CorruptFileError as error:
                content, why = None, str(error)
            version = int.from_bytes(data[4:6], "big")
            name = str(path.relative_to(store.paths.own))
            found.append({"name": name, "version": version, "content": content, "damage": why})
    return found


def lines(info: Info) -> list[str]:
    """The same for humans."""
    log, index, checkpoint = info["commit_log"], info["index"], info["checkpoint"]
    state = "stopped cleanly" if info["clean_stop"] else "not stopped cleanly (abort is there)"
    if info["running"]:
        state = f"in use by {info['running']}"
    origin = info["sizes_known_from"]
    names = ("log", "queue", "ext", "index", "index")
    text = [
        f"store       {info['root']}, {state}",
        f"commit log  {log['files']} files, {size_text(log['bytes'])}, "
        f"offsets {log['min_offset']} to {log['end_offset']}",
        f"            stored {when(log['first_store_timestamp'])} "
        f"to {when(log['last_store_timestamp'])}",
        f"index       {len(index['files'])} files, {index['entries']} entries",
        f"checkpoint  log {when(checkpoint['physic_timestamp'])}, "
        f"queues {when(checkpoint['logics_timestamp'])}, "
        f"index {when(checkpoint['index_timestamp'])}",
    ]
    if checkpoint["commit_log_offset"] is not None:
        text.append(f"            recovery would begin at {checkpoint['commit_log_offset']}")
    text += [
        f"size        {key}={value} (from {origin[name]})"
        for name, (key, value) in zip(names, info["sizes"].items(), strict=True)
    ]
    text += [
        f"own file    {own['name']} version {own['version']}"
        + (f": {own['damage']}" if own["damage"] else "")
        for own in info["own_files"]
    ]
    if info["timed_messages"]:
        text.append(
            f"timed       {info['timed_messages']} messages of rmq_sys_wheel_timer are not "
            "delivered; a RocketMQ 4.9 broker would not deliver them"
        )
    tables = ("name", "bytes", "readable", "entries", "version", "backup")
    queues = ("topic", "queue_id", "min_offset", "max_offset", "files", "bytes")
    for columns, rows in ((tables, info["tables"]), (queues, info["queues"])):
        if rows:
            text += ["", *table(columns, [[row[column] for column in columns] for row in rows])]
    return text


def waiting_timers(store: StoppedStore) -> int:
    """Messages of the timer topic that wait; all that are there without a checkpoint."""
    queue = store.queues.get((RMQ_SYS_WHEEL_TIMER_TOPIC, TIMER_QUEUE_ID))
    if queue is None:
        return 0
    state = TimerState()
    newest = store.paths.timer / CHECKPOINT_NAME
    content = read_checkpoint(store.files, newest)
    if content is not None:
        state.take_over(content)
    else:
        content = read_checkpoint(store.files, newest.with_name(CHECKPOINT_NAME + BACKUP))
        if content is not None:
            state.take_over(content)
            state.rebuild()  # as the broker will: the runs may be newer
    count = state.messages.waiting_count
    first, end = store.bounds(queue)
    for queue_offset, unit in store.units(queue, max(first, state.queue_offset), end):
        record = store.record_at(unit.commit_offset, check_crc=False)
        if record is None or record.status is not RecordStatus.MESSAGE:
            continue
        text = record.properties
        due_ms = max(0, due_of(text) or 0)
        entry = ENTRY.pack(due_ms, queue_offset, unit.commit_offset, unit.record_size)
        if cancelled_key(text) is None:
            known = state.knows(entry, queue_offset, unit.commit_offset, is_cancel=False)
            count += not known
    return count
