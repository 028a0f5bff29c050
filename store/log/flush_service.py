"""Syncs of the commit log, and commits of what lies in memory: one job at a time for each.

Flush thread: `FlushService` syncs.

    ASYNC_FLUSH   every flushIntervalCommitLog (500 ms) what is committed is synced, if it touches
                  flushCommitLogLeastPages pages; every flushCommitLogThoroughInterval in any case;
                  without flushCommitLogTimed, each append asks too
    SYNC_FLUSH    each commit asks; what comes while a sync runs shares the next one; with the pool
                  a sync first writes what lies in buffers

Unlike RocketMQ, flushCommitLogLeastPages is 0, not 4, unless it is configured: so a power cut takes
what was stored within the interval. And a failed sync is final: after it the kernel may report
success for pages it has dropped, so the store ends its writing and never asks again.

Commit thread: `CommitService` writes. It is another thread so that a slow sync does not widen the
time in which a killed process loses messages.

    each batch that left the loop        commits all
    each append to the transient pool    commits once commitCommitLogLeastPages pages are staged
    commitIntervalCommitLog (200 ms)     the same; with the pool only
    commitCommitLogThoroughInterval      commits all that is staged, even less than a page

The pool together with SYNC_FLUSH has no commit service: the flush thread commits before each sync.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../CommitLog.java (FlushRealTimeService,
GroupCommitService, CommitRealTimeService)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Final

from skylarkmq.common.repeating import IntervalTimer
from skylarkmq.store.environment import Environment
from skylarkmq.store.log.commit_log import CommitLog, CommitRequest, FlushRequest

SLOW_SYNC_S: Final = 0.2
"""A sync that takes longer shows that the disk stalls, and the next append may stall too."""
EARLY_S = 0.001  # a timer may fire that much before its time


class FlushService:
    """Moves the log's flushed offset forward. Loop thread."""

    def __init__(self, env: Environment, log: CommitLog, on_flushed: Callable[[int], None]) -> None:
        """Make a service that waits to be asked.

        Args:
            on_flushed: called with the end of what is synced.
        """
        config = env.config
        is_sync = config.flush_disk_type == "SYNC_FLUSH"
        self.commits = is_sync and log.writer.stages  # syncs write what is staged first
        # Pages that a timed sync needs, unless the last thorough one was so many seconds ago.
        self._least_pages = 0 if is_sync else config.flush_commit_log_least_pages
        self._thorough_s = config.flush_commit_log_thorough_interval / 1000
        self._thorough_at = env.clock.monotonic()
        self._log = log
        self._env = env
        self._on_flushed = on_flushed
        self._running = False
        self.slow_sync_s = SLOW_SYNC_S
        self.slow_at_s = math.inf  # from when on the sync under way is a slow one, monotonic
        self._again: int | None = None  # least pages of what was asked for meanwhile
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()  # (end offset, who waits)
        self._ended = False
        self.flushed_timestamp = 0  # store time up to which the log is synced, ms

    @property
    def idle(self) -> bool:
        """True while no sync is under way."""
        return not self._running

    def end(self) -> None:
        """Start no more syncs."""
        self._ended = True

    @property
    def is_awaited(self) -> bool:
        """True while somebody waits for a sync; see `sync`."""
        return bool(self._waiting)

    def sync(self, done: Callable[[], object], *, at_once: bool = True) -> None:
        """Call `done` when everything written so far is on the disk, or the store has failed.

        Args:
            at_once: sync the log now, without waiting for its time.
        """
        end_offset = self._log.wrote_offset
        if self._ended or self._log.flushed_offset >= end_offset:
            done()
        else:
            self._waiting.append((end_offset, done))
            if at_once:
                self.flush()

    def tell_synced(self) -> None:
        """Call those who wait for what is synced; after the end, all."""
        waiting = self._waiting
        while waiting and (self._ended or waiting[0][0] <= self._log.flushed_offset):
            waiting.popleft()[1]()

    def tick(self) -> None:
        """Sync because it is time."""
        now = self._env.clock.monotonic()
        if self._least_pages and now - self._thorough_at < self._thorough_s - EARLY_S:
            self.flush(self._least_pages)
        else:
            self._thorough_at = now
            self.flush()

    def wake(self) -> None:
        """Sync because something was appended, where appends ask for syncs."""
        self.flush(self._least_pages)

    def flush(self, least_pages: int = 0) -> None:
        """Sync what is written; while a sync runs, remember to sync again after it."""
        if self._running:
            self._again = least_pages if self._again is None else min(least_pages, self._again)
            return
        if self._ended:
            return
        request = self._log.flush_request(least_pages, commit=self.commits)
        if request is not None:
            self._running = True
            self._again = None
            started = self._env.clock.monotonic()
            self.slow_at_s = started + self.slow_sync_s
            self._env.workers.flush.submit(
                request.run, lambda _, error: self._finished(request, started, error)
            )

    def _finished(self, request: FlushRequest, started: float, error: BaseException | None) -> None:
        self._running = False
        self.slow_at_s = math.inf
        if error is not None:
            self._ended = True
            self._env.stats.fsync_errors += 1
            self._env.fail(error)
            return
        self._env.stats.fsync_commit_log.observe(self._env.clock.monotonic() - started)
        self._log.mark_flushed(request)
        self.flushed_timestamp = request.store_timestamp
        self._on_flushed(request.end_offset)
        self.tell_synced()
        if self._again is not None:
            self.flush(self._again)


class CommitService:
    """Moves the log's committed offset forward. Loop thread."""

    def __init__(
        self, env: Environment, log: CommitLog, on_committed: Callable[[float], None]
    ) -> None:
        """Make a service that waits to be asked.

        Args:
            on_committed: called after each commit with what the write took, s.
        """
        config = env.config
        self._log = log
        self._env = env
        self._on_committed = on_committed
        self._least_pages = config.commit_commit_log_least_pages
        self._thorough_s = config.commit_commit_log_thorough_interval / 1000
        self._thorough_at = 0.0  # when all that was staged was last committed
        self._running = False
        self._wanted = False
        self._ended = False
        self._timer = IntervalTimer(env.clock, config.commit_interval_commit_log / 1000, self._tick)

    def start(self) -> None:
        """Start the timed commits, where every batch needs one."""
        if self._log.writer.stages:
            self._thorough_at = self._env.clock.monotonic()
            self._timer.start()

    def stop(self) -> None:
        """End the timed commits."""
        self._timer.stop()

    def end(self) -> None:
        """Start no more commits."""
        self._ended = True
        self._timer.stop()

    def appended(self) -> None:
        """Commit what was staged or handed in, if that is worth a write."""
        if self._running:
            return  # the end of the commit under way looks again
        self._commit(self._least_pages)

    def _tick(self) -> None:
        now = self._env.clock.monotonic()
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
            started = self._env.clock.monotonic()
            self._env.workers.commit.submit(
                request.run, lambda _, error: self._finished(request, started, error)
            )

    def _finished(
        self, request: CommitRequest, started: float, error: BaseException | None
    ) -> None:
        if error is not None:
            self._ended = True
            self._env.stats.write_errors += 1
            self._env.fail(error)
            return
        took_s = self._env.clock.monotonic() - started
        self._env.stats.commit_duration.observe(took_s)
        self._log.mark_committed(request)
        # Nothing that is appended from within starts another: the writer may write it at once.
        self._on_committed(took_s)
        self._running = False
        if self._wanted:
            self._wanted = False
            self._thorough_at = self._env.clock.monotonic()
            self._commit(0)
        else:
            self._commit(self._least_pages)
