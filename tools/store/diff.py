"""`store diff`: whether two stores hold the same messages, queue by queue.

Messages are the same when they agree in body, properties, flags, times, hosts of their producer and
retries. Where they lie in the log, and on which broker, may differ: a copy that was consumed and
sent again by a broker is another message, a replica or a salvaged copy is the same.
"""

from __future__ import annotations

from typing import Any

from skylarkmq.protocol.message import MessageExt
from skylarkmq.protocol.record import decode_message
from skylarkmq.store.progress import Progress, no_progress
from skylarkmq.store.queue.consume_queue import PRE_BLANK_SIZE
from skylarkmq.store.stopped.reader import QueueKey, StoppedStore
from skylarkmq.tools.output import table

FIELDS = (
    "body", "properties", "flag", "sys_flag", "born_timestamp", "born_host", "store_timestamp",
    "reconsume_times",
)  # fmt: skip
Row = dict[str, Any]


class Comparison:
    """One comparison of two stores."""

    def __init__(
        self, left: StoppedStore, right: StoppedStore, progress: Progress = no_progress
    ) -> None:
        self._left = left
        self._right = right
        self._progress = progress
        self.queues: list[Row] = []  # those that differ
        self.same = 0  # messages that both have

    def run(self) -> Comparison:
        """Compare every queue."""
        keys = sorted({*self._left.queues, *self._right.queues})
        for number, key in enumerate(keys):
            self._progress("comparing queues", number, len(keys))
            row = self._compare(key)
            if row is not None:
                self.queues.append(row)
        return self

    def _compare(self, key: QueueKey) -> Row | None:
        left, right = self._bounds(self._left, key), self._bounds(self._right, key)
        begin, end = max(left[0], right[0]), min(left[1], right[1])
        different, first = 0, None
        for queue_offset in range(begin, end):
            why = self._difference(key, queue_offset)
            if why is None:
                self.same += 1
                continue
            different += 1
            if first is None:
                first = {"queue_offset": queue_offset, **why}
        if left == right and not different:
            return None
        return {
            "topic": key[0],
            "queue_id": key[1],
            "left": {"min_offset": left[0], "max_offset": left[1]},
            "right": {"min_offset": right[0], "max_offset": right[1]},
            "different": different,
            "first": first,
        }

    @staticmethod
    def _bounds(store: StoppedStore, key: QueueKey) -> tuple[int, int]:
        """The first and the next message of a queue, without what has left the log."""
        queue = store.queues.get(key)
        if queue is None:
            return 0, 0
        first, end = store.bounds(queue)
        for queue_offset, unit in store.units(queue, first, end):
            if unit.record_size != PRE_BLANK_SIZE and unit.commit_offset >= store.min_offset:
                return queue_offset, end
        return (0, 0) if first == end else (end, end)

    def _difference(self, key: QueueKey, queue_offset: int) -> Row | None:
        left, right = (_message(store, key, queue_offset) for store in (self._left, self._right))
        if left is None and right is None:
            return None  # neither can show it
        if left is None or right is None:
            side = "left" if left is None else "right"
            return {"field": "message", "why": f"the {side} store has no sound message here"}
        for name in FIELDS:
            if getattr(left, name) != getattr(right, name):
                return {
                    "field": name,
                    "why": f"offset {left.physical_offset} of the left log and "
                    f"{right.physical_offset} of the right one differ in {name}",
                }
        return None

    @property
    def is_same(self) -> bool:
        return not self.queues

    def as_dict(self) -> Row:
        """The result as the JSON output has it."""
        return {
            "left": str(self._left.paths.root),
            "right": str(self._right.paths.root),
            "same": self.is_same,
            "same_messages": self.same,
            "queues": self.queues,
        }

    def lines(self) -> list[str]:
        """The result for humans."""
        rows: list[list[Any]] = []
        for queue in self.queues:
            spans = [f"{side['min_offset']}..{side['max_offset']}"
                     for side in (queue["left"], queue["right"])]  # fmt: skip
            first = queue["first"]
            why = "one has more" if first is None else f"{first['queue_offset']}: {first['why']}"
            rows.append([queue["topic"], queue["queue_id"], *spans, queue["different"], why])
        headers = ("topic", "queue_id", "left", "right", "different", "first difference")
        text = table(headers, rows) if rows else []
        same = "the same" if self.is_same else "not the same"
        return [*text, f"{self.same} messages are the same; the stores are {same}"]


def _message(store: StoppedStore, key: QueueKey, queue_offset: int) -> MessageExt | None:
    unit = store.unit(store.queues[key], queue_offset)
    if unit is None or unit.record_size == PRE_BLANK_SIZE:
        return None
    record = store.message_bytes(unit.commit_offset)
    return None if record is None else decode_message(record)
