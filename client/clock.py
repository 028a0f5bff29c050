"""The system's clock over the running loop, and the application's times as milliseconds.

Only this file of the package asks the system for the time or the loop for a timer. Brokers count
milliseconds since the epoch. Whole numbers throughout: a float's rounding could name the
millisecond before or after.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from skylarkmq.common.clock import TimerHandle
from skylarkmq.remoting.errors import of_another_loop


class SystemClock:
    """Wall time, the loop's monotonic time, and timers of the loop; implements `Clock`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.monotonic: Callable[[], float] = loop.time

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_at(self, when_s: float, callback: Callable[..., object], *args: object) -> TimerHandle:
        try:
            return self._loop.call_at(when_s, callback, *args)
        except RuntimeError as error:
            raise of_another_loop(error) from error


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)


def floor_ms(when: datetime) -> int:
    """Return the millisecond that the instant lies in.

    Raises:
        TypeError: no datetime.
        ValueError: the time names no zone.
    """
    return (_aware(when) - EPOCH) // MILLISECOND


def ceil_ms(when: datetime) -> int:
    """Return the first millisecond that is not before the instant.

    Raises:
        TypeError: no datetime.
        ValueError: the time names no zone.
    """
    return -((EPOCH - _aware(when)) // MILLISECOND)


def _aware(when: datetime) -> datetime:
    if not isinstance(when, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a time is a datetime with its time zone, not {when!r}")
    if when.tzinfo is None:
        raise ValueError(f"{when} names no time zone: use datetime.now(UTC) or .astimezone()")
    return when
