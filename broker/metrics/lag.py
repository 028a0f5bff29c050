"""How far consumer groups are behind, for the metrics; measured when somebody scrapes.

Every group that ever committed an offset of a topic is measured, also one without members; but not
those whose members broadcast, which keep their offsets themselves.

    messages   from the committed offset to the end, over the queues that the group has offsets of
    latency    ms since the first message that is not committed was stored, of the queue where that
               is longest; 0 when nothing waits
    in flight  messages that members were handed and have not confirmed: from the committed offset
               to where the last pull of each queue went on
    ready      messages from there to the end
    queueing   ms since the first message that is ready was stored, as for the latency

A sweep looks at some rows in a turn of the loop. Messages that memory is not taken to hold are read
off the loop, COLD_READS_MAX of them in one sweep; what was read is remembered until the group
moves. Where a time is not known yet, the latency has no series.

Nothing is in flight to a group without members, nor, after a start of the broker, before the first
pull of a queue. Unlike RocketMQ, which takes all of a queue for handed out until then.

Source: apache/rocketmq@rocketmq-all-5.3.3 broker/.../metrics/ConsumerLagCalculator.java
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.base.waiting import result_of
from skylarkmq.broker.groups.consumer_manager import BROADCASTING, ConsumerManager
from skylarkmq.broker.groups.consumer_offset import ConsumerOffsetManager
from skylarkmq.broker.topics.topic_config import TopicConfigManager
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.flags import CID_RMQ_SYS_PREFIX, is_system_topic
from skylarkmq.store.message_store import MessageStore

ROWS_SLICE: Final = 128
"""Groups' topics looked at before the loop may turn."""
COLD_READS_MAX: Final = 64
"""Messages read from the disk in one sweep."""


class Lag(NamedTuple):
    """One group in one topic; times are None while they are not known."""

    topic: str
    group: str
    messages: int = 0
    latency_ms: int | None = 0
    in_flight: int = 0
    ready: int = 0
    queueing_ms: int | None = 0
    offset: int = 0  # what is committed, of all queues together


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
        behind = in_flight = 0
        waiting: list[int | None] = []  # store times of first messages: not committed, not pulled
        queued: list[int | None] = []
        pulled: Mapping[int, int] = {}
        if self._consumers.clients(group):
            pulled = self._stats.pulled.get((topic, group), pulled)
        for queue_id, offset in offsets.items():
            end = self._store.max_offset(topic, queue_id)
            if end <= offset:
                continue
            behind += end - offset
            first = max(offset, self._store.min_offset(topic, queue_id))
            waiting.append(await self._time_of(topic, queue_id, first))
            next_pull = min(max(offset, pulled.get(queue_id, offset)), end)
            in_flight += next_pull - offset
            if next_pull <= first:
                queued.append(waiting[-1])
            elif next_pull < end:
                queued.append(await self._time_of(topic, queue_id, next_pull))
        return Lag(
            topic,
            group,
            messages=behind,
            latency_ms=self._since(waiting),
            in_flight=in_flight,
            ready=behind - in_flight,
            queueing_ms=self._since(queued),
            offset=sum(offsets.values()),
        )

    def _since(self, times_ms: Sequence[int | None]) -> int | None:
        """Return how long ago the first time was; 0 without one, None when one is not known."""
        known = [time_ms for time_ms in times_ms if time_ms is not None]
        if len(known) < len(times_ms):
            return None
        now_ms = self._clock.now_ms()
        return max(0, now_ms - min(known, default=now_ms))

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
