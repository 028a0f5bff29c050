"""The message of each queue that a query has read last: is it still there?

Offsets are given again where a topic is made anew or a log becomes shorter, and the queue may have
grown beyond the query's position by the time that anybody looks. So a checkpoint says which message
stands before each offset (`QueueOffsets.before`), and each batch compares:

    start of a batch   the message before it is looked at again: another one means that the offsets
                       below are used again
    end of a batch     the message before it is noted

A queue goes on at the first message that was stored after the one that it has read: those are of
the new life of its log. No fingerprint, no message, or a broker that refuses to tell: nothing can
be compared, and nothing is lost for that. A broker that does not answer may have lost its end this
moment, so its queues wait.

Driver process, one thread. Imports no pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from skylarkmq.spark.offsets import QueueKey, QueueOffsets
from skylarkmq.spark.reading.queue_view import QueueView


def used_again(
    view: QueueView, known: QueueOffsets, ends: Mapping[QueueKey, int], *, patient: bool
) -> set[QueueKey]:
    """Return the queues that have other messages than those read, for jobs that keep the ends.

    Args:
        known: up to where they were read.
        ends: of the queues to look at.
        patient: wait for brokers that do not answer.

    Raises:
        RocketMQError: a broker did not answer for `retryTimeoutMs`.
    """
    reached = {key: at for key, at in known.items() if key in ends and key in known.before}
    shorter = {key for key, at in reached.items() if ends[key] < at}
    last = {key: at - 1 for key, at in reached.items() if key not in shorter}
    found, _ = view.fingerprints(last, patient=patient)
    return shorter | {key for key, there in found.items() if not there.is_same(known.before[key])}


class BatchCheck:
    """One query's looks at what it has read last, at the start and at the end of each batch."""

    def __init__(self, view: QueueView) -> None:
        """Ask no broker yet."""
        self._view = view
        self._found: tuple[QueueOffsets, dict[QueueKey, int]] | None = None
        self._has_noted = False
        self.silent: set[QueueKey] = set()
        """Queues that nobody told of when they were compared last."""

    @property
    def was_compared(self) -> bool:
        """Whether this process has compared before."""
        return self._found is not None

    def compare(
        self, start: QueueOffsets, ends: Mapping[QueueKey, int], *, patient: bool
    ) -> dict[QueueKey, int]:
        """Return the queues whose offsets below `start` are used again, and where each goes on.

        A shorter queue that has nothing newer than what was read is not among them.

        Args:
            ends: of the queues to look at.
            patient: wait for brokers that do not answer.

        Raises:
            RocketMQError: a broker did not answer for `retryTimeoutMs`.
        """
        again = self._look(start, ends, patient=patient)
        self._found = start, again
        return again

    def compared(self, start: QueueOffsets, end: QueueOffsets) -> dict[QueueKey, int]:
        """Return what `compare` has found for a batch; after a restart it looks again, patiently.

        Raises: as `compare`.
        """
        if self._found is not None and self._found[0] == start:
            return self._found[1]
        changed = {
            key: end[key]
            for key, read in start.before.items()
            if key in end and (end[key] != start[key] or end.before.get(key) != read)
        }
        return self._look(start, changed, patient=True)

    def noted(self, start: QueueOffsets, end: QueueOffsets, *, patient: bool) -> QueueOffsets:
        """Return a batch's end with the messages before it; queues that nobody tells of stay.

        A queue that is not in the batch is asked about once in a run.

        Raises: as `compare`.
        """
        is_first, self._has_noted = not self._has_noted, True
        last = {
            key: at - 1
            for key, at in end.items()
            if at > 0 and key not in end.before and (is_first or start.get(key) != at)
        }
        found, silent = self._view.fingerprints(last, patient=patient)
        if start:  # else it is where the query begins, whoever is away
            stay = QueueOffsets({key: start[key] for key in silent if key in start}, start.before)
            end = end.without(silent).updated(stay).knowing(stay.before)
        return end.knowing(found)

    def _look(
        self, start: QueueOffsets, ends: Mapping[QueueKey, int], *, patient: bool
    ) -> dict[QueueKey, int]:
        view, again = self._view, dict[QueueKey, int]()
        last = {key: min(start[key], ends[key]) - 1 for key in start.before if ends.get(key, 0) > 0}
        found, self.silent = view.fingerprints(last, patient=patient)
        for key, there in found.items():
            since_ms = start.before[key].new_since(there)
            if since_ms:
                find = partial(view.brokers.offset_at, key, since_ms)
                again[key] = min(last[key], view.patiently(find))
            elif since_ms == 0 and ends[key] >= start[key]:  # else it is an earlier message
                again[key] = 0
        return again
