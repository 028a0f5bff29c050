"""Times of the application as milliseconds since the epoch, which brokers count in.

Whole numbers throughout: a float's rounding could name the millisecond before or after.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)


def floor_ms(when: datetime) -> int:
    """Return the millisecond that the instant lies in.

    Raises:
        ValueError: the time names no zone.
    """
    return (_aware(when) - EPOCH) // MILLISECOND


def ceil_ms(when: datetime) -> int:
    """Return the first millisecond that is not before the instant.

    Raises:
        ValueError: the time names no zone.
    """
    return -((EPOCH - _aware(when)) // MILLISECOND)


def _aware(when: datetime) -> datetime:
    if when.tzinfo is None:
        raise ValueError(f"{when} names no time zone: use datetime.now(UTC) or .astimezone()")
    return when
