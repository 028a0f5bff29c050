"""A table that follows the log: consumer offsets, delay offsets, the checkpoint of timed messages.

    changed --interval--> taken --the log's sync--> written --> told

Such a table speaks of messages: "delivered up to here". On the disk it must come after them. Else a
power cut could keep an offset and take the messages below it, and new messages that get their queue
offsets would be passed over as old ones.

Invariant: the file is written only after the log is on the disk up to where it ended when the table
was taken. Whatever the table speaks of lies below that end. Unlike RocketMQ, which does not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from skylarkmq.broker.tables.persist import TableFile, Take
from skylarkmq.common.clock import Clock, TimerHandle
from skylarkmq.common.table_file import TableWriter, Text
from skylarkmq.store.message_store import MessageStore


class FollowingTable(TableFile):
    """Writes one table at intervals while it changes, each time after the log. Loop thread."""

    def __init__(
        self,
        writer: TableWriter,
        path: Path,
        take: Take,
        store: MessageStore,
        clock: Clock,
        interval_s: float,
        on_written: Callable[[], None] | None = None,
    ) -> None:
        """Make a table without changes.

        Args:
            interval_s: how long after a change the table is taken.
            on_written: called when what was taken last is on the disk.
        """
        super().__init__(writer, path, take)
        self._store = store
        self._clock = clock
        self._interval_s = interval_s
        self._on_written = on_written
        self._timer: TimerHandle | None = None

    def changed(self) -> None:
        """Note a change; the file follows within the interval."""
        self.mark()
        self._plan()

    def write(self) -> None:
        """Have every change so far written, without waiting for the intervals."""
        super().write()
        self._store.sync(_nothing)

    async def stop(self) -> None:
        """Return when everything is on the disk, and write nothing more; a failure is logged.

        Call while the store still syncs.
        """
        await self.flush()
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self) -> None:
        if self._timer is None and not self.is_under_way:
            when_s = self._clock.monotonic() + self._interval_s
            self._timer = self._clock.call_at(when_s, self._due)

    def _due(self) -> None:
        self._timer = None
        super().write()

    def _put(self, text: Text) -> None:
        self._cancel_timer()
        self._store.sync(partial(self._synced, text), at_once=False)

    def _synced(self, text: Text) -> None:
        if self._store.failure is None:
            super()._put(text)
        else:
            self._written(self._store.failure)  # no later sync will pass what the table speaks of

    def _written(self, error: BaseException | None) -> None:
        if error is None and self._on_written is not None:
            self._on_written()
        super()._written(error)
        if self.pending and self._store.failure is None:
            self._plan()


def _nothing() -> None:
    """Nobody waits for this sync alone."""
