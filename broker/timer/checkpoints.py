"""When the checkpoint of the timed messages is written: each `timerFlushIntervalMs` while something
changes, and at a clean stop.

Invariant: it reaches the disk only behind the records that it speaks of, the waiting ones and the
delivered copies, or a power cut could take a delivered copy that the waiting one is passed for, and
new messages would be taken for old ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from skylarkmq.protocol.clock import Clock, TimerHandle
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.table_file import TableWriter

log = logging.getLogger(__name__)

FLUSH_CHECK_S: Final = 0.1

Saved = Callable[[BaseException | None], None]


class Snapshot(NamedTuple):
    """A checkpoint on its way to the disk."""

    data: bytes
    synced_offset: int  # the log must be on the disk up to here first
    garbage: tuple[int, ...]  # runs that nobody needs once it is there
    void_below: int  # as in the checkpoint


class CheckpointService:
    """Writes the checkpoint. Loop thread."""

    def __init__(
        self,
        store: MessageStore,
        writer: TableWriter,
        clock: Clock,
        path: Path,
        take: Callable[[], Snapshot | None],
        written: Callable[[Snapshot], None],
    ) -> None:
        """Make the service.

        Args:
            take: gives the state as it is, None when it can not be told now.
            written: told what is on the disk.
        """
        self._store = store
        self._writer = writer
        self._clock = clock
        self._path = path
        self._take = take
        self._on_written = written
        self._interval_s = store.config.timer_flush_interval_ms / 1000
        self._changed = False
        self._last = b""  # what the file holds, as far as this run knows
        self._taken: Snapshot | None = None  # waits for the log's sync
        self._writing: Snapshot | None = None
        self._waiters: list[Saved] = []
        self._timer: TimerHandle | None = None

    def changed(self) -> None:
        """The state is not what was last taken; the file follows within the interval."""
        self._changed = True
        if self._taken is None and self._writing is None:
            self._plan(self._interval_s)

    def save(self, done: Saved) -> None:
        """Write the state as it is as soon as it may be written; `done` tells the end."""
        self._waiters.append(done)
        self._changed, self._taken = True, None
        self.stop()
        self._write()

    def stop(self) -> None:
        """Plan nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self, wait_s: float) -> None:
        if self._timer is None:
            self._timer = self._clock.call_at(self._clock.monotonic() + wait_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self._write()

    def _write(self) -> None:
        if self._writing is not None:
            return  # its end goes on
        if self._taken is None and self._changed:
            self._taken = self._take()
            self._changed = self._taken is None
            if self._taken is not None and self._taken.data == self._last:
                self._taken = None
        taken = self._taken
        if taken is None:
            if self._waiters:
                self._tell(None)
            elif self._changed:
                self._plan(self._interval_s)
        elif self._store.failure is not None:
            self._tell(self._store.failure)  # no later sync will pass what it speaks of
        elif self._store.commit_log.flushed_offset < taken.synced_offset:
            self._plan(FLUSH_CHECK_S)
        else:
            self._taken, self._writing = None, taken
            self._writer.write(self._path, lambda: taken.data, self._written)

    def _written(self, error: BaseException | None) -> None:
        snapshot, self._writing = self._writing, None
        if error is not None:
            log.warning("%s was not written: %s", self._path, error)
            self._changed = True
        elif snapshot is not None:
            self._last = snapshot.data
            self._on_written(snapshot)
        if self._waiters and (self._taken is not None or (self._changed and error is None)):
            self._write()  # asked for while the older one was on its way
            return
        self._tell(error)
        if self._changed:
            self._plan(self._interval_s)

    def _tell(self, error: BaseException | None) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter(error)
