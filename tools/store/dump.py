"""`store dump`: the layout of one file of a store, row by row, each with its byte place.

What a file is follows from its name and folder. Rows are dicts, printed as they come: of a file of
any size no more than a row is in memory. The journal of pop consumption is read whole, as its
broker does; its folder stands for all of its files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from skylarkmq.common.errors import CorruptFileError, StoreError
from skylarkmq.common.files import StoreFile
from skylarkmq.common.sidecar import Kind, decode_sidecar
from skylarkmq.protocol.host_address import unpack_host
from skylarkmq.protocol.properties import decode_properties
from skylarkmq.protocol.record import (
    FIXED_BY_HOSTS,
    FIXED_IPV4_SIZE,
    HOSTS_MASK,
    HOSTS_SHIFT,
    SYS_FLAG_POSITION,
    RecordStatus,
)
from skylarkmq.store.checkpoint import FIELDS
from skylarkmq.store.index.file import (
    FIRST_ITEM,
    HEADER,
    HEADER_SIZE,
    ITEM,
    ITEM_SIZE,
    SLOT,
    SLOT_SIZE,
    IndexHeader,
    IndexShape,
)
from skylarkmq.store.log.mapped_file import first_written, is_file_name
from skylarkmq.store.queue.consume_queue import PRE_BLANK_SIZE, UNIT, UNIT_SIZE, is_valid_unit
from skylarkmq.store.queue.extension import EXT_UNIT, EXT_UNIT_SIZE, LONG_MIN, is_address
from skylarkmq.store.stopped.reader import StoppedStore
from skylarkmq.store.stopped.segments import SegmentFile
from skylarkmq.tools.store.pop_journal import file_rows, state_rows
from skylarkmq.tools.store.tables import parse

Row = dict[str, Any]
Rows = Iterator[Row]

_FIELDS: Final = (
    "total_size",
    "magic",
    "body_crc",
    "queue_id",
    "flag",
    "queue_offset",
    "physical_offset",
    "sys_flag",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
    "body_size",
)
_HOSTS: Final = ("born_host", "store_host")
_MASK: Final = 0xFFFFFFFF
_NO_SHAPE: Final = "its slots and items are not known; give --slots"
_SIDECARS: Final = {
    "profile": Kind.PROFILE,
    "recovery-point": Kind.RECOVERY_POINT,
    "flushed-offset": Kind.FLUSHED_OFFSET,
    "cut-back": Kind.CUT_BACK,
    "terms": Kind.TERMS,
    "replica": Kind.REPLICA,
}


def kind_of(path: Path) -> str:
    """What a file is: log, queue, ext, index, checkpoint, json, own or pop.

    Raises:
        StoreError: nothing that a store has.
    """
    folder = path.parent.name
    if ("skylarkmq", "pop") in (path.parts[-2:], path.parts[-3:-1]):
        return "pop"
    if is_file_name(path.name):
        above = path.parent.parent.parent.name
        if above in ("consumequeue", "consumequeue_ext"):
            return "queue" if above == "consumequeue" else "ext"
        return "log"
    if folder == "index" and path.name.isdigit():
        return "index"
    if path.name == "checkpoint":
        return "checkpoint"
    if folder == "skylarkmq" and path.name in _SIDECARS:
        return "own"
    if ".json" in path.name:
        return "json"
    raise StoreError(f"{path} is no file of a store; name its layout with --as")


def rows(store: StoppedStore, path: Path, kind: str, *, start: int, slots: bool = False) -> Rows:
    """Rows of a file from byte `start` on.

    Args:
        slots: of an index file, print the slots in use too.

    Raises:
        CorruptFileError: the file has no layout of this kind.
    """
    if kind == "pop" and store.files.is_folder(path):
        return state_rows(store.files, path)
    if kind == "index" and store.sizes.index is None:
        raise CorruptFileError(path, 0, _NO_SHAPE)
    return _rows(store, path, kind, start, slots=slots)


def _rows(store: StoppedStore, path: Path, kind: str, start: int, *, slots: bool) -> Rows:
    with store.opened(path) as file:
        if kind == "log":
            yield from _log_rows(SegmentFile(file, _start_of(path)), start)
        elif kind == "queue":
            yield from _queue_rows(file, _start_of(path), start)
        elif kind == "ext":
            yield from _ext_rows(file, _start_of(path), start)
        elif kind == "index":
            shape = store.sizes.index
            if shape is None or shape.file_size != file.size:
                raise CorruptFileError(path, 0, _NO_SHAPE)
            yield from _index_rows(file, shape, slots=slots)
        else:
            yield from _SMALL[kind](path, file.pread(file.size, 0))


def _start_of(path: Path) -> int:
    return int(path.name) if is_file_name(path.name) else 0


def record_row(view: bytes, position: int) -> Row:
    """The fields of a message's record, its body left out."""
    hosts = (view[position + SYS_FLAG_POSITION + 3] >> HOSTS_SHIFT) & HOSTS_MASK
    layout = FIXED_BY_HOSTS[hosts]
    if len(view) - position < layout.size:
        return {}
    row: Row = dict(zip(_FIELDS, layout.unpack_from(view, position), strict=True))
    row["magic"] = f"{row['magic'] & _MASK:#010x}"
    for name in _HOSTS:
        row[name] = str(unpack_host(row[name]))
    return row


def _log_rows(file: SegmentFile, start: int) -> Rows:
    for position, size, look, _ in file.pieces(start, check_crc=True):
        record, at = look.record, position - look.begin
        place: Row = {"kind": record.status.value, "position": position}
        if record.status is RecordStatus.MESSAGE:
            properties = record.properties.decode("utf-8", "replace")
            yield {
                **place,
                **record_row(look.data, at),
                "topic": record.topic.decode("utf-8", "replace"),
                "properties": decode_properties(properties),
            }
            continue
        fields: Row = {}
        if record.status in (RecordStatus.TORN, RecordStatus.CORRUPT) and (
            file.size - position >= FIXED_IPV4_SIZE
        ):
            fields = record_row(look.data, at)
        yield {**place, "size": size, "why": record.why or None, **fields}


def _queue_rows(file: StoreFile, file_start: int, position: int) -> Rows:
    position -= position % UNIT_SIZE
    while position + UNIT_SIZE <= file.size:
        offset, size, code = UNIT.unpack(file.pread(UNIT_SIZE, position))
        if not is_valid_unit(offset, size) and first_written(file, position) is None:
            yield {"kind": "unwritten", "position": position, "size": file.size - position}
            return
        yield {
            "kind": "padding" if size == PRE_BLANK_SIZE else "unit" if size > 0 else "invalid",
            "position": position,
            "queue_offset": (file_start + position) // UNIT_SIZE,
            "commit_offset": offset,
            "record_size": size,
            "tags_code": code,
            "ext_offset": code - LONG_MIN if is_address(code) else None,
        }
        position += UNIT_SIZE


def _ext_rows(file: StoreFile, file_start: int, position: int) -> Rows:
    while file.size - position >= EXT_UNIT_SIZE:
        size = int.from_bytes(file.pread(2, position), signed=True)
        if size < EXT_UNIT_SIZE:
            kind = "unwritten" if size == 0 else "end" if size < 0 else "invalid"
            yield {"kind": kind, "position": position, "size": file.size - position}
            return
        unit = file.pread(size, position)
        _, code, timestamp, bitmap_size = EXT_UNIT.unpack_from(unit, 0)
        bitmap = unit[EXT_UNIT_SIZE:]
        yield {
            "kind": "unit",
            "position": position,
            "offset": file_start + position,
            "size": size,
            "tags_code": code,
            "store_timestamp": timestamp,
            "bitmap_size": bitmap_size,
            "bitmap": bitmap.hex(),
        }
        position += size


def _index_rows(file: StoreFile, shape: IndexShape, *, slots: bool) -> Rows:
    header = IndexHeader(*HEADER.unpack(file.pread(HEADER_SIZE, 0)))
    yield {
        "kind": "header",
        "position": 0,
        **header._asdict(),
        "slot_count": shape.slot_count,
        "item_count": shape.item_count,
    }
    if slots:
        for slot in range(shape.slot_count):
            position = HEADER_SIZE + slot * SLOT_SIZE
            number = SLOT.unpack(file.pread(SLOT_SIZE, position))[0]
            if number:
                yield {"kind": "slot", "position": position, "slot": slot, "item": number}
    for number in range(FIRST_ITEM, min(header.next_item, shape.item_count)):
        position = shape.item_position(number)
        key_hash, offset, seconds, previous = ITEM.unpack(file.pread(ITEM_SIZE, position))
        yield {
            "kind": "item",
            "position": position,
            "item": number,
            "key_hash": key_hash,
            "slot": key_hash % shape.slot_count,
            "physical_offset": offset,
            "time_difference": seconds,
            "previous": previous,
        }


def _checkpoint_rows(_path: Path, data: bytes) -> Rows:
    if len(data) < FIELDS.size:
        yield {"kind": "damage", "position": len(data), "why": "the file is too short"}
        return
    physic, logics, index = FIELDS.unpack_from(data, 0)
    yield {
        "kind": "checkpoint",
        "position": 0,
        "physic_timestamp": physic,
        "logics_timestamp": logics,
        "index_timestamp": index,
        "size": len(data),
    }


def _json_rows(path: Path, data: bytes) -> Rows:
    content, position, why = parse(data)
    if content is None:
        raise CorruptFileError(path, position, why)
    yield {"kind": "json", "position": 0, "content": content}


def _own_rows(path: Path, data: bytes) -> Rows:
    content = decode_sidecar(path, _SIDECARS[path.name], data)
    yield {"kind": path.name, "position": 0, "content": content}


def _pop_rows(path: Path, data: bytes) -> Rows:
    return file_rows(path, _start_of(path), data)


_SMALL: Final[dict[str, Callable[[Path, bytes], Rows]]] = {
    "checkpoint": _checkpoint_rows, "json": _json_rows, "own": _own_rows, "pop": _pop_rows,
}  # fmt: skip
