"""The keys of a message, as the key index takes them: hashes of `topic#key`.

A message is found by its unique key (property UNIQ_KEY) and by each part of its keys (property
KEYS, split at single spaces; a part that stands there twice counts twice). Rollback records have no
entries, prepared ones do.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../index/IndexService.java (buildIndex)
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

from skylarkmq.kernel import twin
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.properties import KEY_SEPARATOR, KEYS, UNIQ_KEY, find_property
from skylarkmq.protocol.record import RecordView
from skylarkmq.protocol.tags_code import index_hash, index_hash_of_text, topic_prefix_code

Keyed = tuple[int, bytes, int]
"""A record whose entries are wanted: `topic_prefix_code` of its topic, properties, offset."""
ENTRY: Final = struct.Struct(">iqq")
"""One for each key: its hash, physical offset and store time, ms, of the record."""
ENTRY_SIZE: Final = ENTRY.size

TRANSACTION_MASK: Final = MessageSysFlag.TRANSACTION_MASK
TRANSACTION_ROLLBACK: Final = MessageSysFlag.TRANSACTION_ROLLBACK_TYPE
_UNIQUE: Final = UNIQ_KEY.encode() + b"\x01"
_UNIQUE_SIZE: Final = len(_UNIQUE)
_KEYS: Final = KEYS.encode() + b"\x01"
_KEYS_SIZE: Final = len(_KEYS)
_SPACE: Final = KEY_SEPARATOR.encode()
_END: Final = b"\x02"
_END_BYTE: Final = 0x02


@twin
def add_entries(entries: bytearray, keyed: list[Keyed], timestamp: int) -> None:
    """Add the entries of records that were stored at the same time, in their order.

    This runs for every message: what `message_keys` does is written out here.
    """
    pack = ENTRY.pack
    for prefix_code, properties, offset in keyed:
        at = properties.rfind(_UNIQUE)
        if at >= 0:
            end = properties.find(_END, at)
            key = (
                properties[at + _UNIQUE_SIZE : end] if end >= 0 else properties[at + _UNIQUE_SIZE :]
            )
            if not key or (at and properties[at - 1] != _END_BYTE):
                key = find_property(properties, _UNIQUE) or b""
            if key:
                entries += pack(index_hash(prefix_code, key), offset, timestamp)
        at = properties.rfind(_KEYS)
        if at >= 0:
            end = properties.find(_END, at)
            begin = at + _KEYS_SIZE
            key = properties[begin:end] if end >= 0 else properties[begin:]
            if not key or (at and properties[at - 1] != _END_BYTE):
                key = find_property(properties, _KEYS) or b""
            for part in key.split(_SPACE):
                if part:
                    entries += pack(index_hash_of_text(prefix_code, part), offset, timestamp)


def record_entries(record: RecordView) -> bytearray:
    """Return the index entries of a record read from the log; none of a rollback."""
    entries = bytearray()
    if record.sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK:
        keyed = _prefix_code_of(record.topic), record.properties, record.physical_offset
        add_entries(entries, [keyed], record.store_timestamp)
    return entries


def offset_of(entries: bytearray, position: int) -> int:
    """Return the physical offset of the record whose entry stands at a position."""
    offset: int = ENTRY.unpack_from(entries, position)[1]
    return offset


def message_keys(properties: bytes) -> list[bytes]:
    """Return what a message is found by: its unique key, then the parts of its keys."""
    keys: list[bytes] = []
    unique = find_property(properties, _UNIQUE)
    if unique:
        keys.append(unique)
    text = find_property(properties, _KEYS)
    if text:
        keys += [part for part in text.split(_SPACE) if part]
    return keys


@lru_cache(maxsize=4096)
def _prefix_code_of(topic: bytes) -> int:
    return topic_prefix_code(topic.decode("utf-8", "replace"))
