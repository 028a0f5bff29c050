"""When the messages of one delay level may leave, whatever the wall clock does.

A unit is due when the wall clock reaches its due time: the time of its storing plus the level's
delay. When the wall clock was stepped back since, that moment may be hours away, for messages that
waited long enough already. So the second rule: what existed at a moment of the monotonic clock
waits one delay from that moment on at most.

    bound        (end offset, deadline): units below the offset leave at the deadline at the latest
    bounds       rising in both; one is noted whenever a due time more than a delay ahead is seen

A bound is never early: its units were stored before it was noted. Bounds that would follow within a
hundredth of the delay are joined at the later deadline, so there are never many.

Unlike RocketMQ, which delivers such a message at once: a step back by one millisecond there ends a
wait of two hours.
Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../schedule/ScheduleMessageService.java
(correctDeliverTimestamp)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

JOINED_PART: Final = 100
JOINED_MIN_S: Final = 1.0


@dataclass(slots=True)
class _Bound:
    end_offset: int  # queue offset after the last unit
    deadline_s: float  # on the monotonic clock
    open_until_s: float  # later units join it until then


class DueTimes:
    """The waiting rules of one level. Loop thread."""

    __slots__ = ("_bounds", "delay_ms")

    def __init__(self, delay_ms: int) -> None:
        self.delay_ms = delay_ms
        self._bounds: deque[_Bound] = deque()

    def __len__(self) -> int:
        """Return how many bounds are in force; 0 while the wall clock runs as it should."""
        return len(self._bounds)

    def observe(self, end_offset: int, due_ms: int, now_ms: int, now_s: float) -> None:
        """Note that all units below `end_offset` exist now.

        Args:
            due_ms: due time of the first of them; nothing is noted when it is within one delay.
            now_ms: the wall clock.
            now_s: the monotonic clock.
        """
        if due_ms <= now_ms + self.delay_ms:
            return
        bounds = self._bounds
        deadline_s = now_s + self.delay_ms / 1000
        if bounds:
            last = bounds[-1]
            if end_offset <= last.end_offset:
                return
            if now_s < last.open_until_s:
                last.end_offset = end_offset
                last.deadline_s = deadline_s
                return
        open_s = max(JOINED_MIN_S, self.delay_ms / 1000 / JOINED_PART)
        bounds.append(_Bound(end_offset, deadline_s, now_s + open_s))

    def wait_s(self, offset: int, due_ms: int, now_ms: int, now_s: float) -> float:
        """Return how long the unit at queue offset `offset` still waits; 0 or less: it is due."""
        wait_s = (due_ms - now_ms) / 1000
        for bound in self._bounds:
            if offset < bound.end_offset:
                return min(wait_s, bound.deadline_s - now_s)
        return wait_s

    def forget(self, offset: int) -> None:
        """Drop the bounds of units below `offset`: they have left."""
        bounds = self._bounds
        while bounds and bounds[0].end_offset <= offset:
            bounds.popleft()
