"""What is done with a half message that is still open when a round of checks meets it.

    asked `transactionCheckMax` times, or born more than `fileReservedTime` hours ago    GIVE_UP
    younger than `transactionTimeOut`                                                    STOP
    younger than its CHECK_IMMUNITY_TIME_IN_SECONDS                                      POSTPONE
    else                                                                                 ASK

STOP ends the round, because what lies behind is younger still. A round ends as well where its queue
ended when it began, which no step of the wall clock moves. Ages count from the born time, which is
the producer's clock; a message from the future is asked about at once, and one that says how long
it may not be when its clock is further ahead than `fileReservedTime`.

ASK without a client of the producer group to ask is not counted and stores nothing anew. Such a
message is given up before its log file expires: when it was stored, by the broker's own clock, nine
tenths of `fileReservedTime` ago.

Unlike RocketMQ, which counts questions that nobody got: a producer that was away for a quarter of
an hour finds its transactions given up there. Nor does its born time alone give a message up before
somebody was asked (a producer's clock may be days behind), nor is one that is postponed counted.
Source: apache/rocketmq@rocketmq-all-4.9.8
broker/.../transaction/queue/TransactionalMessageServiceImpl.java (check, isNeedDiscard, isNeedSkip)
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from skylarkmq.broker.config.settings import BrokerConfig
from skylarkmq.broker.delay.delayed_message import Parked
from skylarkmq.broker.transaction.messages import check_times_of, immunity_ms_of

_HOUR_MS: Final = 3_600_000


class Step(Enum):
    """What comes next."""

    STOP = "stop"
    ASK = "ask"
    POSTPONE = "postpone"
    GIVE_UP = "give up"


class CheckRules(NamedTuple):
    """The limits of checks."""

    timeout_ms: int
    check_max: int
    reserved_ms: int

    @classmethod
    def of(cls, config: BrokerConfig) -> CheckRules:
        """The limits that a configuration sets."""
        return cls(
            config.transaction_time_out,
            config.transaction_check_max,
            config.store.file_reserved_time * _HOUR_MS,
        )

    def step(self, half: Parked, now_ms: int) -> Step:
        """Return what to do with an open half message."""
        times = check_times_of(half)
        age_ms = now_ms - half.born_timestamp
        if times >= self.check_max or (times and age_ms > self.reserved_ms):
            return Step.GIVE_UP
        immunity_ms = immunity_ms_of(half, self.timeout_ms)
        if immunity_ms is None:
            return Step.STOP if 0 <= age_ms < self.timeout_ms else Step.ASK
        is_immune = -self.reserved_ms < age_ms < min(immunity_ms, self.reserved_ms)
        return Step.POSTPONE if is_immune else Step.ASK

    def expires(self, half: Parked, now_ms: int) -> bool:
        """Whether an open half message must not be left where it is any longer."""
        return now_ms - half.store_timestamp >= self.reserved_ms * 9 // 10
