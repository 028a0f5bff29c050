"""Counters of what a consumer is doing, for request 307 (broker_requests.py).

    per topic   messages pulled and handled, their times: over the last minute; failures: an hour
    per queue   when it was pulled and handled last, what is held of it

A counter is a few additions a pull or a call of a handler; no timer, no task. Loop thread.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../stat/ConsumerStatsManager.java,
client/.../impl/consumer/ProcessQueue.java (fillProcessQueueInfo)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from skylarkmq.client.received_message import ProcessQueue
from skylarkmq.common.clock import Clock
from skylarkmq.protocol.bodies.group import ConsumeStatus, ProcessQueueInfo
from skylarkmq.protocol.message import MessageQueue

MINUTE_S: Final = 60.0
HOUR_S: Final = 3600.0
SLICES: Final = 6
NOTHING: Final = (0, 0, 0.0)
MIB: Final = 1024 * 1024


class Window:
    """Calls over the last `span_s` seconds, a sixth of it more or less: messages, times in ms."""

    __slots__ = (
        "_calls", "_count", "_end_s", "_slice", "_slice_s", "_slices", "_took_ms", "span_s",
    )  # fmt: skip

    def __init__(self, span_s: float) -> None:
        self.span_s = span_s
        self._slice_s = span_s / SLICES
        self._slice = 0
        self._end_s = self._slice_s  # of the slice that is counted into
        # That slice, and by their number modulo SLICES those before it.
        self._calls = 0
        self._count = 0
        self._took_ms = 0.0
        self._slices: list[tuple[int, int, float]] = [NOTHING] * SLICES

    def add(self, now_s: float, count: int, took_ms: float = 0.0) -> None:
        """Count a call with `count` messages, now on a monotonic clock."""
        if now_s >= self._end_s:
            self._move(now_s)
        self._calls += 1
        self._count += count
        self._took_ms += took_ms

    def messages(self, now_s: float) -> int:
        """Return how many messages there were."""
        self._move(now_s)
        return self._count + sum(each[1] for each in self._slices)

    def per_second(self, now_s: float) -> float:
        """Return the messages of a second."""
        return self.messages(now_s) / self.span_s

    def mean_ms(self, now_s: float) -> float:
        """Return the time of a call; 0 without calls."""
        self._move(now_s)
        calls = self._calls + sum(each[0] for each in self._slices)
        took_ms = self._took_ms + sum(each[2] for each in self._slices)
        return took_ms / calls if calls else 0.0

    def _move(self, now_s: float) -> None:
        current = int(now_s / self._slice_s)
        if current <= self._slice:
            return
        self._slices[self._slice % SLICES] = (self._calls, self._count, self._took_ms)
        self._calls, self._count, self._took_ms = NOTHING
        for number in range(max(self._slice + 1, current - SLICES + 1), current + 1):
            self._slices[number % SLICES] = NOTHING
        self._slice = current
        self._end_s = (current + 1) * self._slice_s


@dataclass(slots=True)
class TopicCounters:
    """One topic: pulls, calls of the handler with the messages that it was done with, failures."""

    pulls: Window = field(default_factory=lambda: Window(MINUTE_S))
    calls: Window = field(default_factory=lambda: Window(MINUTE_S))
    failed: Window = field(default_factory=lambda: Window(MINUTE_S))
    failed_hour: Window = field(default_factory=lambda: Window(HOUR_S))

    def status(self, now_s: float) -> ConsumeStatus:
        """Return them under RocketMQ's names."""
        return ConsumeStatus(
            pull_rt=self.pulls.mean_ms(now_s),
            pull_tps=self.pulls.per_second(now_s),
            consume_rt=self.calls.mean_ms(now_s),
            consume_ok_tps=self.calls.per_second(now_s),
            consume_failed_tps=self.failed.per_second(now_s),
            consume_failed_msgs=self.failed_hour.messages(now_s),
        )


class ConsumerCounters:
    """The counters of one consumer."""

    def __init__(self, clock: Clock) -> None:
        self.started_ms = clock.now_ms()
        self._clock = clock
        self._now_s = clock.monotonic
        self._topics: dict[str, TopicCounters] = {}

    def pulled(self, queue: MessageQueue, count: int, asked_s: float) -> None:
        """A pull that was begun at `asked_s`, monotonic, has brought that many messages."""
        now_s = self._clock.monotonic()
        self._of(queue.topic).pulls.add(now_s, count, (now_s - asked_s) * 1000)

    def handled(
        self,
        process_queue: ProcessQueue,
        count: int,
        began_s: float,
        ok: bool,
    ) -> None:
        """A handler that began at `began_s`, monotonic, has ended with that many messages."""
        now_s = process_queue.handled_s = self._now_s()
        counters = self._topics.get(process_queue.queue.topic)
        if counters is None:
            counters = self._of(process_queue.queue.topic)
        counters.calls.add(now_s, count if ok else 0, (now_s - began_s) * 1000)
        if not ok:
            counters.failed.add(now_s, count)
            counters.failed_hour.add(now_s, count)

    def status(self, topic: str) -> ConsumeStatus:
        """Return how the topic goes."""
        counters = self._topics.get(topic)
        return counters.status(self._clock.monotonic()) if counters else ConsumeStatus()

    def queue_info(
        self,
        process_queue: ProcessQueue,
        commit_offset: int,
        locked: bool,
        locked_ms: int,
    ) -> ProcessQueueInfo:
        """Return the state of one queue.

        Args:
            commit_offset: what the group has committed, as far as this member knows.
            locked: whether an ordered consumer holds its lock, since or until `locked_ms`.
        """
        offsets = [message.queue_offset for message in process_queue.held]
        return ProcessQueueInfo(
            cached_msg_count=len(offsets),
            cached_msg_min_offset=min(offsets, default=0),
            cached_msg_max_offset=max(offsets, default=0),
            cached_msg_size_in_mib=process_queue.held_bytes // MIB,
            commit_offset=commit_offset,
            dropped=process_queue.dropped,
            last_pull_timestamp=self._instant_ms(process_queue.asked_s),
            last_consume_timestamp=self._instant_ms(process_queue.handled_s),
            last_lock_timestamp=locked_ms,
            locked=locked,
        )

    def _instant_ms(self, at_s: float | None) -> int:
        """Return when that was, since the epoch; the consumer's start for what never was."""
        if at_s is None:
            return self.started_ms
        return self._clock.now_ms() - round((self._clock.monotonic() - at_s) * 1000)

    def _of(self, topic: str) -> TopicCounters:
        counters = self._topics.get(topic)
        if counters is None:
            counters = self._topics[topic] = TopicCounters()
        return counters
