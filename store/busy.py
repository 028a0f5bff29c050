"""Whether producers must wait because the disk is behind.

    pool_exhausted     every buffer of the transient pool is out
    page_cache_busy    an append has been under way for osPageCacheBusyTimeOutMills: the file
                       system, or the kernel for want of memory, holds the writer back; or more
                       than LATER_MAX_SIZE waits for such a writer

An append is under way as long as its bytes wait for the commit thread: once an append was slow, the
next ones leave the loop (`message_writer.py`).

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (isOSPageCacheBusy,
isTransientStorePoolDeficient)
"""

from __future__ import annotations

from typing import Final, NamedTuple

from skylarkmq.common.clock import Clock
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.log.commit_log import CommitLog

LATER_MAX_SIZE: Final = 16 << 20
"""Bytes that may wait for a slow write, which is what a quick disk takes in a few milliseconds."""


class Busy(NamedTuple):
    """Why producers must wait."""

    cause: str  # as in `stats.BUSY_CAUSES`
    figures: str  # for a human


class BusyGauge:
    """Looks at the append under way and at the pool. Loop thread."""

    def __init__(self, config: StoreConfig, clock: Clock, commit_log: CommitLog) -> None:
        self._config = config
        self._clock = clock
        self._log = commit_log
        self._limit_s = config.os_page_cache_busy_time_out_mills / 1000

    @property
    def is_busy(self) -> bool:
        """Whether producers must wait."""
        if self._log.later and (self._age_s > self._limit_s or self._size > LATER_MAX_SIZE):
            return True
        return self._log.pool is not None and self._log.pool.is_deficient

    @property
    def _age_s(self) -> float:
        """How long the oldest append has been under way."""
        return self._clock.monotonic() - self._log.later[0].since_s

    @property
    def _size(self) -> int:
        """Bytes of the log from the oldest append under way on."""
        oldest = self._log.later[0]
        return self._log.wrote_offset - oldest.mapped.start_offset - oldest.position

    def why(self) -> Busy | None:
        """Why producers must wait; None when they need not."""
        if not self.is_busy:
            return None
        if self._log.pool is not None and self._log.pool.is_deficient:
            size = self._config.transient_store_pool_size
            return Busy(
                "pool_exhausted",
                f"every buffer of the transient pool is out; transientStorePoolSize={size}",
            )
        limit_ms = self._config.os_page_cache_busy_time_out_mills
        return Busy(
            "page_cache_busy",
            f"an append has been under way for {self._age_s * 1000:.0f} ms with {self._size} bytes;"
            f" osPageCacheBusyTimeOutMills={limit_ms}",
        )
