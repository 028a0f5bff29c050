"""Deliveries of timed messages, a batch at a time, and what takes messages back before.

Due messages go in the order of their due times, then of their sending. Where something takes
messages of a due time back, a batch holds messages of that due time alone; what takes back is done
with when the last message of its due time is, so that a restart in between finds it again.

A message that was refused is tried again after a pause, and nothing behind it goes before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from skylarkmq.broker.timer.messages import TimedMessages
from skylarkmq.common.clock import Clock
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.results import STORED, MessageInner, PutMessageResult
from skylarkmq.store.timer.checkpoint import TimerState
from skylarkmq.store.timer.index import TimerIndex, key
from skylarkmq.store.timer.run_file import ENTRY

log = logging.getLogger(__name__)

DELIVER_COUNT: Final = 128
DELIVER_BYTES: Final = 1 << 20
CANCELS_MAX: Final = 100_000
"""Messages that may be taken back at one due time; more are delivered."""
WAIT_MAX_S: Final = 1.0
RETRY_S: Final = 1.0  # after a put that failed

Records = list[bytes | None]
Stepped = Callable[[float | None], None]  # when to go on, s; None: nothing waits
Guarded = Callable[[Callable[[], None]], None]


class Deliveries:
    """Takes what is due and stores its copies. Loop thread."""

    def __init__(
        self,
        store: MessageStore,
        clock: Clock,
        state: TimerState,
        timed: TimedMessages,
        guarded: Guarded,
    ) -> None:
        """Make it.

        Args:
            guarded: runs what goes on after a read, and deals with its errors.
        """
        self._store = store
        self._clock = clock
        self._state = state
        self._timed = timed
        self._guarded = guarded
        self._failing = False  # the last batch was refused, which was logged
        self.delivered_count = 0
        self.running = False

    def step(self, done: Stepped) -> None:
        """Deliver a batch, or find out when the next one is due; no run may be unloaded.

        Args:
            done: called when the batch is stored, which may be before this returns.
        """
        messages, cancels = self._state.indexes
        now_ms = self._clock.now_ms()
        head = messages.head()
        due_ms = due_of(head) if head is not None else now_ms + 1
        if self._end_cancels(min(due_ms, now_ms + 1)):
            done(0)  # there may be more of them, and the next ones may have to be read first
            return
        first_cancel = cancels.head()
        if head is None or due_ms > now_ms:
            done(self._wait_s([entry for entry in (head, first_cancel) if entry is not None]))
            return
        if first_cancel is not None and due_of(first_cancel) <= due_ms:
            if self._timed.cancel_count < CANCELS_MAX:
                self._take_cancels(due_ms, done)
                return
            log.error("more than %d messages are to be taken back at %d", CANCELS_MAX, due_ms)
        end_ms = now_ms + 1
        if cancels.hand:
            end_ms = due_ms + 1
        elif first_cancel is not None:
            end_ms = min(end_ms, due_of(first_cancel))
        messages.take(key(end_ms, 0), DELIVER_COUNT, DELIVER_BYTES)
        self._with_records(messages, 0, lambda entries, records: self._put(entries, records, done))

    def _wait_s(self, firsts: list[bytes]) -> float | None:
        if not firsts:
            return None
        wait_s = (due_of(min(firsts)) - self._clock.now_ms()) / 1000
        return min(max(0.0, wait_s), WAIT_MAX_S)

    def _with_records(
        self, index: TimerIndex, known: int, then: Callable[[list[bytes], Records | None], None]
    ) -> None:
        """Go on with the records of what is in hand, from the disk off the loop."""
        entries = [taken.entry for taken in index.hand[known:] if not taken.is_void]
        places = [ENTRY.unpack(entry)[2] for entry in entries]
        if all(self._store.is_in_memory(place) for place in places):
            then(entries, None)
        else:
            self._store.read_records(
                places, lambda records: self._guarded(lambda: then(entries, records))
            )

    # Taking back

    def _end_cancels(self, due_ms: int) -> bool:
        """Forget what takes messages back that were due before a time; False when none was left.

        Those of a later time may be looked at only after it has said False.
        """
        cancels = self._state.cancels
        if cancels.hand and due_of(cancels.hand[0].entry) < due_ms:
            cancels.confirm(len(cancels.hand))
            self._timed.forget_cancels()
        if cancels.hand:
            return False
        cancels.take(key(due_ms, 0), DELIVER_COUNT, 1 << 62)
        count = len(cancels.hand)
        cancels.confirm(count)
        return count > 0

    def _take_cancels(self, due_ms: int, done: Stepped) -> None:
        cancels = self._state.cancels
        known = len(cancels.hand)
        cancels.take(key(due_ms + 1, 0), known + DELIVER_COUNT, 1 << 62)

        def take(entries: list[bytes], records: Records | None) -> None:
            self._timed.take_cancels(entries, records)
            done(0)

        self._with_records(cancels, known, take)

    # Storing

    def _put(self, entries: list[bytes], records: Records | None, done: Stepped) -> None:
        messages = self._state.messages
        if not self.running:
            messages.give_back()
            done(None)
            return
        copies = self._timed.copies(entries, records, self._clock.now_ms())

        def stored(results: list[PutMessageResult]) -> None:
            refused = self._stored(entries, copies, results)
            count = len(messages.hand)
            if refused is not None:
                count = next(n for n, taken in enumerate(messages.hand) if taken.entry == refused)
            messages.confirm(count)
            messages.give_back()
            done(0 if refused is None else RETRY_S)

        self._store.put_messages([inner for _, inner in copies], stored)

    def _stored(
        self,
        entries: list[bytes],
        copies: list[tuple[int, MessageInner]],
        results: list[PutMessageResult],
    ) -> bytes | None:
        """Count what was stored; the first entry that was refused."""
        for (number, _), result in zip(copies, results, strict=True):
            if result.status not in STORED:
                self._refused(entries[number], result)
                return entries[number]
            self.delivered_count += 1
        self._failing = False
        return None

    def _refused(self, entry: bytes, result: PutMessageResult) -> None:
        if not self._failing:
            self._failing = True
            log.error(
                "timed message %d was refused, trying again every %d s: %s, %s",
                ENTRY.unpack(entry)[1],
                RETRY_S,
                result.status.value,
                result.why,
            )


def due_of(entry: bytes) -> int:
    """When an entry is due, ms since the epoch."""
    return int.from_bytes(entry[:8], "big")
