"""Flushing of the commit log: one sync at a time on the flush thread, asked for or by the clock.

    ASYNC_FLUSH   every flushIntervalCommitLog (500 ms) what is committed is synced when it touches
                  flushCommitLogLeastPages; every flushCommitLogThoroughInterval in any case;
                  without flushCommitLogTimed, each append asks too
    SYNC_FLUSH    each commit asks; what comes while a sync runs shares the next one; on the pool
                  road the sync takes along what lies in buffers

Unlike RocketMQ, flushCommitLogLeastPages is 0 and not 4 unless somebody sets it, so the window of
what a power cut may take is the interval; and a failed sync is final: after it the kernel may
report success for pages it has dropped, so the store ends its writing and never asks again.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java (FlushRealTimeService,
GroupCommitService)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from skylarkmq.common.clock import Clock
from skylarkmq.common.worker import Worker
from skylarkmq.store.log.commit_log import CommitLog, FlushRequest
from skylarkmq.store.stats import StoreStats

SLOW_SYNC_S: Final = 0.2
"""A sync that takes longer says that the disk stalls, which an append may meet next."""
EARLY_S = 0.001  # a timer may fire that much before its time


class FlushService:
    """Moves the log's flushed offset forward. Loop thread."""

    def __init__(
        self,
        log: CommitLog,
        worker: Worker,
        clock: Clock,
        stats: StoreStats,
        on_flushed: Callable[[int], None],
        on_failure: Callable[[BaseException], None],
        *,
        commits: bool = False,
        least_pages: int = 0,
        thorough_s: float = 0.0,
    ) -> None:
        """Make a service that waits to be asked.

        Args:
            commits: syncs take along what lies in the pool's buffers alone.
            least_pages: that a sync by the clock needs, unless the last thorough one was
                `thorough_s` seconds ago.
        """
        self._commits = commits
        self._least_pages = least_pages
        self._thorough_s = thorough_s
        self._thorough_at = clock.monotonic()
        self._log = log
        self._worker = worker
        self._clock = clock
        self._stats = stats
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self._running = False
        self.slow_sync_s = SLOW_SYNC_S
        self.slow_at_s = math.inf  # from when on the sync under way is a slow one, monotonic
        self._again: int | None = None  # least pages of what was asked for meanwhile
        self._ended = False
        self.flushed_timestamp = 0  # store time up to which the log is synced, ms

    @property
    def idle(self) -> bool:
        """Whether no sync is under way."""
        return not self._running

    def end(self) -> None:
        """Start no more syncs."""
        self._ended = True

    def tick(self) -> None:
        """The clock asks."""
        now = self._clock.monotonic()
        if self._least_pages and now - self._thorough_at < self._thorough_s - EARLY_S:
            self.flush(self._least_pages)
        else:
            self._thorough_at = now
            self.flush()

    def wake(self) -> None:
        """Something was appended, and appends ask for syncs."""
        self.flush(self._least_pages)

    def flush(self, least_pages: int = 0) -> None:
        """Sync what is written; while a sync runs, remember to do so again."""
        if self._running:
            self._again = least_pages if self._again is None else min(least_pages, self._again)
            return
        if self._ended:
            return
        request = self._log.flush_request(least_pages, commit=self._commits)
        if request is not None:
            self._running = True
            self._again = None
            started = self._clock.monotonic()
            self.slow_at_s = started + self.slow_sync_s
            self._worker.submit(
                request.run, lambda _, error: self._finished(request, started, error)
            )

    def _finished(self, request: FlushRequest, started: float, error: BaseException | None) -> None:
        self._running = False
        self.slow_at_s = math.inf
        if error is not None:
            self._ended = True
            self._stats.fsync_errors += 1
            self._on_failure(error)
            return
        self._stats.fsync_commit_log.observe(self._clock.monotonic() - started)
        self._log.mark_flushed(request)
        self.flushed_timestamp = request.store_timestamp
        self._on_flushed(request.end_offset)
        if self._again is not None:
            self.flush(self._again)
