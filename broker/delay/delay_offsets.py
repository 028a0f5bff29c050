"""How far each delay level has been delivered: `delayOffset.json`, RocketMQ's own form.

    {"offsetTable":{"<level>":<queue offset of the next message to deliver>}}

It follows the log, each `flushDelayOffsetInterval` while something changes, and at a clean stop; a
crash repeats the deliveries since. Of the two files that a write leaves, the older one (`.bak`) is
read when the newer one is missing or damaged.

A log that was cut beside it has lost messages that wait, or the delivered copies of some. Our own
file, `skylarkmq/delay-history`, is written before each time; it says how long the log was, and
where the levels were when it was shorter (`store/log_history.py`): a map with `history`, a list of
[end of the log, [[level, offset], ...]]. A start on a shorter log goes back to that.

Without it, as after RocketMQ: a copy is never older than its time, so each start looks for messages
that count as delivered and are due after the newest record: the copies of those are gone. Such a
level goes back to the first one of that time, and `MARGIN_MS` more for copies that were late:
repeated rather than lost.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../schedule/ScheduleMessageService.java
(persist, load), common/.../ConfigManager.java
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from functools import partial
from typing import Final

from skylarkmq.broker.tables.json_table import load_table, table_text
from skylarkmq.broker.tables.persist import FollowingTable
from skylarkmq.common.clock import Clock
from skylarkmq.common.errors import CorruptFileError
from skylarkmq.common.files import Files
from skylarkmq.common.refusal import refusal
from skylarkmq.common.sidecar import Kind, encode_sidecar, read_sidecar
from skylarkmq.common.table_file import TableWriter, Text
from skylarkmq.protocol.bodies.group import DelayOffsetSerializeWrapper
from skylarkmq.protocol.flags import RMQ_SYS_SCHEDULE_TOPIC
from skylarkmq.store.delay_levels import schedule_queue_id
from skylarkmq.store.log_history import LogHistory
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.queue.extension import is_address

log = logging.getLogger(__name__)

FILE_NAME: Final = "delayOffset.json"
Offsets = dict[int, int]
History = dict[str, list[tuple[int, list[tuple[int, int]]]]]
MARGIN_MS: Final = 60_000
"""How late a copy may have been stored that is looked for."""


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
        self._history = LogHistory[Offsets]()
        self._history_path = store.paths.delay_history

    def load(self) -> None:
        """Read the file, after the store. Blocks; before the loop serves.

        Raises:
            CorruptFileError: neither of the two files can be read.
            OSError: the disk failed.
        """
        table = load_table(self._files, self._path, DelayOffsetSerializeWrapper)
        if table is not None:
            self._offsets = {
                level: offset
                for level, offset in table.offset_table.items()
                if level > 0 and offset >= 0
            }
        self._history = self._read_history()
        log_end = self._store.commit_log.wrote_offset
        if self._history.log_end > log_end:
            self._go_back(log_end)
        for level, offset in self._offsets.items():
            self._clip(level, offset)

    def _read_history(self) -> LogHistory[Offsets]:
        path = self._history_path
        try:
            content = read_sidecar(self._files, path, Kind.DELAY_HISTORY, History) or {}
        except CorruptFileError as error:
            log.warning("%s counts for nothing: %s", path, error)
            content = {}
        return LogHistory((log_end, dict(rows)) for log_end, rows in content.get("history", ()))

    def _go_back(self, log_end: int) -> None:
        """Go on where the levels were when the log was as short as it is now."""
        before = self._history.go_back(log_end) or {}
        self._offsets = {
            level: min(offset, before.get(level, 0)) for level, offset in self._offsets.items()
        }
        log.warning(
            "the log was cut to %d: delayed messages whose copies may have gone are delivered "
            "again, from where their levels were when it ended at %d",
            log_end,
            self._history.log_end,
        )
        # The log may be longer again when the files are written next. The offsets go first.
        try:
            self._files.replace(self._path, self._text(self._rows()), backup=True)
            self._files.replace(self._history_path, self._history_text(), backup=False)
        except OSError as error:
            if refusal(error) is None:
                raise
            log.warning("%s will be written later: %s", self._path, error)
            self.mark()

    def _clip(self, level: int, offset: int) -> None:
        """Let nothing count as delivered that cannot be."""
        topic, queue_id = RMQ_SYS_SCHEDULE_TOPIC, schedule_queue_id(level)
        low, end = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        newest_ms = self._store.commit_log.store_timestamp

        def due_ms(place: int) -> int:
            units = self._store.queue_units(topic, queue_id, place, 1)
            return units[0].tags_code if units and not is_address(units[0].tags_code) else 0

        known = range(low, min(offset, end))
        if offset <= end and (not known or due_ms(known[-1]) <= newest_ms):
            return
        self._offsets[level] = low + bisect_right(known, newest_ms - MARGIN_MS, key=due_ms)
        self.mark()
        log.warning(
            "delay level %d was delivered up to %d of its queue, but the log was cut since: it "
            "goes on at %d of %d, and may repeat messages",
            level,
            offset,
            self._offsets[level],
            end,
        )

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
        self._history.say(self._store.commit_log.wrote_offset, dict(self._offsets))
        return partial(self._both, self._history_text(), self._rows())

    def _both(self, history: bytes, rows: dict[str, int]) -> bytes:
        """Return the text, after the history was written. Tables thread."""
        self._files.replace(self._history_path, history, backup=False)
        return self._text(rows)

    def _rows(self) -> dict[str, int]:
        return {str(level): offset for level, offset in sorted(self._offsets.items())}

    @staticmethod
    def _text(rows: dict[str, int]) -> bytes:
        return table_text("offsetTable", rows, None)

    def _history_text(self) -> bytes:
        rows = [[log_end, [*said.items()]] for log_end, said in self._history.rows]
        return encode_sidecar(Kind.DELAY_HISTORY, {"history": rows})
