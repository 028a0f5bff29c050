"""Delay levels: how long each waits, and the way of a delayed message onto the schedule topic.

`messageDelayLevel` is a text such as `1s 5s 10s 30s 1m 2h 1d`: level n is its n-th word, a number
and one of the units s, m, h, d. A message with the property DELAY = n is stored in queue n - 1 of
SCHEDULE_TOPIC_XXXX, its target in the properties REAL_TOPIC and REAL_QID; its queue unit carries,
in place of the hash of its tag, the due time: the record's store timestamp plus the level's delay.
So a rebuilt queue finds the same due time in the record again.

Pure: no clock, no disk. Any thread.
Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../schedule/ScheduleMessageService.java
(parseDelayLevel, computeDeliverTimestamp, delayLevel2QueueId), CommitLog.java (asyncPutMessage,
checkMessageAndReturnSize)
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from skylarkmq.protocol import properties as names
from skylarkmq.protocol.flags import RMQ_SYS_SCHEDULE_TOPIC
from skylarkmq.protocol.properties import find_property, with_property
from skylarkmq.store.results import MessageInner

DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LEVELS_MAX: Final = 1024
"""Levels that a text may hold: each is a queue of one topic."""
UNKNOWN_LEVEL_DELAY_MS: Final = 1000

_UNIT_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_WORD: Final = re.compile(r"([0-9]{1,9})([smhd])", re.ASCII)
_LEVEL: Final = re.compile(rb"[+-]?[0-9]{1,10}")
_INT_MAX: Final = 0x7FFFFFFF

_REAL_TOPIC: Final = names.REAL_TOPIC.encode()
_REAL_QID: Final = names.REAL_QID.encode()
_DELAY: Final = names.DELAY.encode()
_DELAY_PREFIX: Final = _DELAY + names.NAME_SEPARATOR.encode()


def parse_level(value: bytes) -> int:
    """Return the level that a DELAY property names; it may be negative or above every level.

    Raises:
        ValueError: no signed 32-bit decimal number.
    """
    if _LEVEL.fullmatch(value) is None or not -_INT_MAX - 1 <= int(value) <= _INT_MAX:
        shown = value[:32].decode("utf-8", "replace")
        raise ValueError(f"the property {names.DELAY} is {shown!a}, not the number of a level")
    return int(value)


class DelayLevels:
    """The table of levels, the first of which is level 1."""

    __slots__ = ("_delays_ms", "max_level")

    def __init__(self, text: str = DEFAULT_DELAY_LEVELS) -> None:
        """Read the text of `messageDelayLevel`.

        Raises:
            ValueError: no level at all, more than LEVELS_MAX, or a word that is no number and unit.
        """
        words = text.split()
        if not 1 <= len(words) <= LEVELS_MAX:
            raise ValueError(
                f"messageDelayLevel has {len(words)} levels; 1 to {LEVELS_MAX} are possible"
            )
        self._delays_ms = tuple(_word_ms(word) for word in words)
        self.max_level = len(words)

    def clip(self, level: int) -> int:
        """Return the level that is really used: 0 for none, the last one for those above it."""
        return min(max(level, 0), self.max_level)

    def delay_ms(self, level: int) -> int:
        """Return how long a level waits, in ms; above the last level it is the last one's delay."""
        if level < 1:
            return UNKNOWN_LEVEL_DELAY_MS
        return self._delays_ms[min(level, self.max_level) - 1]

    def due_time(self, level: int, store_timestamp: int) -> int:
        """Return when a message stored at `store_timestamp` is due, both ms since the epoch."""
        return store_timestamp + self.delay_ms(level)

    def level_of(self, properties: bytes) -> int:
        """Return the level that a stored message's encoded properties name, clipped; 0 for none.

        What is no number counts as none here: such a text is refused when it is sent.
        """
        value = find_property(properties, _DELAY_PREFIX)
        if value is None:
            return 0
        try:
            return self.clip(parse_level(value))
        except ValueError:
            return 0

    def redirect(self, inner: MessageInner, level: int) -> MessageInner:
        """Return the message as it is parked: on the schedule topic, its target in its properties.

        Args:
            level: 1 or more. Above the last level the message gets the last one, and its DELAY
                property says so.
        """
        used = self.clip(level)
        properties = inner.properties
        if used != level:
            properties = with_property(properties, _DELAY, str(used).encode())
        properties = with_property(properties, _REAL_TOPIC, inner.topic.encode())
        properties = with_property(properties, _REAL_QID, str(inner.queue_id).encode())
        return dataclasses.replace(
            inner,
            topic=RMQ_SYS_SCHEDULE_TOPIC,
            queue_id=schedule_queue_id(used),
            properties=properties,
            delay_level=used,
        )


def schedule_queue_id(level: int) -> int:
    """Return the queue of the schedule topic that holds a level's messages."""
    return level - 1


def _word_ms(word: str) -> int:
    match = _WORD.fullmatch(word)
    if match is None:
        raise ValueError(f"messageDelayLevel: {word[:32]!a} is no number with a unit s, m, h or d")
    return int(match[1]) * _UNIT_MS[match[2]]
