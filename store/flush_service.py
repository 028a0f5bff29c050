"""Flushing of the commit log: one sync at a time on the flush thread, asked for or by the clock.

    ASYNC_FLUSH   every flushIntervalCommitLog (500 ms) whatever is written is synced
    SYNC_FLUSH    each commit asks; what comes while a sync runs shares the next one

Unlike RocketMQ, the asynchronous flush does not wait for 4 dirty pages, so the window of what a
power cut may take is the interval; and a failed sync is final: after it the kernel may report
success for pages it has dropped, so the store ends its writing and never asks again.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java (FlushRealTimeService)
"""

from __future__ import annotations

from collections.abc import Callable

from skylarkmq.protocol.clock import Clock
from skylarkmq.store.commit_log import CommitLog, FlushRequest
from skylarkmq.store.stats import StoreStats
from skylarkmq.store.worker import Worker


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
    ) -> None:
        self._log = log
        self._worker = worker
        self._clock = clock
        self._stats = stats
        self._on_flushed = on_flushed
        self._on_failure = on_failure
        self._running = False
        self._again = False
        self._ended = False
        self.flushed_timestamp = 0  # store time up to which the log is synced, ms

    @property
    def idle(self) -> bool:
        """Whether no sync is under way."""
        return not self._running

    def end(self) -> None:
        """Start no more syncs."""
        self._ended = True

    def flush(self) -> None:
        """Sync what is written; while a sync runs, remember to do so again."""
        if self._running:
            self._again = True
            return
        request = None if self._ended else self._log.flush_request()
        if request is not None:
            self._running = True
            self._again = False
            started = self._clock.monotonic()
            self._worker.submit(
                request.run, lambda _, error: self._finished(request, started, error)
            )

    def _finished(self, request: FlushRequest, started: float, error: BaseException | None) -> None:
        self._running = False
        if error is not None:
            self._ended = True
            self._stats.fsync_errors += 1
            self._on_failure(error)
            return
        self._stats.fsync_commit_log.observe(self._clock.monotonic() - started)
        self._log.mark_flushed(request)
        self.flushed_timestamp = request.store_timestamp
        self._on_flushed(request.end_offset)
        if self._again:
            self.flush()
