"""How many messages a second each group takes of each topic, over the last minute.

The counters of `stats.py` are noted every 10 s, seven notes are kept. Loop thread.
Source: apache/rocketmq@rocketmq-all-4.9.8 common/.../stats/StatsItem.java (samplingInSeconds)
"""

from __future__ import annotations

from collections import deque
from typing import Final

from skylarkmq.broker.metrics.stats import BrokerStats
from skylarkmq.common.clock import Clock
from skylarkmq.common.repeating import IntervalTimer

SAMPLE_INTERVAL_S: Final = 10.0
SAMPLE_COUNT: Final = 7

Key = tuple[str, str]  # (topic, group)


class ConsumeRateService:
    """Notes the counters between `start` and `stop`."""

    def __init__(self, stats: BrokerStats, clock: Clock) -> None:
        self._stats = stats
        self._clock = clock
        # Invariant: as many keys as the counters have, which are bounded.
        self._notes: dict[Key, deque[tuple[float, int]]] = {}
        self._timer = IntervalTimer(clock, SAMPLE_INTERVAL_S, self.sample)

    def start(self) -> None:
        """Note from now on."""
        self._timer.start()

    def stop(self) -> None:
        """Note no more."""
        self._timer.stop()

    def sample(self) -> None:
        """Note every counter once, and forget those that are gone."""
        counters = self._stats.topics_out
        self._notes = {key: notes for key, notes in self._notes.items() if key in counters}
        now_s = self._clock.monotonic()
        for key, traffic in counters.items():
            notes = self._notes.get(key)
            if notes is None:
                notes = self._notes[key] = deque(maxlen=SAMPLE_COUNT)
            notes.append((now_s, traffic.count))

    def forget_group(self, group: str) -> None:
        """A consumer group is deleted."""
        self._stats.forget_group(group)

    def per_second(self, topic: str, group: str) -> float:
        """Messages a second from the oldest note to the newest; 0.0 before there are two."""
        notes = self._notes.get((topic, group))
        if notes is None or len(notes) < 2:
            return 0.0
        (first_s, first), (last_s, last) = notes[0], notes[-1]
        return (last - first) / (last_s - first_s)
