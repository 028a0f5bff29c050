"""How far each delay level has been delivered: `delayOffset.json`, RocketMQ's own form.

    {"offsetTable":{"<level>":<queue offset of the next message to deliver>}}

It follows the log, each `flushDelayOffsetInterval` while something changes, and at a clean stop; a
crash repeats the deliveries since. Of the two files that a write leaves, the older one (`.bak`) is
read when the newer one is missing or damaged.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../schedule/ScheduleMessageService.java
(persist, load), common/.../ConfigManager.java
"""

from __future__ import annotations

from functools import partial
from typing import Final

from skylarkmq.broker.tables.json_table import load_table, table_text
from skylarkmq.broker.tables.persist import FollowingTable
from skylarkmq.common.clock import Clock
from skylarkmq.common.files import Files
from skylarkmq.common.table_file import TableWriter, Text
from skylarkmq.protocol.bodies.group import DelayOffsetSerializeWrapper
from skylarkmq.store.message_store import MessageStore

FILE_NAME: Final = "delayOffset.json"


class DelayOffsetTable(FollowingTable):
    """The offsets in memory and the file they go to. Loop thread."""

    def __init__(
        self, files: Files, writer: TableWriter, clock: Clock, store: MessageStore
    ) -> None:
        path, interval_s = (
            store.paths.config / FILE_NAME,
            store.config.flush_delay_offset_interval / 1000,
        )
        super().__init__(writer, path, self._taken, store, clock, interval_s)
        self._files = files
        self._offsets: dict[int, int] = {}

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
        """Return the queue offset of the next message of a level to deliver."""
        return self._offsets.get(level, 0)

    def set(self, level: int, offset: int) -> None:
        """Move a level on; the file follows within the interval."""
        if self._offsets.get(level) != offset:
            self._offsets[level] = offset
            self.changed()

    def rows(self) -> dict[int, int]:
        """Return the offsets of all levels."""
        return dict(self._offsets)

    def forget(self, level: int) -> None:
        """Begin a level at the start of its queue."""
        if self._offsets.pop(level, None) is not None:
            self.changed()

    def _taken(self) -> Text:
        rows = {str(level): offset for level, offset in sorted(self._offsets.items())}
        return partial(table_text, "offsetTable", rows, None)
