"""The keys of a message, as the key index takes them: hashes of `topic#key`.

A message is found by its unique key (property UNIQ_KEY) and by each part of its keys (property
KEYS, split at single spaces; a part that stands there twice counts twice). Rollback records have no
entries, prepared ones do.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../index/IndexService.java (buildIndex)
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from skylarkmq.kernel import twin
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.properties import KEY_SEPARATOR, KEYS, UNIQ_KEY, find_property
from skylarkmq.protocol.record import RecordView
from skylarkmq.protocol.tags_code import index_hash, index_hash_of_text, topic_prefix_code

if TYPE_CHECKING:
    from skylarkmq.store.log.append import Unit

# (key hash, physical offset of the record, its store time in ms): a plain tuple, one for each key
Entry = tuple[int, int, int]

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
def unit_entries(units: list[Unit]) -> list[Entry]:
    """Return the index entries of published records, in their order.

    This runs for every message: what `message_keys` does is written out here.
    """
    entries: list[Entry] = []
    append = entries.append
    last_topic, prefix_code = "", 0
    for queue, _, offset, _, _, properties, timestamp in units:
        topic = queue.topic
        if topic is not last_topic:
            last_topic, prefix_code = topic, topic_prefix_code(topic)
        at = properties.rfind(_UNIQUE)
        if at >= 0:
            end = properties.find(_END, at)
            key = (
                properties[at + _UNIQUE_SIZE : end] if end >= 0 else properties[at + _UNIQUE_SIZE :]
            )
            if not key or (at and properties[at - 1] != _END_BYTE):
                key = find_property(properties, _UNIQUE) or b""
            if key:
                append((index_hash(prefix_code, key), offset, timestamp))
        at = properties.rfind(_KEYS)
        if at >= 0:
            end = properties.find(_END, at)
            begin = at + _KEYS_SIZE
            key = properties[begin:end] if end >= 0 else properties[begin:]
            if not key or (at and properties[at - 1] != _END_BYTE):
                key = find_property(properties, _KEYS) or b""
            if key and _SPACE not in key:
                append((index_hash_of_text(prefix_code, key), offset, timestamp))
            elif key:
                for part in key.split(_SPACE):
                    if part:
                        append((index_hash_of_text(prefix_code, part), offset, timestamp))
    return entries


def record_entries(record: RecordView) -> list[Entry]:
    """Return the index entries of a record read from the log; none of a rollback."""
    if record.sys_flag & TRANSACTION_MASK == TRANSACTION_ROLLBACK:
        return []
    prefix_code = _prefix_code_of(record.topic)
    offset, timestamp = record.physical_offset, record.store_timestamp
    return [
        (index_hash_of_text(prefix_code, key), offset, timestamp)
        for key in message_keys(record.properties)
    ]


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
