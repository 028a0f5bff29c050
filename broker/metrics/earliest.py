"""When the oldest message of the log was stored: read again when a log file has gone."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from skylarkmq.broker.base.waiting import records, result_of
from skylarkmq.protocol.record import read_record
from skylarkmq.store.message_store import MessageStore

log = logging.getLogger(__name__)

NO_TIME: Final = -1


class EarliestMessage:
    """Loop thread.

    Attributes:
        stored_ms: as it was read last; NO_TIME while the log is empty or nothing was read.
    """

    def __init__(self, store: MessageStore) -> None:
        self.stored_ms = NO_TIME
        self._store = store
        self._offset = -1  # of the message that was read
        self._reading: asyncio.Task[int] | None = None

    async def measure(self) -> int:
        """Return the time, ms since the epoch; it is read off the loop unless it is known."""
        offset = self._store.commit_log.min_offset
        if offset != self._offset:
            try:
                (record,) = await result_of(records(self._store, [offset]))
            except (OSError, MemoryError) as error:
                log.warning("the log's first message cannot be read now: %s", error)
                return NO_TIME
            if record is None:
                return NO_TIME
            self.stored_ms = read_record(record, 0, check_crc=False).store_timestamp
            self._offset = offset
        return self.stored_ms

    def begin(self) -> None:
        """Measure without waiting for it; the disk may be slow."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self.measure())
