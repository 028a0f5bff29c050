"""Asking again while nobody answers: the one loop of source and sink.

Any thread; blocks on the clock that is handed in.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from skylarkmq.client.errors import RocketMQError
from skylarkmq.spark.clock import BlockingClock
from skylarkmq.spark.remoting.asking import may_repeat

T = TypeVar("T")

log = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 2.0
"""How long to wait before asking again; doubling, capped."""


def patiently(
    ask: Callable[[], T],
    clock: BlockingClock,
    patience_s: float,
    what: object,
    passing: Callable[[RocketMQError], bool] = may_repeat,
) -> T:
    """Return what `ask` returns, tried again for `patience_s` while it fails.

    Args:
        what: whom the log says this of.
        passing: whether asking again later may help after an error.

    Raises:
        RocketMQError: the last failure; at once when trying again cannot help.
    """
    deadline_s = clock.monotonic() + patience_s
    delay_s = RETRY_FIRST_S
    while True:
        try:
            return ask()
        except RocketMQError as error:
            if not passing(error) or clock.monotonic() + delay_s > deadline_s:
                raise
            log.warning("%s: trying again in %.1f s: %s", what, delay_s, error)
        clock.sleep(delay_s)
        delay_s = min(delay_s * 2, RETRY_MAX_S)
