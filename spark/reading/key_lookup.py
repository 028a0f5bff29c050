"""Where the messages of some keys are, as the brokers' key indexes know: for option keys.

A broker's index has hashes, gives so many results at most (maxMsgsNumBatch), and may be behind. So
its answer counts when the broker says that it is complete, as SkylarkMQ's do; otherwise all of the
range is read, as without an index. Apache RocketMQ's brokers do not say it, and after a crash
theirs can lack messages. The keys of what is read are compared in any case.

Planner process, one thread; `having_keys` in the tasks. Imports no pyspark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, cast

from skylarkmq.client.errors import RocketMQError
from skylarkmq.protocol.properties import KEY_SEPARATOR
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.offsets import QueueKey

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

KEYS_MAX: Final = 64
"""Keys that are looked up; each is a question to each broker. With more all is read."""
NEAR_MAX: Final = 32
"""Messages that a broker of RocketMQ's gives at once."""
_UNREADABLE: Final = "\ufffd"
"""Stands in the column for bytes that are no text, which cannot be asked for."""


class KeyLookup:
    """One query's keys, looked up once at each broker and topic."""

    def __init__(self, brokers: BlockingClient, keys: Sequence[str]) -> None:
        """Ask no broker yet.

        Args:
            keys: any of which a message must have; none: all messages are wanted.
        """
        self._brokers = brokers
        self._keys = keys if len(keys) <= KEYS_MAX and _UNREADABLE not in "".join(keys) else ()
        self._found: dict[tuple[str, str], dict[int, set[int]] | None] = {}

    def parts(self, key: QueueKey, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of a range of offsets that hold the keys, all of it if none may be left
        out. The range must have been published before."""
        if start >= end:
            return []
        if not self._keys:
            return [(start, end)]
        place = key.topic, key.broker_name
        if place not in self._found:
            self._found[place] = self._look_up(key)
        found = self._found[place]
        if found is None:
            return [(start, end)]
        offsets = found.get(key.queue_id, ())
        return parts_around(at for at in offsets if start <= at < end)

    def _look_up(self, key: QueueKey) -> dict[int, set[int]] | None:
        """Return the offsets by queue, at one broker; None when some may be missing."""
        found: dict[int, set[int]] = {}
        why = "its answer may be incomplete"
        try:
            for wanted in self._keys:
                answer = self._brokers.places_of(key, wanted)
                if not answer.complete:
                    break
                for queue_id, queue_offset in answer.places:
                    found.setdefault(queue_id, set()).add(queue_offset)
            else:
                return found
        except RocketMQError as error:
            why = str(error)
        log.warning(
            "topic %s on broker %s is read to find keys, not its key index: %s",
            key.topic, key.broker_name, why,
        )  # fmt: skip
        return None


def parts_around(offsets: Iterable[int]) -> list[tuple[int, int]]:
    """Return ranges [start, end) that hold the offsets; those up to NEAR_MAX apart go together."""
    parts: list[tuple[int, int]] = []
    for at in sorted(offsets):
        if parts and at - parts[-1][1] < NEAR_MAX:
            parts[-1] = parts[-1][0], at + 1
        else:
            parts.append((at, at + 1))
    return parts


def having_keys(batch: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """Return the rows of a batch with the column keys that have one of the keys, in their order."""
    import pyarrow as pa

    texts = cast("list[str | None]", batch.column("keys").to_pylist())
    wanted = frozenset(keys)
    mask = [text is not None and not wanted.isdisjoint(text.split(KEY_SEPARATOR)) for text in texts]
    return batch.filter(pa.array(mask, pa.bool_()))
