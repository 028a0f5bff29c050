"""SIGTERM and SIGINT: the first one asks a server to stop, a later one ends its process at once.

A stop may have to wait for a disk, or hang. Who does not want to wait any longer signals again: the
process then ends as by `kill -9`, which no acknowledged message minds (`docs/concepts/
durability.md`), and the next start recovers.

Signals less than SAME_S apart are one: `timeout`, and who stops a whole group of processes, send
two. A server below a supervisor leaves the second one to it: it kills (`fleet/supervisor.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

from skylarkmq.common.clock import Clock

log = logging.getLogger(__name__)

NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)
SAME_S: Final = 1.0
ENDED: Final = (
    "%s again: the process ends at once, as by kill -9. The next start recovers the log, which "
    "takes longer than a clean start; groups get again what they handled in the last "
    "flushConsumerOffsetInterval. Nothing that was acknowledged is lost, but for what "
    "transientStorePoolEnable had not written yet"
)


class StopSignals:
    """What the signals do to this process.

    Attributes:
        asked: set by the first one, as soon as the loop turns.
    """

    def __init__(
        self,
        clock: Clock,
        ask: Callable[[], None] | None = None,
        *,
        has_supervisor: bool = False,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        """Take what they do.

        Args:
            ask: called by the first one even while the loop is held, between two instructions.
        """
        self.asked = asyncio.Event()
        self._clock = clock
        self._ask = ask
        self._has_supervisor = has_supervisor
        self._end = end
        self._first_s: float | None = None
        self._ending = False

    def install(self) -> StopSignals:
        """Have them from now on. Loop thread, which must be the main thread."""
        loop = asyncio.get_running_loop()
        for number in NUMBERS:
            loop.add_signal_handler(number, self.asked.set)  # which wakes an idle loop
            signal.signal(number, self.came)  # which a loop that is held does not hold up
        return self

    def came(self, number: int, _frame: FrameType | None) -> None:
        """Take a signal: a handler, between any two instructions of the main thread."""
        now_s = self._clock.monotonic()
        if self._first_s is None:
            self._first_s = now_s
            if self._ask is not None:
                self._ask()
        elif not self._has_supervisor and now_s - self._first_s >= SAME_S:
            try:
                if not self._ending:  # else nobody reads the log, which holds up its line
                    self._ending = True
                    log.critical(ENDED, signal.Signals(number).name)
            finally:
                self._end(128 + number)
