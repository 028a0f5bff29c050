"""The units of consume queues that a record of the log should have."""

from __future__ import annotations

from typing import Final, NamedTuple

from skylarkmq.protocol.flags import RMQ_SYS_SCHEDULE_TOPIC, MessageSysFlag
from skylarkmq.protocol.properties import find_property
from skylarkmq.protocol.record import RecordView
from skylarkmq.protocol.tags_code import cached_tags_code
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.queue.topic_removal import RemovedTopics

_QUEUED: Final = (0, MessageSysFlag.TRANSACTION_COMMIT_TYPE)
_DISPATCH: Final = b"INNER_MULTI_DISPATCH\x01"
_DISPATCH_OFFSETS: Final = b"INNER_MULTI_QUEUE_OFFSET\x01"
_LMQ_PREFIX: Final = "%LMQ%"


class QueuePlace(NamedTuple):
    """The unit that a record should have."""

    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int


def is_queued(record: RecordView) -> bool:
    """Return whether a message belongs into a queue: prepared and rolled-back ones do not."""
    return record.sys_flag & MessageSysFlag.TRANSACTION_MASK in _QUEUED


def queue_places(
    record: RecordView, levels: DelayLevels, removed: RemovedTopics | None = None
) -> list[QueuePlace]:
    """Return the units that a record should have: its own, and those of the light queues it names.

    Args:
        removed: topics whose records have none.

    Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../ConsumeQueue.java (multiDispatchLmqQueue)
    """
    if not is_queued(record):
        return []
    topic = record.topic.decode("utf-8", "replace")
    if removed is not None and removed.hides(topic, record.physical_offset):
        return []
    code = _tags_code(topic, record, levels)
    places = [QueuePlace(topic, record.queue_id, record.queue_offset, code)]
    if record.properties.find(_DISPATCH) >= 0:
        names = (find_property(record.properties, _DISPATCH) or b"").split(b",")
        offsets = (find_property(record.properties, _DISPATCH_OFFSETS) or b"").split(b",")
        if len(names) == len(offsets) and all(offset.isdigit() for offset in offsets):
            for raw, offset in zip(names, offsets, strict=True):
                name = raw.decode("utf-8", "replace")
                queue_id = 0 if name.startswith(_LMQ_PREFIX) else record.queue_id
                places.append(QueuePlace(name, queue_id, int(offset), code))
    return places


def _tags_code(topic: str, record: RecordView, levels: DelayLevels) -> int:
    if topic == RMQ_SYS_SCHEDULE_TOPIC:
        level = levels.level_of(record.properties)
        if level:
            return levels.due_time(level, record.store_timestamp)
    return 0 if record.tags is None else cached_tags_code(record.tags)
