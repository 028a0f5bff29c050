"""How far each delay level has been delivered: `delayOffset.json`, RocketMQ's own form.

    {"offsetTable":{"<level>":<queue offset of the next message to deliver>}}

Written every `flushDelayOffsetInterval` while something changes, and at a clean stop; a crash
repeats the deliveries since. Of the two files that a write leaves, the older one (`.bak`) is read
when the newer one is missing or damaged.

Invariant: an offset reaches the file only after the deliveries below it are on the disk, or a power
cut could take a delivered copy that the parked one has been passed for. Unlike RocketMQ.
Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../schedule/ScheduleMessageService.java
(persist, load), common/.../ConfigManager.java
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from skylarkmq.broker.persist import load_table, table_text
from skylarkmq.protocol.bodies.offsets import DelayOffsetSerializeWrapper
from skylarkmq.protocol.clock import Clock, TimerHandle
from skylarkmq.store.files import Files
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.table_file import TableWriter

log = logging.getLogger(__name__)

FILE_NAME: Final = "delayOffset.json"
FLUSH_CHECK_INTERVAL_S: Final = 0.1

Saved = Callable[[BaseException | None], None]


class _Taken(NamedTuple):
    """The table on its way to the file."""

    offsets: dict[int, int]
    delivered_offset: int  # physical offset that must be synced first; -1 for none


class DelayOffsetTable:
    """The offsets in memory and the file they go to. Loop thread."""

    def __init__(
        self,
        files: Files,
        writer: TableWriter,
        clock: Clock,
        store: MessageStore,
    ) -> None:
        self._files = files
        self._writer = writer
        self._clock = clock
        self._store = store
        self._path = store.paths.config / FILE_NAME
        self._interval_s = store.config.flush_delay_offset_interval / 1000
        self._offsets: dict[int, int] = {}
        self._delivered_offset = -1  # physical offset of the newest delivered copy
        self._changed = False  # the offsets differ from what was last taken for the file
        self._taken: _Taken | None = None  # waits for its sync
        self._writable: dict[int, int] = {}  # the newest that was taken and synced
        self._waiters: list[Saved] = []
        self._writes_under_way = 0
        self._timer: TimerHandle | None = None

    def load(self) -> None:
        """Read the file. Blocks; before the loop serves.

        Raises:
            CorruptFileError: neither of the two files can be read.
        """
        table = load_table(self._files, self._path, DelayOffsetSerializeWrapper)
        if table is not None:
            self._offsets = {
                level: offset
                for level, offset in table.offset_table.items()
                if level > 0 and offset >= 0
            }

    def get(self, level: int) -> int:
        """Queue offset of the next message of a level to deliver."""
        return self._offsets.get(level, 0)

    def delivered(self, physical_offset: int) -> None:
        """A copy was stored there; an offset that passes its parked form waits for its sync."""
        self._delivered_offset = max(self._delivered_offset, physical_offset)

    def set(self, level: int, offset: int) -> None:
        """Move a level on; the file follows within the interval."""
        if self._offsets.get(level) == offset:
            return
        self._offsets[level] = offset
        self._changed = True
        self._plan(self._interval_s)

    def save(self, done: Saved) -> None:
        """Write the table as it stands now as soon as it may be written; `done` tells the end."""
        self._waiters.append(done)
        if self._changed or self._writes_under_way:
            self._take()
        self.stop()
        self._write()

    def stop(self) -> None:
        """Plan nothing more; what is not in the file stays out of it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _plan(self, wait_s: float) -> None:
        if self._timer is None:
            self._timer = self._clock.call_at(self._clock.monotonic() + wait_s, self._due)

    def _due(self) -> None:
        self._timer = None
        self._write()

    def _take(self) -> None:
        self._taken = _Taken(dict(self._offsets), self._delivered_offset)
        self._changed = False

    def _write(self) -> None:
        """Write what was taken, or take what changed; again in a moment if the sync is behind."""
        if self._taken is None and self._changed:
            self._take()
        taken = self._taken
        if taken is None:
            self._tell(None)
        elif self._store.failure is not None:
            self._tell(self._store.failure)  # no later sync will pass the deliveries
        elif self._store.commit_log.flushed_offset <= taken.delivered_offset:
            self._plan(FLUSH_CHECK_INTERVAL_S)
        else:
            self._taken = None
            self._writes_under_way += 1
            self._writable = taken.offsets
            waiters, self._waiters = self._waiters, []
            self._writer.write(self._path, self._text, partial(self._written, waiters))
            if self._changed:
                self._plan(self._interval_s)

    def _text(self) -> bytes:
        rows = sorted(self._writable.items())
        return table_text("offsetTable", {str(level): offset for level, offset in rows}, None)

    def _written(self, waiters: list[Saved], error: BaseException | None) -> None:
        self._writes_under_way -= 1
        if error is not None:
            log.warning("%s was not written: %s", self._path, error)
            self._changed = True
            self._plan(self._interval_s)
        for waiter in waiters:
            waiter(error)

    def _tell(self, error: BaseException | None) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter(error)
