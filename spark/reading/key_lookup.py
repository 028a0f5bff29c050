"""Where the messages of some keys are, as the brokers' key indexes know: for option keys, and for
filters on the column of that name.

A broker's index has hashes, gives so many results at most (maxMsgsNumBatch), and may be behind. So
its answer counts when the broker says that it is complete, as SkylarkMQ's do; otherwise all of the
range is read, as without an index. Apache RocketMQ's brokers do not say it, and after a crash
theirs can lack messages. The keys of what is read are compared in any case, for a filter by Spark.

Planner process, one thread; `having_keys` in the tasks. Imports no pyspark.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from skylarkmq.client.errors import RocketMQError
from skylarkmq.protocol.properties import KEY_SEPARATOR
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.offsets import QueueKey
from skylarkmq.spark.reading.narrowing import NEAR_MAX, parts_around

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

KEYS_MAX: Final = 64
"""Keys that are looked up; each is a question to each broker. With more all is read."""
_UNREADABLE: Final = "\ufffd"
"""Stands in the column for bytes that are no text, which cannot be asked for."""


class KeyLookup:
    """One query's keys, looked up once at each broker and topic."""

    def __init__(self, brokers: BlockingClient, values: frozenset[str] | None) -> None:
        """Ask no broker yet.

        Args:
            values: keys, or several with blanks between as the column has them, any of which a
                message must have; None: all messages are wanted.
        """
        self._brokers = brokers
        self._terms = None if values is None else _terms(values)
        self._found: dict[tuple[str, str], dict[int, set[int]] | None] = {}

    def parts(self, key: QueueKey, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of a range of offsets that hold the keys, all of it if none may be left
        out. The range must have been published before."""
        if self._terms is None:
            return [(start, end)]
        place = key.topic, key.broker_name
        if place not in self._found:
            self._found[place] = self._look_up(key, self._terms)
        found = self._found[place]
        if found is None:
            return [(start, end)]
        offsets = found.get(key.queue_id, ())
        return parts_around((at for at in offsets if start <= at < end), NEAR_MAX)

    def _look_up(self, key: QueueKey, terms: frozenset[str]) -> dict[int, set[int]] | None:
        """Return the offsets by queue, at one broker; None when some may be missing."""
        found: dict[int, set[int]] = {}
        why = "its answer may be incomplete"
        try:
            for term in sorted(terms):
                answer = self._brokers.places_of(key, term)
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


def _terms(values: frozenset[str]) -> frozenset[str] | None:
    """Return what to ask the index for; None when it cannot tell.

    It has each part of a message's keys, so the first part of a value finds all that have it.
    """
    terms = {next(filter(None, value.split(KEY_SEPARATOR)), "") for value in values}
    if "" in terms or len(terms) > KEYS_MAX or any(_UNREADABLE in term for term in terms):
        return None
    return frozenset(terms)


def having_keys(batch: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """Return the rows of a batch with the column keys that have one of the keys, in their order."""
    import pyarrow as pa

    texts = cast("list[str | None]", batch.column("keys").to_pylist())
    wanted = frozenset(keys)
    mask = [text is not None and not wanted.isdisjoint(text.split(KEY_SEPARATOR)) for text in texts]
    return batch.filter(pa.array(mask, pa.bool_()))
