"""Where a group starts in a queue for which it has committed nothing yet.

Source: apache/rocketmq@rocketmq-all-4.9.8 client/.../impl/consumer/RebalancePushImpl.java
(computePullFromWhereWithException), common/.../consumer/ConsumeFromWhere.java
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Final, Literal

from skylarkmq.client.instants import ceil_ms

WHERE_NAMES: Final = {
    "last": "CONSUME_FROM_LAST_OFFSET",
    "now": "CONSUME_FROM_LAST_OFFSET",
    "first": "CONSUME_FROM_FIRST_OFFSET",
    "timestamp": "CONSUME_FROM_TIMESTAMP",
}


@dataclass(frozen=True, slots=True)
class StartFrom:
    """`FIRST`: all messages there are; `timestamp`: from a time on; `LAST` and `NOW`: from now on.

    With `LAST` and a time the broker decides first, as in RocketMQ: a new group on a queue that is
    still young (its first message is there and in memory) starts at that first message. `NOW` asks
    it not to; Apache brokers before 5.0 do so all the same. A queue that is made while the consumer
    is at work is read from its beginning.
    """

    where: Literal["last", "first", "now", "timestamp"]
    timestamp_ms: int = 0

    LAST: ClassVar[StartFrom]
    FIRST: ClassVar[StartFrom]
    NOW: ClassVar[StartFrom]

    @classmethod
    def timestamp(cls, when: datetime) -> StartFrom:
        """Start with what was stored at `when` or later.

        Raises:
            ValueError: the time names no zone.
        """
        return cls("timestamp", ceil_ms(when))

    @property
    def wire_name(self) -> str:
        """RocketMQ's name, for the heartbeat."""
        return WHERE_NAMES[self.where]


StartFrom.LAST = StartFrom("last")
StartFrom.FIRST = StartFrom("first")
StartFrom.NOW = StartFrom("now")
