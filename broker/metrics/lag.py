"""How far consumer groups are behind, for the metrics; measured when somebody scrapes.

Every group that ever committed an offset of a topic is measured, also one without members; but not
those whose members broadcast, which keep their offsets themselves.

    messages   from the committed offset to the end, over the queues that the group has offsets of
    latency    ms since the first message that is not committed was stored, of the queue where that
               is longest; 0 when nothing waits

A sweep looks at some rows in a turn of the loop. Messages that memory is not taken to hold are read
off the loop, COLD_READS_MAX of them in one sweep; what was read is remembered until the group
moves. Where a time is not known yet, the latency has no series.

How many messages are in flight is not known: no counter says up to where a group was handed
messages, and RocketMQ's families of those (inflight, ready, queueing latency) do not exist here.

Source: apache/rocketmq@rocketmq-all-5.3.3 broker/.../metrics/ConsumerLagCalculator.java
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from skylarkmq.broker.groups.consumer_manager import BROADCASTING, ConsumerManager
from skylarkmq.broker.groups.consumer_offset import ConsumerOffsetManager
from skylarkmq.broker.metrics.stats import BrokerStats
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.broker.waiting import result_of
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.flags import CID_RMQ_SYS_PREFIX, is_system_topic
from skylarkmq.store.message_store import MessageStore

ROWS_SLICE: Final = 128
"""Groups' topics looked at before the loop may turn."""
COLD_READS_MAX: Final = 64
"""Messages read from the disk in one sweep."""


class Lag(NamedTuple):
    """One group in one topic; `latency_ms` is None while it is not known."""

    topic: str
    group: str
    messages: int
    latency_ms: int | None


class ConsumerLag:
    """Measures all groups. Loop thread.

    Attributes:
        rows: what the last sweep found.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: TopicConfigManager,
        offsets: ConsumerOffsetManager,
        consumers: ConsumerManager,
        stats: BrokerStats,
        clock: Clock,
    ) -> None:
        self.rows: list[Lag] = []
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._stats = stats
        self._clock = clock
        self._sweep: asyncio.Task[None] | None = None
        # (topic, queue id, queue offset) -> store time, ms, of messages that were read from the
        # disk. Invariant: only those that the last sweep needed.
        self._times: dict[tuple[str, int, int], int] = {}
        self._needed: dict[tuple[str, int, int], int] = {}
        self._reads = 0

    async def measure(self) -> None:
        """Measure anew; who asks meanwhile shares the sweep."""
        if self._sweep is None:
            self._sweep = asyncio.create_task(self._measure())
            self._sweep.add_done_callback(self._ended)
        await asyncio.shield(self._sweep)

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._sweep = None

    async def _measure(self) -> None:
        rows: list[Lag] = []
        self._needed, self._reads = {}, 0
        for number, ((topic, group), offsets) in enumerate([*self._offsets.table.items()]):
            if number % ROWS_SLICE == ROWS_SLICE - 1:
                await asyncio.sleep(0)
            if self._counts(topic, group):
                if len(rows) >= self._stats.series_limit:
                    self._stats.series_dropped["consumer_lag"] += 1
                else:
                    rows.append(await self._row(topic, group, offsets))
        self.rows, self._times = rows, self._needed

    def _counts(self, topic: str, group: str) -> bool:
        if group.startswith(CID_RMQ_SYS_PREFIX) or is_system_topic(topic):
            return False
        info = self._consumers.group(group)
        return self._topics.get(topic) is not None and (
            info is None or info.message_model != BROADCASTING
        )

    async def _row(self, topic: str, group: str, offsets: Mapping[int, int]) -> Lag:
        behind = 0
        oldest: int | None = self._clock.now_ms()
        for queue_id, offset in offsets.items():
            end = self._store.max_offset(topic, queue_id)
            if end <= offset:
                continue
            behind += end - offset
            first = max(offset, self._store.min_offset(topic, queue_id))
            time_ms = await self._time_of(topic, queue_id, first)
            oldest = None if oldest is None or time_ms is None else min(oldest, time_ms)
        latency = None if oldest is None else max(0, self._clock.now_ms() - oldest)
        return Lag(topic, group, behind, latency)

    async def _time_of(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return when a message was stored; None while that is not known."""
        if not self._store.is_cold(topic, queue_id, offset):
            time_ms = self._store.message_time(topic, queue_id, offset)
            return time_ms if time_ms >= 0 else None
        key = topic, queue_id, offset
        known = self._needed.get(key, self._times.get(key))
        if known is None:
            known = await self._read_time(topic, queue_id, offset)
        if known is not None:
            self._needed[key] = known
        return known

    async def _read_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        if self._reads >= COLD_READS_MAX:
            return None
        self._reads += 1
        read = self._store.message_time_cold
        try:
            found: int = await result_of(lambda done: read(topic, queue_id, offset, done))
        except OSError:
            return None
        return found if found >= 0 else None
