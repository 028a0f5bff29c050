"""Building queue units again from the records of a walk over the log.

Most records follow the last unit of their queue, and their units are appended to it straight away;
what does not fit so plainly goes through `QueueLoader.rebuild_unit`, which knows gaps, units that
are there, and queues that lost their files.

No checksum covers a record's queue offset. One that leaves a gap waits for the next record of its
queue. If that has the next number, messages are missing. If that has a number before it, its queue
offset is damaged, and the record gets the place that it was stored for.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java
(CommitLogDispatcherBuildConsumeQueue)
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from skylarkmq.protocol.flags import RMQ_SYS_SCHEDULE_TOPIC, validate_topic
from skylarkmq.protocol.properties import TAGS_AND_SEPARATOR, find_property
from skylarkmq.protocol.tags_code import cached_tags_code
from skylarkmq.store.delay_levels import DelayLevels
from skylarkmq.store.log.append import TRANSACTION_BITS, TRANSACTION_COMMIT
from skylarkmq.store.log.clock_steps import BACK_MAX_MS, ClockSteps
from skylarkmq.store.log.log_walk import WalkedRecord
from skylarkmq.store.queue.consume_queue import UNIT, ConsumeQueue
from skylarkmq.store.queue.queue_loader import QueueLoader
from skylarkmq.store.queue.queue_table import QueueTable

log = logging.getLogger(__name__)

_COUNT_STEP: Final = 4096  # units between two looks at the memory they take
_GAP_MAX: Final = 1 << 16  # units that may be missing before a queue's last record
_CHECK_STEP: Final = 512  # units of a queue that are looked at together


_NOTHING_REMOVED: Final[Mapping[bytes, int]] = {}

Unit = tuple[int, int, int]  # (physical offset, record size, tags code)


class UnitRebuild:
    """What one walk builds. Loading thread.

    Attributes:
        records: how many were walked.
        rebuilt: how many of them have a unit in a queue.
        store_timestamp: the newest of the records, since the times went back last, ms.
    """

    def __init__(
        self,
        loader: QueueLoader,
        delay_levels: DelayLevels,
        removed: Mapping[bytes, int] = _NOTHING_REMOVED,
        clock_steps: ClockSteps | None = None,
    ) -> None:
        """Take the queues.

        Args:
            clock_steps: gets the places at which the store times go back.
            removed: topic -> place of the log below which its records have no units anymore.
        """
        self._loader = loader
        self._queues = loader.table
        self._delay_levels = delay_levels
        self._removed = removed
        # Queues whose units need nothing but the record; None for a topic that is no topic.
        self._plain: dict[tuple[bytes, int], ConsumeQueue] = {}
        # By topic and queue: the queue offset and the unit of a record that would leave a gap.
        self._waiting: dict[tuple[str, int], tuple[int, Unit]] = {}
        self.records = 0
        self.rebuilt = 0
        self.store_timestamp = 0
        self._clock_steps = ClockSteps() if clock_steps is None else clock_steps

    def run(
        self,
        records: Iterable[WalkedRecord],
        dispatch_from: int | None,
        check: UnitCheck,
    ) -> None:
        """Walk, and build the units of records at or after an offset; None builds none.

        Args:
            check: gets the records before that offset.
        """
        newest, count, built, appended = self.store_timestamp, 0, 0, 0
        plain, tags_of, steps = self._plain, cached_tags_code, self._clock_steps
        for offset, size, queue_id, queue_offset, flag, timestamp, topic, properties in records:
            count += 1
            if timestamp > newest:
                if newest and timestamp > steps.open_ms:
                    steps.rise(newest, timestamp)
                newest = timestamp
            elif newest - timestamp > BACK_MAX_MS:
                steps.add(offset, timestamp, newest)
                newest = timestamp
            if flag & TRANSACTION_BITS not in (0, TRANSACTION_COMMIT):
                continue
            if dispatch_from is None or offset < dispatch_from:
                check.add(topic, queue_id, queue_offset, offset, size)
                continue
            queue = plain.get((topic, queue_id))
            if (
                queue is None
                or queue_offset != queue.max_offset
                or offset + size <= queue.max_physical_offset
            ):
                built += self._rebuild(
                    offset, size, queue_id, queue_offset, timestamp, topic, properties
                )
                continue
            tags = find_property(properties, TAGS_AND_SEPARATOR)
            queue.append(offset, size, 0 if tags is None else tags_of(tags))
            queue.next_offset = queue_offset + 1
            built += 1
            appended += 1
            if appended == _COUNT_STEP:
                self._loader.count_rebuilt(appended)
                appended = 0
        for key in list(self._waiting):
            self._settle(key, -1)
        self._loader.count_rebuilt(appended)
        check.finish()
        self.records += count
        self.rebuilt += built
        self.store_timestamp = newest

    def _rebuild(
        self,
        offset: int,
        size: int,
        queue_id: int,
        queue_offset: int,
        timestamp: int,
        topic_bytes: bytes,
        properties: bytes,
    ) -> int:
        """Put the record's unit into its queue; 1 when it has one."""
        if offset < self._removed.get(topic_bytes, 0):
            return 0
        topic = topic_bytes.decode("ascii", "replace")
        if validate_topic(topic) is not None or queue_id < 0:
            log.error("the record at offset %d has no usable topic or queue", offset)
            return 0
        is_delay = topic == RMQ_SYS_SCHEDULE_TOPIC
        tags = find_property(properties, TAGS_AND_SEPARATOR)
        code = 0 if tags is None else cached_tags_code(tags)
        level = self._delay_levels.level_of(properties) if is_delay else 0
        if level:
            code = self._delay_levels.due_time(level, timestamp)
        key, unit = (topic, queue_id), (offset, size, code)
        if self._waiting:
            self._settle(key, queue_offset)
        queue = self._queues.open(topic, queue_id)
        if queue_offset > queue.max_offset:
            self._waiting[key] = queue_offset, unit
            self._plain.pop((topic_bytes, queue_id), None)
            return 1
        self._loader.rebuild_unit(topic, queue_id, queue_offset, unit)
        if not is_delay:
            self._plain[topic_bytes, queue_id] = queue
        return 1

    def _settle(self, key: tuple[str, int], next_offset: int) -> None:
        """Place the record that waits in a queue.

        Args:
            next_offset: the queue offset of the record after it, -1 when there is none.
        """
        waiting = self._waiting.pop(key, None)
        if waiting is None:
            return
        queue_offset, unit = waiting
        queue, place = self._queues.open(*key), next_offset - 1
        is_empty = queue.max_offset == queue.first_offset
        if place == queue.max_offset or (is_empty and 0 <= place < queue_offset):
            log.error(
                "the record at offset %d says queue offset %d of %s-%d, but it is number %d",
                unit[0], queue_offset, *key, place,
            )  # fmt: skip
            queue_offset = place
        elif place != queue_offset and not is_empty and queue_offset - queue.max_offset > _GAP_MAX:
            log.error(
                "the record at offset %d says queue offset %d of %s-%d, which ends at %d; it is "
                "left out of the queue",
                unit[0], queue_offset, *key, queue.max_offset,
            )  # fmt: skip
            return
        self._loader.rebuild_unit(*key, queue_offset, unit)


class UnitCheck:
    """Compares records with the units that should speak of them. Loading thread.

    A topic that RocketMQ has deleted looks like one whose queues are lost: its records stay in the
    log, and nothing tells of the deletion. Such a queue is built again; ours are in `removed`.

    Attributes:
        is_sound: each record so far has its unit.
    """

    def __init__(
        self, queues: QueueTable, end: int, removed: Mapping[bytes, int] = _NOTHING_REMOVED
    ) -> None:
        """Take the queues, which should have the units of the records below an offset."""
        self._queues = queues
        self._end = end
        self._removed = removed
        # By topic and queue id: (queue offset, commit offset, record size) since the last look.
        self._waiting: dict[tuple[bytes, int], list[tuple[int, int, int]]] = {}
        self.is_sound = True

    def add(self, topic: bytes, queue_id: int, queue_offset: int, offset: int, size: int) -> None:
        """Note that a unit should be there."""
        if offset >= self._end:
            return
        if self._removed and offset < self._removed.get(topic, 0):
            return
        waiting = self._waiting.setdefault((topic, queue_id), [])
        waiting.append((queue_offset, offset, size))
        if len(waiting) == _CHECK_STEP:
            self._compare(topic, queue_id, waiting)
            waiting.clear()

    def finish(self) -> None:
        """Look for those that were noted last."""
        for (topic, queue_id), waiting in self._waiting.items():
            self._compare(topic, queue_id, waiting)
        self._waiting.clear()

    def _compare(self, topic: bytes, queue_id: int, waiting: list[tuple[int, int, int]]) -> None:
        if not self.is_sound or not waiting:
            return
        name = topic.decode("ascii", "replace")
        if validate_topic(name) is not None or queue_id < 0:
            return  # such a record has no unit
        queue = self._queues.get(name, queue_id)
        first, last = waiting[0][0], waiting[-1][0]
        found: list[tuple[int, int, int]] = []
        if queue is not None and queue.first_offset <= first and last < queue.max_offset:
            offset = first
            while offset <= last:
                units = self._queues.stored_units(queue, offset, last - offset + 1)
                for commit_offset, size, _ in UNIT.iter_unpack(units):
                    found.append((offset, commit_offset, size))
                    offset += 1
                if not units:
                    break
        if found != waiting:
            log.warning("queue %d of %s does not have the units of its messages", queue_id, name)
            self.is_sound = False
