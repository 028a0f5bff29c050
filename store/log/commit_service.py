"""Commits of what lies in memory: one at a time on the commit thread, asked for or by the clock.

    each batch that left the loop        commits all
    each append to the transient pool    commits once commitCommitLogLeastPages pages are staged
    commitIntervalCommitLog (200 ms)     the same
    commitCommitLogThoroughInterval      whatever is staged, also less than a page

The pool together with SYNC_FLUSH does without it: there the flush thread commits before each sync.
A thread of its own, so that a slow sync does not widen the time in which a killed process loses
messages. The clock asks on the pool's road alone.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java (CommitRealTimeService)
"""

from __future__ import annotations

from collections.abc import Callable

from skylarkmq.common.clock import Clock
from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.common.worker import Worker
from skylarkmq.store.config import StoreConfig
from skylarkmq.store.log.commit_log import CommitLog, CommitRequest
from skylarkmq.store.stats import StoreStats

EARLY_S = 0.001  # a timer may fire that much before its time


class CommitService:
    """Moves the log's committed offset forward. Loop thread."""

    def __init__(
        self,
        log: CommitLog,
        worker: Worker,
        clock: Clock,
        stats: StoreStats,
        config: StoreConfig,
        on_committed: Callable[[int, float], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Make a service that waits to be asked.

        Args:
            on_committed: called with the end of what is committed and what the write took, s.
        """
        self._log = log
        self._worker = worker
        self._clock = clock
        self._stats = stats
        self._on_committed = on_committed
        self._on_failure = on_failure
        self._least_pages = config.commit_commit_log_least_pages
        self._thorough_s = config.commit_commit_log_thorough_interval / 1000
        self._thorough_at = 0.0  # when all that was staged was last committed
        self._running = False
        self._wanted = False
        self._ended = False
        self._timer = IntervalTimer(clock, config.commit_interval_commit_log / 1000, self._tick)

    def start(self) -> None:
        """Start the timed commits, which the pool alone needs."""
        if self._log.pool is not None:
            self._thorough_at = self._clock.monotonic()
            self._timer.start()

    def stop(self) -> None:
        """End the timed commits."""
        self._timer.stop()

    def end(self) -> None:
        """Start no more commits."""
        self._ended = True
        self._timer.stop()

    def appended(self) -> None:
        """Something was staged or handed in: commit it if that is worth a write."""
        if self._running:
            return  # the end of the commit under way looks again
        self._commit(self._least_pages)

    def _tick(self) -> None:
        now = self._clock.monotonic()
        if now - self._thorough_at < self._thorough_s - EARLY_S:
            self.appended()
        elif self._running:
            self._wanted = True
        else:
            self._thorough_at = now
            self._commit(0)

    def _commit(self, least_pages: int) -> None:
        request = None if self._ended else self._log.commit_request(least_pages)
        if request is not None:
            self._running = True
            started = self._clock.monotonic()
            self._worker.submit(
                request.run, lambda _, error: self._finished(request, started, error)
            )

    def _finished(
        self, request: CommitRequest, started: float, error: BaseException | None
    ) -> None:
        self._running = False
        if error is not None:
            self._ended = True
            self._stats.write_errors += 1
            self._on_failure(error)
            return
        took_s = self._clock.monotonic() - started
        self._stats.commit_duration.observe(took_s)
        self._log.mark_committed(request)
        self._on_committed(self._log.max_offset, took_s)
        if self._running:  # an append from within has started one
            return
        if self._wanted:
            self._wanted = False
            self._thorough_at = self._clock.monotonic()
            self._commit(0)
        else:
            self._commit(self._least_pages)
