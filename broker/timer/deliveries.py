"""Deliveries of timed messages, a batch at a time, and what takes messages back before.

Due messages go in the order of their due times, then of their sending. Where something takes
messages of a due time back, a batch holds messages of that due time alone; what takes back is done
with when the last message of its due time is, so that a restart in between finds it again.

A message that was refused is tried again after a pause, and no later message overtakes it.
"""

from __future__ import annotations

import logging
from typing import Final

from skylarkmq.broker.base.waiting import put, records
from skylarkmq.broker.timer.messages import TimedMessages
from skylarkmq.common.clock import Clock
from skylarkmq.common.worker import Call
from skylarkmq.store.message_store import MessageStore
from skylarkmq.store.results import STORED, PutMessageResult
from skylarkmq.store.timer.checkpoint import TimerState
from skylarkmq.store.timer.index import key
from skylarkmq.store.timer.run_file import ENTRY

log = logging.getLogger(__name__)

DELIVER_COUNT: Final = 128
DELIVER_BYTES: Final = 1 << 20
CANCELS_MAX: Final = 100_000
"""Messages that may be taken back at one due time; more are delivered."""
WAIT_MAX_S: Final = 1.0
RETRY_S: Final = 1.0  # after a put that failed


class Deliveries:
    """Takes what is due and stores its copies. Loop thread."""

    def __init__(
        self, store: MessageStore, clock: Clock, state: TimerState, timed: TimedMessages
    ) -> None:
        self._store = store
        self._clock = clock
        self._state = state
        self._timed = timed
        self._failing = False  # the last batch was refused, which was logged
        self.delivered_count = 0

    async def step(self) -> float | None:
        """Deliver a batch, or find out when the next one is due; no run may be unloaded.

        Returns:
            After how many seconds to go on; None when nothing waits.
        """
        messages, cancels = self._state.indexes
        now_ms = self._clock.now_ms()
        head = messages.head()
        due_ms = due_of(head) if head is not None else now_ms + 1
        if self._end_cancels(min(due_ms, now_ms + 1)):
            return 0  # there may be more of them, and the next ones may have to be read first
        first_cancel = cancels.head()
        if head is None or due_ms > now_ms:
            firsts = [entry for entry in (head, first_cancel) if entry is not None]
            if not firsts:
                return None
            return min(max(0.0, (due_of(min(firsts)) - now_ms) / 1000), WAIT_MAX_S)
        if first_cancel is not None and due_of(first_cancel) <= due_ms:
            if self._timed.cancel_count < CANCELS_MAX:
                await self._take_cancels(due_ms)
                return 0
            log.error("more than %d messages are to be taken back at %d", CANCELS_MAX, due_ms)
        end_ms = now_ms + 1
        if cancels.hand:
            end_ms = due_ms + 1
        elif first_cancel is not None:
            end_ms = min(end_ms, due_of(first_cancel))
        messages.take(key(end_ms, 0), DELIVER_COUNT, DELIVER_BYTES)
        refused = await self._put([taken.entry for taken in messages.hand if not taken.is_void])
        count = len(messages.hand)
        if refused is not None:
            count = next(n for n, taken in enumerate(messages.hand) if taken.entry == refused)
        messages.confirm(count)
        messages.give_back()
        return 0 if refused is None else RETRY_S

    async def _records(self, entries: list[bytes]) -> list[bytes | None] | None:
        """Return the records of entries, read off the loop; None when all are in memory."""
        places = [ENTRY.unpack(entry)[2] for entry in entries]
        if all(self._store.is_in_memory(place) for place in places):
            return None
        return await Call(records(self._store, places))

    # Taking back

    def _end_cancels(self, due_ms: int) -> bool:
        """Forget what takes messages back that were due before a time; False when none was left.

        Those of a later time may be looked at only after it has said False.
        """
        cancels = self._state.cancels
        if cancels.hand and due_of(cancels.hand[0].entry) < due_ms:
            self._forget_hand()
            self._timed.forget_cancels()
        if cancels.hand:
            return False
        cancels.take(key(due_ms, 0), DELIVER_COUNT, 1 << 62)
        return self._forget_hand() > 0

    def _forget_hand(self) -> int:
        """Be done with what takes messages back and is in hand, and return how much it is."""
        cancels = self._state.cancels
        count = len(cancels.hand)
        if count:
            self._state.forgot(due_of(cancels.hand[-1].entry))
        cancels.confirm(count)
        return count

    async def _take_cancels(self, due_ms: int) -> None:
        cancels = self._state.cancels
        known = len(cancels.hand)
        cancels.take(key(due_ms + 1, 0), known + DELIVER_COUNT, 1 << 62)
        entries = [taken.entry for taken in cancels.hand[known:] if not taken.is_void]
        self._timed.take_cancels(entries, await self._records(entries))

    # Storing

    async def _put(self, entries: list[bytes]) -> bytes | None:
        """Store the copies of due messages, and return the first entry that was refused."""
        found = await self._records(entries)
        copies = self._timed.copies(entries, found, self._clock.now_ms())
        results = await Call(put(self._store, [inner for _, inner in copies]))
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
    """Return when an entry is due, ms since the epoch."""
    return int.from_bytes(entry[:8], "big")
