"""What the journal says, held against the queues as they are now.

The journal is synced on its own, so after a power cut it may speak of messages that the log has
lost; new ones get their offsets, and must not be taken for them. A topic may have been deleted and
made anew, or RocketMQ's broker may have worked on the disk meanwhile. So each queue's state is
believed as far as the queue's units lie where the journal says:

    the unit before next_offset is the one that was looked at     all below it is as it was
    there is none, and that record lay behind the log's end       the log was cut: so is the state
    else                                                          another queue: nothing is believed

A message that has left is done when its copy lies in the recovered log; else it is in flight again.

In the second case no topic was made anew: the new one's messages would lie behind the old one's.
It is believed only when the store, too, was not stopped cleanly: else another broker has recovered
it, and may have filled the gap; nor does it count then where a copy lay.

Then the group's offset in `consumerOffset.json`. After a clean stop one that differs was set by
somebody else, and nothing else counts. Otherwise the greater one: each may have reached the disk
without the other. What is dropped here is delivered again.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from skylarkmq.store.pop.journal_records import UNKNOWN, Key, KeyState, PopState, Row

log = logging.getLogger(__name__)

NO_OFFSET: Final = -1


class Queues(Protocol):
    """The queues as they are, and where the groups stand in them."""

    def bounds(self, key: Key) -> tuple[int, int]:
        """Return the smallest offset, and the next one to be stored; (0, 0) without a queue."""
        ...

    def physical_offset(self, key: Key, offset: int) -> int | None:
        """Return where the record of an offset lies in the log; None when there is no unit."""
        ...

    def committed(self, key: Key) -> int:
        """Return the group's offset in the table; NO_OFFSET when there is none to go by."""
        ...


def verified(state: PopState, queues: Queues, log_end: int, *, is_store_clean: bool) -> PopState:
    """Return what is true of a state that was loaded. Blocks; before serving.

    Args:
        log_end: of the recovered commit log.
        is_store_clean: the store was stopped cleanly, by whichever broker.
    """
    check = _Check(queues, log_end, state.is_clean, is_store_clean)
    keys = {key: check.checked(key, found) for key, found in state.keys.items()}
    check.tell(len(state.keys))
    return PopState(
        {key: found for key, found in keys.items() if found is not None},
        state.last_serial,
        state.is_clean,
    )


class _Check:
    def __init__(self, queues: Queues, log_end: int, is_clean: bool, is_store_clean: bool) -> None:
        self._queues = queues
        self._log_end = log_end
        self._table_wins = is_clean and is_store_clean
        self._may_be_cut = not is_store_clean
        self._is_ours = is_clean or not is_store_clean  # nobody else has recovered the log
        self._dropped = 0  # messages in flight
        self._other = 0  # queues that are not those of the journal
        self._moved = 0  # queues where the group's offset was set by somebody else
        self._example = ""

    def checked(self, key: Key, state: KeyState) -> KeyState | None:
        """Return what is true of a queue's state; None for nothing."""
        committed = self._queues.committed(key)
        if self._table_wins and committed not in (NO_OFFSET, state.mark):
            self._moved += 1
            return None
        end = self._trusted_end(key, state)
        if end is None:
            self._other += 1
            self._note_dropped(key, len(state.rows))
            return None
        begin = max(self._queues.bounds(key)[0], committed)
        rows = {
            offset: row
            for offset, row in sorted(state.rows.items())
            if begin <= offset < end
            and self._queues.physical_offset(key, offset) == row.physical_offset
        }
        lost = sum(offset >= begin for offset in state.rows) - len(rows)
        self._note_dropped(key, lost)
        rows = {
            offset: row._replace(copy_physical=UNKNOWN)
            for offset, row in rows.items()
            if not self._has_copy(row)
        }
        if committed >= end:  # no unit below it says anything
            return None
        physical = self._queues.physical_offset(key, end - 1)
        place = UNKNOWN if physical is None else physical
        return KeyState(end, place, rows, state.attempt_id if rows else "")

    def _trusted_end(self, key: Key, state: KeyState) -> int | None:
        """Return the offset below which the queue is as it was; None when it is another one."""
        begin, end = self._queues.bounds(key)
        next_offset = state.next_offset
        if next_offset <= begin:  # what it speaks of has expired
            return next_offset or None
        if next_offset <= end:
            physical = self._queues.physical_offset(key, next_offset - 1)
            return next_offset if physical == state.end_physical else None
        was_cut = self._may_be_cut and state.end_physical >= self._log_end
        return end if was_cut and end > begin else None

    def _has_copy(self, row: Row) -> bool:
        return row.copy_physical != UNKNOWN and self._is_ours and row.copy_physical < self._log_end

    def _note_dropped(self, key: Key, count: int) -> None:
        self._dropped += count
        if count and not self._example:
            self._example = f"group {key.group}, topic {key.topic}, queue {key.queue_id}"

    def tell(self, key_count: int) -> None:
        """Log what was not believed."""
        if self._other or self._dropped or self._moved:
            log.warning(
                "pop consumption: of %d queues %d have changed since, and in %d the group was "
                "moved; %d messages that were in flight are no longer there%s",
                key_count,
                self._other,
                self._moved,
                self._dropped,
                f", first of {self._example}" if self._example else "",
            )
