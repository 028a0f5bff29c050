"""What is due: from entries to the copies that are delivered, and what takes a message back.

A message with TIMER_DEL_UNIQKEY takes back the messages with that UNIQ_KEY that wait for the same
time, in the topic that it was sent to itself. Its value is the key, or `topic+key`.

A copy keeps the waiting message's text and gains TIMER_ENQUEUE_MS, when it began to wait, and
TIMER_DEQUEUE_MS.

Unlike RocketMQ, which takes back by key alone, in any topic, where the value is the key.
Source: apache/rocketmq@rocketmq-all-5.3.3 store/.../timer/TimerMessageStore.java (dequeue,
buildDeleteKey, convert)
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from skylarkmq.broker.delay.delayed_message import (
    Parked,
    ParkedReader,
    Place,
    copy_to,
    delivered,
    is_gone,
)
from skylarkmq.common.first_use import on_first_use
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.flags import RMQ_SYS_WHEEL_TIMER_TOPIC
from skylarkmq.protocol.properties import find_property, with_property
from skylarkmq.store.log.commit_log import CommitLog
from skylarkmq.store.queue.topic_removal import RemovedTopics
from skylarkmq.store.results import MessageInner
from skylarkmq.store.timer.rules import TIMER_QUEUE_ID, cancelled_key, due_of
from skylarkmq.store.timer.run_file import DUE_SIZE, ENTRY

if TYPE_CHECKING:
    import hashlib
else:  # by the first message that takes another back
    hashlib = on_first_use("hashlib")

log = logging.getLogger(__name__)

DIGEST_SIZE: Final = 16
_REAL_TOPIC: Final = names.REAL_TOPIC.encode() + b"\x01"
_UNIQ_KEY: Final = names.UNIQ_KEY.encode() + b"\x01"
_ROLL_TIMES: Final = names.TIMER_ROLL_TIMES.encode() + b"\x01"
_ROLL_TIMES_MAX: Final = 999_999


def place_of(entry: bytes) -> Place:
    """Return where the message of an entry is."""
    _, queue_offset, physical_offset, record_size = ENTRY.unpack(entry)
    return Place(physical_offset, record_size, queue_offset)


class TimedMessages:
    """Reads waiting messages and makes their copies. Loop thread."""

    def __init__(self, commit_log: CommitLog, removed: RemovedTopics) -> None:
        self._removed = removed
        self._reader = ParkedReader(commit_log, RMQ_SYS_WHEEL_TIMER_TOPIC, TIMER_QUEUE_ID)
        self._cancelled: set[bytes] = set()
        self.skipped_count = 0  # unreadable, or without a possible target
        self.cancelled_count = 0

    # Taking back

    @property
    def cancel_count(self) -> int:
        """How many keys are taken back now."""
        return len(self._cancelled)

    def forget_cancels(self) -> None:
        """Forget the keys: their time is over."""
        self._cancelled.clear()

    def take_cancels(
        self, entries: Sequence[bytes], records: Sequence[bytes | None] | None
    ) -> None:
        """Note which messages those of these entries take back.

        Args:
            records: what was read of them; None to read them here.
        """
        for _, entry, parked in self._read(entries, records):
            topic = find_property(parked.properties, _REAL_TOPIC) or b""
            value = cancelled_key(parked.properties) or b""
            self._cancelled.add(_digest(entry, topic, value))
            if value.startswith(topic + b"+"):
                self._cancelled.add(_digest(entry, topic, value[len(topic) + 1 :]))

    def _is_cancelled(self, entry: bytes, parked: Parked) -> bool:
        key = find_property(parked.properties, _UNIQ_KEY)
        topic = find_property(parked.properties, _REAL_TOPIC) or b""
        return key is not None and _digest(entry, topic, key) in self._cancelled

    # Delivering

    def copies(
        self, entries: Sequence[bytes], records: Sequence[bytes | None] | None, now_ms: int
    ) -> list[tuple[int, MessageInner]]:
        """Return the messages to deliver, each with the number of its entry.

        Those that are taken back, went with their topic or cannot be delivered are left out.

        Args:
            records: as in `take_cancels`.
        """
        copies: list[tuple[int, MessageInner]] = []
        cancelled = 0
        for number, entry, parked in self._read(entries, records):
            if self._cancelled and self._is_cancelled(entry, parked):
                cancelled += 1
                continue
            text = with_property(
                parked.properties, b"TIMER_ENQUEUE_MS", b"%d" % parked.store_timestamp
            )
            text = with_property(text, b"TIMER_DEQUEUE_MS", b"%d" % now_ms)
            try:
                copies.append((number, delivered(parked, text)))
            except ValueError as error:
                self._skipped(entry, error)
        self.cancelled_count += cancelled
        return copies

    def rolled(
        self, entries: Sequence[bytes], records: Sequence[bytes | None]
    ) -> list[MessageInner]:
        """Return copies that go on waiting in the place of the messages of these entries."""
        copies: list[MessageInner] = []
        for _, _, parked in self._read(entries, records):
            times = find_property(parked.properties, _ROLL_TIMES) or b"0"
            count = int(times) + 1 if times.isdigit() and len(times) < 10 else 1
            text = with_property(
                parked.properties,
                names.TIMER_ROLL_TIMES.encode(),
                b"%d" % min(count, _ROLL_TIMES_MAX),
            )
            copies.append(copy_to(parked, RMQ_SYS_WHEEL_TIMER_TOPIC, TIMER_QUEUE_ID, text))
        return copies

    def _read(
        self, entries: Sequence[bytes], records: Sequence[bytes | None] | None
    ) -> Iterator[tuple[int, bytes, Parked]]:
        """Yield the messages that are sound and still there, each with its entry's number."""
        for number, entry in enumerate(entries):
            place = place_of(entry)
            try:
                parked = self._reader.read(place, records, number)
                due_ms = max(0, due_of(parked.properties) or 0)
                if due_ms != ENTRY.unpack(entry)[0]:
                    raise ValueError(f"it is due at {due_ms}")
            except ValueError as error:
                self._skipped(entry, error)
                continue
            if not is_gone(parked, place, self._removed):
                yield number, entry, parked

    def _skipped(self, entry: bytes, error: ValueError) -> None:
        self.skipped_count += 1
        due_ms, queue_offset, physical_offset, _ = ENTRY.unpack(entry)
        log.error(
            "timed message %d, due at %d, at %d of the log, cannot be delivered: %s",
            queue_offset,
            due_ms,
            physical_offset,
            error,
        )


def _digest(entry: bytes, topic: bytes, key: bytes) -> bytes:
    due = entry[:DUE_SIZE]
    return hashlib.blake2b(due + topic + b"\x01" + key, digest_size=DIGEST_SIZE).digest()
