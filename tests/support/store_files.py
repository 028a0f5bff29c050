"""A second, strict reader of RocketMQ 4.9's store files, which shares no code with the product.

It takes the files as bytes by their path below the root and knows the layouts alone: records of the
commit log, the blank record at a file's end, 20-byte queue units. Anything else is an error.
Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java, ConsumeQueue.java
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

MESSAGE = 0xDAA320A7
BLANK = 0xCBD43194
UNIT_SIZE = 20
FIXED_SIZE = 88  # in front of the body, both hosts IPv4
PADDING_SIZE = 0x7FFFFFFF


class FormatError(AssertionError):
    """The bytes are not what RocketMQ 4.9 writes."""


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A message as it stands in the log."""

    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_timestamp: int
    body: bytes
    properties: dict[str, str]

    @property
    def queue(self) -> tuple[str, int]:
        return self.topic, self.queue_id


@dataclass(slots=True)
class LogFiles:
    """The whole commit log."""

    records: list[LogRecord]
    begin_offset: int  # of the first file
    end_offset: int  # behind the last record
    rolls: int  # blank records


class QueueUnits(NamedTuple):
    """What the files of a queue hold."""

    first: int  # queue offset of the first one; the files in front of it have gone
    units: list[tuple[int, int, int]]  # offset in the log, size, tags code


def _number(data: bytes, position: int, size: int) -> int:
    return int.from_bytes(data[position : position + size], "big", signed=True)


def _parse_record(data: bytes, position: int, where: str) -> LogRecord:
    size = _number(data, position, 4)
    if not FIXED_SIZE + 3 <= size <= len(data) - position:
        raise FormatError(f"{where}: a record of {size} bytes")
    record = data[position : position + size]
    sys_flag = _number(record, 36, 4)
    if sys_flag & 0x30:
        raise FormatError(f"{where}: this reader knows IPv4 hosts only")
    body_end = FIXED_SIZE + _number(record, 84, 4)
    body = record[FIXED_SIZE:body_end]
    topic_end = body_end + 1 + record[body_end]
    properties = record[topic_end + 2 :]
    if _number(record, topic_end, 2) != len(properties):
        raise FormatError(f"{where}: the record's lengths do not add up")
    if zlib.crc32(body) & 0x7FFFFFFF != _number(record, 8, 4):
        raise FormatError(f"{where}: wrong body CRC")
    pairs = [pair.split("\x01") for pair in properties.decode().split("\x02") if pair]
    return LogRecord(
        physical_offset=_number(record, 28, 8),
        size=size,
        topic=record[body_end + 1 : topic_end].decode(),
        queue_id=_number(record, 12, 4),
        queue_offset=_number(record, 20, 8),
        sys_flag=sys_flag,
        store_timestamp=_number(record, 56, 8),
        body=body,
        properties={name: value for name, value in pairs},
    )


def read_log(files: Mapping[str, bytes], file_size: int) -> LogFiles:
    """Read the commit log from its first file to its end; behind the end all must be zeros.

    Raises:
        FormatError: a file, record or tail is not as it must be.
    """
    names = sorted(name for name in files if name.startswith("commitlog/"))
    begin_offset = int(names[0][10:]) if names else 0
    result = LogFiles([], begin_offset, begin_offset, 0)
    ended = False
    for number, name in enumerate(names):
        data, start = files[name], int(name[10:])
        if len(name) != 30 or len(data) != file_size:
            raise FormatError(f"{name} has {len(data)} bytes")
        if start != int(names[0][10:]) + number * file_size:
            raise FormatError(f"{name} does not follow its predecessor")
        if not ended:
            ended = not _read_file(data, start, name, result)
        elif any(data):
            raise FormatError(f"{name} lies behind the end of the log and is not empty")
    return result


def _read_file(data: bytes, start: int, name: str, result: LogFiles) -> bool:
    """Read one file; True when it ends with a blank record, so that the next one goes on."""
    position = 0
    while position + 8 <= len(data):
        size, magic = _number(data, position, 4), _number(data, position + 4, 4) & 0xFFFFFFFF
        where = f"{name} at {position}"
        if magic == BLANK:
            if size != len(data) - position:
                raise FormatError(f"{where}: a blank of {size} bytes")
            result.rolls += 1
            return True
        if magic != MESSAGE:
            if any(data[position:]):
                raise FormatError(f"{where}: leftovers behind the end of the log")
            return False
        record = _parse_record(data, position, where)
        if record.physical_offset != start + position:
            raise FormatError(f"{where}: the record says offset {record.physical_offset}")
        result.records.append(record)
        position += size
        result.end_offset = start + position
    raise FormatError(f"{name} has no blank record at its end")


def read_queues(files: Mapping[str, bytes], file_size: int) -> dict[tuple[str, int], QueueUnits]:
    """Read all units of all queues; behind the last unit of a queue all must be zeros.

    Raises:
        FormatError: a file or unit is not as it must be, or a queue has a hole.
    """
    queues: dict[tuple[str, int], QueueUnits] = {}
    ended: set[tuple[str, int]] = set()
    for name in sorted(name for name in files if name.startswith("consumequeue/")):
        _, topic, queue_id, start = name.split("/")
        key, data = (topic, int(queue_id)), files[name]
        if len(start) != 20 or len(data) != file_size:
            raise FormatError(f"{name} has {len(data)} bytes")
        first, units = queues.setdefault(key, QueueUnits(int(start) // UNIT_SIZE, []))
        if int(start) != (first + len(units)) * UNIT_SIZE and key not in ended:
            raise FormatError(f"{name} does not follow unit {first + len(units)}")
        for position in range(0, file_size, UNIT_SIZE):
            unit = (
                _number(data, position, 8),
                _number(data, position + 8, 4),
                _number(data, position + 12, 8),
            )
            if unit == (0, 0, 0):
                ended.add(key)
            elif key in ended:
                raise FormatError(f"{name} at {position}: a unit behind the end of the queue")
            else:
                units.append(unit)
    return queues


def java_hash(text: str) -> int:
    """Java's String.hashCode of ASCII text."""
    value = 0
    for char in text:
        value = (value * 31 + ord(char)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
