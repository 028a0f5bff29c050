"""A delayed message on its way out: from its parked record to the message that is delivered.

It is parked in the schedule topic (a delay level) or in the timer topic (a delay of its own); the
copy keeps body, properties, flags, born time and hosts, and goes where REAL_TOPIC and REAL_QID say.
DELAY, REAL_TOPIC and REAL_QID stay to be seen, and so do their relatives of timers.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../schedule/ScheduleMessageService.java
(messageTimeup), apache/rocketmq@rocketmq-all-5.3.3 store/.../timer/TimerMessageStore.java (convert)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from skylarkmq.protocol import properties as names
from skylarkmq.protocol.flags import (
    RMQ_SYS_SCHEDULE_TOPIC,
    RMQ_SYS_TRANS_HALF_TOPIC,
    RMQ_SYS_WHEEL_TIMER_TOPIC,
    validate_topic,
)
from skylarkmq.protocol.properties import TAGS_AND_SEPARATOR, find_property
from skylarkmq.protocol.record import (
    FIXED_BY_HOSTS,
    HOSTS_MASK,
    HOSTS_SHIFT,
    PROPERTIES_SIZE,
    SYS_FLAG_POSITION,
    RecordStatus,
    is_intact,
    read_record,
)
from skylarkmq.protocol.tags_code import cached_tags_code
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.queue.topic_removal import RemovedTopics
from skylarkmq.store.results import MessageInner

_REAL_TOPIC: Final = names.REAL_TOPIC.encode() + b"\x01"
_REAL_QID: Final = names.REAL_QID.encode() + b"\x01"
_FORBIDDEN: Final = frozenset(
    {RMQ_SYS_SCHEDULE_TOPIC, RMQ_SYS_TRANS_HALF_TOPIC, RMQ_SYS_WHEEL_TIMER_TOPIC}
)
NO_RECORD: Final = "no sound record is where it should be in the log"
_INT_MAX: Final = 0x7FFFFFFF


class Place(NamedTuple):
    """Where a parked message is, by its queue unit."""

    physical_offset: int
    record_size: int
    queue_offset: int


class Parked(NamedTuple):
    """What a parked record holds that its copies keep."""

    body: bytes
    properties: bytes  # encoded text
    born_timestamp: int
    born_host: bytes  # packed
    store_timestamp: int
    store_host: bytes  # packed
    flag: int
    sys_flag: int
    reconsume_times: int


class ParkedReader:
    """Reads the parked messages of one queue. Loop thread."""

    __slots__ = ("_log", "_owner")

    def __init__(self, commit_log: CommitLog, topic: str, queue_id: int) -> None:
        self._log = commit_log
        encoded = topic.encode("ascii")
        self._owner = (queue_id, bytes((len(encoded),)) + encoded)

    def read(
        self, place: Place, records: Sequence[bytes | None] | None = None, number: int = 0
    ) -> Parked:
        """Return the parked message that is at a place of the log.

        Args:
            records: what was read off the loop, the record of this place at `number`; None when
                the place is in memory.

        Raises:
            ValueError: no sound record is there, or it is another one.
        """
        if records is not None:
            return self.parse(records[number], place)
        found = self._log.locate(place.physical_offset)
        if found is None:
            raise ValueError(NO_RECORD)
        mapped, position = found
        end = min(position + place.record_size, mapped.committed_position)
        return self._parse(mapped.view[position:end], place)

    def parse(self, record: bytes | None, place: Place) -> Parked:
        """Do as `read` with a record that was read already; None is one that could not be read.

        Raises:
            ValueError: as `read`.
        """
        if record is None:
            raise ValueError(NO_RECORD)
        return self._parse(record, place)

    def _parse(self, record: memoryview | bytes, place: Place) -> Parked:
        physical_offset, size, queue_offset = place
        if not is_intact(record, 0, size, physical_offset, queue_offset, self._owner):
            raise ValueError(self._fault(record, place))
        hosts = (record[SYS_FLAG_POSITION + 3] >> HOSTS_SHIFT) & HOSTS_MASK
        layout = FIXED_BY_HOSTS[hosts]
        (
            _, _, _, _, flag, _, _, sys_flag, born_timestamp, born_host, store_timestamp,
            store_host, reconsume_times, _, body_size,
        ) = layout.unpack_from(record)  # fmt: skip
        body_end: int = layout.size + body_size
        topic_end = body_end + len(self._owner[1])
        start = topic_end + PROPERTIES_SIZE.size
        properties = bytes(record[start:])
        size_field = record[topic_end:start]
        if int.from_bytes(size_field, "big") != len(properties) or properties.find(0) >= 0:
            raise ValueError("its record is damaged: topic and properties do not add up")
        return Parked(
            bytes(record[layout.size : body_end]),
            properties,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            flag,
            sys_flag,
            reconsume_times,
        )

    def _fault(self, record: memoryview | bytes, place: Place) -> str:
        view = read_record(record, 0, physical_offset=place.physical_offset)
        if view.status is not RecordStatus.MESSAGE:
            return f"its record is damaged: {view.why}"
        topic = view.topic.decode("utf-8", "replace")
        return f"it is message {view.queue_offset} of queue {view.queue_id} of {topic!a}"


def is_gone(parked: Parked, place: Place, removed: RemovedTopics) -> bool:
    """Return whether the topic of a parked message was deleted after the message was sent.

    Unlike RocketMQ, which delivers it to the next topic of that name.
    """
    if not removed.entries:
        return False
    topic = find_property(parked.properties, _REAL_TOPIC) or b""
    return removed.hides(topic.decode("utf-8", "replace"), place.physical_offset)


def delivered(parked: Parked, properties: bytes | None = None) -> MessageInner:
    """Return the copy of a parked message that goes to its real topic and queue.

    Args:
        properties: the copy's encoded text; None for the parked one's own.

    Raises:
        ValueError: it names no target that may be delivered to.
    """
    text = parked.properties
    topic = (find_property(text, _REAL_TOPIC) or b"").decode("utf-8", "replace")
    queue_text = find_property(text, _REAL_QID) or b""
    why = validate_topic(topic)
    if why is not None:
        raise ValueError(f"{names.REAL_TOPIC}: {why}")
    if topic in _FORBIDDEN:
        raise ValueError(f"{names.REAL_TOPIC}: {topic} takes no delivered messages")
    if not queue_text.isdigit() or len(queue_text) > 10 or int(queue_text) > _INT_MAX:
        raise ValueError(f"{names.REAL_QID}: {queue_text[:32]!r} is no queue")
    return copy_to(parked, topic, int(queue_text), text if properties is None else properties)


def copy_to(parked: Parked, topic: str, queue_id: int, properties: bytes) -> MessageInner:
    """Return a copy of a parked message for a topic and queue."""
    return MessageInner(
        topic,
        queue_id,
        parked.body,
        properties,
        parked.born_host,
        parked.store_host,
        parked.born_timestamp,
        cached_tags_code(find_property(properties, TAGS_AND_SEPARATOR) or b""),
        parked.flag,
        parked.sys_flag,
        parked.reconsume_times,
        is_copy=True,
    )
