"""What was sent to a broker through all its lives, what it answered, and what is there now.

Each send is one of

    ok        acknowledged: it is at its offset, for ever
    failed    refused: it is nowhere
    unknown   never answered: it is there once, or it is not
    lost      acknowledged, and gone with a crash that may take it: it never comes back

Nobody counts an unknown one as failed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from random import Random

from skylarkmq.protocol.message import MessageExt
from tests.support.invariants import require

Queue = tuple[str, int]
_FILLER = Random(20).randbytes(1 << 16)


class Outcome(Enum):
    """What the sender knows."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"
    LOST = "lost"


@dataclass(slots=True, eq=False)
class Attempt:
    """One send."""

    number: int
    connection: int  # over all lives
    queue: Queue
    size: int
    sent_at: int  # place in the order of all events
    outcome: Outcome = Outcome.UNKNOWN
    acked_at: int = 0
    queue_offset: int = -1
    physical_offset: int = -1

    @property
    def body(self) -> bytes:
        start = self.number * 7 % (len(_FILLER) - 16384)
        return _FILLER[start : start + self.size]


class SendHistory:
    """All sends of a test."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.found: dict[Queue, list[Attempt]] = {}  # by queue offset
        self._events = itertools.count(1)
        self._seen: set[int] = set()

    def sent(self, connection: int, queue: Queue, size: int) -> Attempt:
        """Note a send that is about to go out."""
        attempt = Attempt(len(self.attempts), connection, queue, size, next(self._events))
        self.attempts.append(attempt)
        return attempt

    def acked(self, attempt: Attempt, queue_offset: int, physical_offset: int = -1) -> None:
        attempt.outcome = Outcome.OK
        attempt.acked_at = next(self._events)
        attempt.queue_offset = queue_offset
        attempt.physical_offset = physical_offset

    def refused(self, attempt: Attempt) -> None:
        attempt.outcome = Outcome.FAILED

    @property
    def outcomes(self) -> Counter[Outcome]:
        return Counter(attempt.outcome for attempt in self.attempts)

    def read(self, queue: Queue, messages: list[MessageExt]) -> None:
        """Note messages that were read behind the ones that are known of a queue.

        Checks that each was sent, once, and came back as it was sent (I2, I3).
        """
        known = self.found.setdefault(queue, [])
        for message in messages:
            require(message.queue_offset == len(known), "I2", f"{queue} has a hole at {len(known)}")
            number = int(message.properties.get("N", -1))
            require(0 <= number < len(self.attempts), "I3", f"nobody sent message {number}")
            attempt = self.attempts[number]
            require(number not in self._seen, "I3", f"message {number} is there twice")
            self._seen.add(number)
            place = message.topic, message.queue_id
            require(place == queue == attempt.queue, "I3", f"{number} is in {place}")
            require(message.body == attempt.body, "I1", f"message {number} is damaged")
            gone = (Outcome.FAILED, Outcome.LOST)
            require(attempt.outcome not in gone, "I3", f"{number} was {attempt.outcome.value}")
            known.append(attempt)

    def settle_losses(self, shown: Mapping[Queue, int]) -> int:
        """The same for a crash that may take the log's end: note what it took, and check the rest.

        Args:
            shown: what readers had seen of each queue, as a max offset, before a crash that
                keeps all that was shown.

        Returns:
            The number of acknowledged messages that are gone.
        """
        lost: list[Attempt] = []
        log_end = -1
        for attempt in self.attempts:
            if attempt.outcome is not Outcome.OK:
                continue
            found = self.found.get(attempt.queue, [])
            if attempt.queue_offset >= len(found):
                lost.append(attempt)
            elif found[attempt.queue_offset] is attempt:
                log_end = max(log_end, attempt.physical_offset)
        for queue, max_offset in shown.items():
            there = len(self.found.get(queue, []))
            require(there >= max_offset, "I1", f"{queue} showed {max_offset}, {there} are left")
        for attempt in lost:
            require(
                attempt.physical_offset > log_end,
                "I2",
                f"message {attempt.number} at {attempt.physical_offset} of the log is gone, and "
                f"one at {log_end} is there",
            )
            attempt.outcome = Outcome.LOST
        self.check()
        return len(lost)

    def check(self) -> None:
        """I1 and I4, once everything that is there was read."""
        for attempt in self.attempts:
            if attempt.outcome is Outcome.OK:
                found = self.found.get(attempt.queue, [])
                at = found[attempt.queue_offset] if attempt.queue_offset < len(found) else None
                require(
                    at is attempt,
                    "I1",
                    f"message {attempt.number} was acknowledged at {attempt.queue_offset} of "
                    f"{attempt.queue}, which has {len(found)}; there is {at}",
                )
        for queue, found in self.found.items():
            _check_order(queue, found)


def _check_order(queue: Queue, found: list[Attempt]) -> None:
    last: dict[int, int] = {}
    for attempt in found:
        before = last.get(attempt.connection, -1)
        require(attempt.number > before, "I4", f"{queue}: {attempt.number} behind {before}")
        last[attempt.connection] = attempt.number
    earliest_ack = None
    for attempt in reversed(found):
        if earliest_ack is not None:
            require(
                attempt.sent_at < earliest_ack,
                "I4",
                f"{queue}: {attempt.number} was sent after the answer to one that stands behind it",
            )
        if attempt.outcome is Outcome.OK:
            earliest_ack = min(attempt.acked_at, earliest_ack or attempt.acked_at)
