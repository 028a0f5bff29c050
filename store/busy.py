"""Whether producers must wait because the disk is behind.

    pool_exhausted     every buffer of the transient pool is out
    page_cache_busy    an append took longer than osPageCacheBusyTimeOutMills: the kernel held the
                       writer back, or had no memory. Producers then wait as long as that append
                       took, a second at most; the next append tells how it is now.

Unlike RocketMQ, which looks at the append under way: here nobody runs beside it who could look.
Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (isOSPageCacheBusy,
isTransientStorePoolDeficient)
"""

from __future__ import annotations

import logging
from typing import Final, NamedTuple

from skylarkmq.protocol.clock import Clock
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.transient_pool import TransientStorePool

log = logging.getLogger(__name__)

SLOW_PAUSE_MAX_S: Final = 1.0
"""The longest that producers wait after a slow append before the next one is tried."""


class Busy(NamedTuple):
    """Why producers must wait."""

    cause: str  # as in `stats.BUSY_CAUSES`
    figures: str  # for a human


class BusyGauge:
    """Knows how the last appends went. Loop thread.

    Attributes:
        slow_limit_s: an append that takes longer goes to `note_slow`.
    """

    def __init__(self, config: StoreConfig, clock: Clock, pool: TransientStorePool | None) -> None:
        self._config = config
        self._clock = clock
        self._pool = pool
        self._slow_ms = 0
        self._slow_until_s = 0.0  # on the monotonic clock; 0: the last append was quick enough
        self.slow_limit_s = config.os_page_cache_busy_time_out_mills / 1000

    def note_slow(self, took_s: float) -> None:
        """An append that has just ended was slow."""
        self._slow_ms = int(took_s * 1000)
        self._slow_until_s = self._clock.monotonic() + min(took_s, SLOW_PAUSE_MAX_S)
        log.warning("an append took %d ms: sends are refused for a while", self._slow_ms)

    @property
    def is_busy(self) -> bool:
        """Whether producers must wait."""
        if self._slow_until_s:
            if self._clock.monotonic() < self._slow_until_s:
                return True
            self._slow_until_s = 0.0
        return self._pool is not None and self._pool.is_deficient

    def why(self) -> Busy | None:
        """Why producers must wait; None when they need not."""
        if not self.is_busy:
            return None
        if self._slow_until_s:
            limit_ms = self._config.os_page_cache_busy_time_out_mills
            return Busy(
                "page_cache_busy",
                f"an append took {self._slow_ms} ms; osPageCacheBusyTimeOutMills={limit_ms}",
            )
        size = self._config.transient_store_pool_size
        return Busy(
            "pool_exhausted",
            f"every buffer of the transient pool is out; transientStorePoolSize={size}",
        )
