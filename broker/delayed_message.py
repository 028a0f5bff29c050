"""A delayed message on its way out: from its parked record to the message that is delivered.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../schedule/ScheduleMessageService.java
(messageTimeup)
"""

from __future__ import annotations

from typing import Final

from skylarkmq.protocol import properties as names
from skylarkmq.protocol.flags import (
    RMQ_SYS_SCHEDULE_TOPIC,
    RMQ_SYS_TRANS_HALF_TOPIC,
    validate_topic,
)
from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.properties import find_property
from skylarkmq.protocol.record import RecordStatus, decode_message, read_record
from skylarkmq.protocol.tags_code import cached_tags_code
from skylarkmq.store.commit_log import CommitLog
from skylarkmq.store.results import ConsumeQueueUnit, MessageInner

_REAL_TOPIC: Final = names.REAL_TOPIC.encode() + b"\x01"
_REAL_QID: Final = names.REAL_QID.encode() + b"\x01"
_TAGS: Final = names.TAGS.encode() + b"\x01"
_FORBIDDEN: Final = frozenset({RMQ_SYS_SCHEDULE_TOPIC, RMQ_SYS_TRANS_HALF_TOPIC})
NO_RECORD: Final = "no sound record is where it should be in the log"
_INT_MAX: Final = 0x7FFFFFFF


def read_parked(
    commit_log: CommitLog, unit: ConsumeQueueUnit, queue_id: int, queue_offset: int
) -> MessageInner:
    """Return the copy to deliver of the message that unit `queue_offset` of a queue points at.

    Raises:
        ValueError: no sound record is there, it is another one, or it names no possible target.
    """
    found = commit_log.locate(unit.commit_offset)
    if found is None:
        raise ValueError(NO_RECORD)
    mapped, position = found
    limit = mapped.committed_position
    return _parse(mapped.view, position, limit, unit.commit_offset, queue_id, queue_offset)


def parse_parked(
    record: bytes | None, physical_offset: int, queue_id: int, queue_offset: int
) -> MessageInner:
    """As `read_parked`, of a record that was read already; None is one that was not to be had.

    Raises:
        ValueError: as `read_parked`.
    """
    if record is None:
        raise ValueError(NO_RECORD)
    return _parse(record, 0, len(record), physical_offset, queue_id, queue_offset)


def _parse(
    buffer: memoryview | bytes,
    position: int,
    limit: int,
    physical_offset: int,
    queue_id: int,
    queue_offset: int,
) -> MessageInner:
    view = read_record(buffer, position, limit=limit, physical_offset=physical_offset)
    if view.status is not RecordStatus.MESSAGE:
        raise ValueError(f"its record is damaged: {view.why}")
    if (view.queue_id, view.queue_offset) != (queue_id, queue_offset):
        raise ValueError(f"it is message {view.queue_offset} of queue {view.queue_id}")
    return restore(decode_message(buffer, position, check_crc=False), view.properties)


def restore(parked: MessageExt, properties: bytes) -> MessageInner:
    """Return the copy of a parked message that goes to its real topic and queue.

    Args:
        properties: the parked record's own encoded text, which the copy keeps: DELAY, REAL_TOPIC
            and REAL_QID stay to be seen.

    Raises:
        ValueError: the record is no parked message, or names no target that may be delivered to.
    """
    if parked.topic != RMQ_SYS_SCHEDULE_TOPIC:
        raise ValueError(f"it is a record of the topic {parked.topic}")
    topic = (find_property(properties, _REAL_TOPIC) or b"").decode("utf-8", "replace")
    queue_text = find_property(properties, _REAL_QID) or b""
    why = validate_topic(topic)
    if why is not None:
        raise ValueError(f"{names.REAL_TOPIC}: {why}")
    if topic in _FORBIDDEN:
        raise ValueError(f"{names.REAL_TOPIC}: {topic} takes no delivered messages")
    if not queue_text.isdigit() or len(queue_text) > 10 or int(queue_text) > _INT_MAX:
        raise ValueError(f"{names.REAL_QID}: {queue_text[:32]!r} is no queue")
    return MessageInner(
        topic=topic,
        queue_id=int(queue_text),
        body=parked.body,
        properties=properties,
        born_host=parked.born_host.pack(),
        store_host=parked.store_host.pack(),
        born_timestamp=parked.born_timestamp,
        tags_code=cached_tags_code(find_property(properties, _TAGS) or b""),
        flag=parked.flag,
        sys_flag=parked.sys_flag,
        reconsume_times=parked.reconsume_times,
    )
