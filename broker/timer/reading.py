"""From the timer topic's queue to the entries that wait: a bounded piece of the queue at a time.

Pieces that memory holds are read on the loop, others by the reads worker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from skylarkmq.protocol.flags import RMQ_SYS_WHEEL_TIMER_TOPIC
from skylarkmq.protocol.record import PLACE, record_properties
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.results import GetMessageResult
from skylarkmq.store.timer.checkpoint import TimerState
from skylarkmq.store.timer.rules import TIMER_QUEUE_ID, cancelled_key, due_of
from skylarkmq.store.timer.run_file import ENTRY

log = logging.getLogger(__name__)

READ_COUNT: Final = 256
READ_BYTES: Final = 1 << 20

Read = Callable[[BaseException | None], None]


class QueueReading:
    """Reads on behind `state.queue_offset`. Loop thread."""

    def __init__(self, store: MessageStore, state: TimerState) -> None:
        self._store = store
        self._state = state

    @property
    def end(self) -> int:
        """The queue offset behind the last message."""
        return self._store.max_offset(RMQ_SYS_WHEEL_TIMER_TOPIC, TIMER_QUEUE_ID)

    @property
    def is_again(self) -> bool:
        """Whether what is read next was read before a crash."""
        return self._state.queue_offset < self._state.known_below

    def read(self, done: Read) -> None:
        """Take the next piece in; `done` may be called before this returns."""
        topic, queue_id, offset = (
            RMQ_SYS_WHEEL_TIMER_TOPIC,
            TIMER_QUEUE_ID,
            self._state.queue_offset,
        )

        def got(result: GetMessageResult | None, error: BaseException | None) -> None:
            if result is not None:
                self._take_in(result)
            done(error)

        store = self._store
        if store.is_cold(topic, queue_id, offset):
            store.get_message_cold(topic, queue_id, offset, READ_COUNT, READ_BYTES, None, got)
        else:
            got(store.get_message(topic, queue_id, offset, READ_COUNT, READ_BYTES), None)

    def _take_in(self, result: GetMessageResult) -> None:
        state = self._state
        if result.next_begin_offset < state.queue_offset:
            log.error(
                "the timer topic has %d messages, and %d were read already: going on at its end",
                result.next_begin_offset,
                state.queue_offset,
            )
            state.known_below = 0
            state.rebuild()
        for view in result.views:
            self._take_records(view)
        state.queue_offset = result.next_begin_offset
        for index in state.indexes:
            index.has_read(state.queue_offset)

    def _take_records(self, view: memoryview | bytes) -> None:
        state, position = self._state, 0
        messages, cancels = state.indexes
        while position < len(view):
            size, queue_offset, physical_offset = PLACE.unpack_from(view, position)
            text = record_properties(view, position, size) or b""
            entry = ENTRY.pack(max(0, due_of(text) or 0), queue_offset, physical_offset, size)
            is_cancel = cancelled_key(text) is not None
            if not state.knows(entry, queue_offset, physical_offset, is_cancel=is_cancel):
                (cancels if is_cancel else messages).insert(entry)
            position += size
