"""How long a message waits before its next try: the broker's delay levels, and times between them.

    level   1    2    3    4    5    6   ... 14   15   16   17   18
    delay   1 s  5 s  10 s 30 s 1 m  2 m ... 10 m 20 m 30 m 1 h  2 h

A broker delays by levels alone, so a time is rounded up to the next of them; a consumer that waits
by itself (ordered, broadcasting) keeps the time as it is.
Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../config/MessageStoreConfig.java
(messageDelayLevel), broker/.../processor/SendMessageProcessor.java (asyncConsumerSendMsgBack)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from skylarkmq.common.settings import seconds_of

LEVELS_S: Final = (
    1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200,
)  # fmt: skip
"""The default levels in seconds; level 1 is the first."""
LEVEL_MAX: Final = len(LEVELS_S)
FIRST_RETRY_LEVEL: Final = 3
"""Level of the first retry; each further one waits a level longer."""


@dataclass(frozen=True, slots=True)
class RetryDelay:
    """A wish: a level (0: let it grow with each try), or with `exact_s` a time of its own."""

    level: int = 0
    exact_s: float | None = None

    def seconds(self, tries: int, default_s: float | None = None) -> float:
        """Return how long to wait after `tries` retries have failed.

        Args:
            default_s: for level 0, instead of growing.
        """
        if self.exact_s is not None:
            return self.exact_s
        if self.level == 0 and default_s is not None:
            return default_s
        level = self.level or FIRST_RETRY_LEVEL + tries
        return float(LEVELS_S[min(level, LEVEL_MAX) - 1])


GROWING: Final = RetryDelay()


class RetryDelays:
    """The delays of a consumer's own choice, in their order; none: they grow by RocketMQ's."""

    def __init__(self, delays_s: Sequence[float]) -> None:
        self._delays = [RetryDelay(_level(delay_s), delay_s) for delay_s in delays_s]

    def after(self, tries: int) -> RetryDelay:
        """Return the delay before the next try, after `tries` retries have failed."""
        if not self._delays:
            return GROWING
        return self._delays[min(tries, len(self._delays) - 1)]


def retry_delay(delay_level: int | None, delay: float | timedelta | None) -> RetryDelay:
    """Return the wish that the arguments of `nack` make.

    Raises:
        ValueError: both are given, the level is none, or the time is negative or over 2 h.
    """
    if delay is not None:
        if delay_level is not None:
            raise ValueError("nack takes delay_level or delay, not both")
        wanted_s = seconds_of(delay)
        if not 0 <= wanted_s <= LEVELS_S[-1]:
            raise ValueError(f"delay is 0 to {LEVELS_S[-1]} s, not {wanted_s:g}")
        return RetryDelay(_level(wanted_s), wanted_s)
    level = delay_level or 0
    if not 0 <= level <= LEVEL_MAX:
        raise ValueError(f"delay_level is 0 to {LEVEL_MAX}, not {level}")
    return RetryDelay(level)


def _level(wanted_s: float) -> int:
    """Return the level that waits so long, or a little longer."""
    return bisect_left(LEVELS_S, wanted_s) + 1
