"""Reading one range in a task: pulls, records, Arrow batches.

Executor's Python worker; the client comes from the process's pool. Imports pyarrow, no pyspark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from skylarkmq.client.namespace import Namespace
from skylarkmq.spark.batches import BatchBuilder
from skylarkmq.spark.cluster import client_for
from skylarkmq.spark.errors import DataLost, NoProgress
from skylarkmq.spark.offsets import OffsetRange
from skylarkmq.spark.options import ReadSettings
from skylarkmq.spark.reading.ranges import Block, RangeReader

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)
OnLoss = Callable[[DataLost], None] | None


class Open(Protocol):
    """Opens a range: blocks in order that together cover it."""

    def __call__(
        self, wanted: OffsetRange, settings: ReadSettings, on_loss: OnLoss
    ) -> Iterable[Block]: ...


def read_range(
    wanted: OffsetRange | None,
    settings: ReadSettings,
    columns: Sequence[str],
    tags: frozenset[str] | None = None,
    open_range: Open | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range, in order, in batches of bounded rows and bytes.

    Args:
        wanted: None for the one task of a read that has nothing to read.
        tags: compared as text, beside those of the settings; None: no more than those.

    Raises:
        DataLost: with failOnDataLoss, when messages are gone.
        CorruptRecordError: a record is damaged, or with onCorruption=fail its body cannot be read.
        RocketMQError: refused, or no broker answered for `retryTimeoutMs`.
    """
    if wanted is None:
        return

    def on_loss(loss: DataLost) -> None:
        log.warning("failOnDataLoss=false, going on: %s", loss)

    builder = BatchBuilder(
        columns,
        max_rows=settings.batch_rows,
        max_bytes=settings.batch_bytes,
        topic_name=Namespace(settings.connection.namespace).unwrap,
        on_corruption=settings.on_corruption,
    )
    blocks = (open_range or _pull)(
        wanted, settings, None if settings.fail_on_data_loss else on_loss
    )
    own_tags = settings.tags
    both = own_tags if tags is None else tags if own_tags is None else tags & own_tags
    at = wanted.start
    for block in blocks:
        yield from builder.add(
            block.records,
            broker_name=wanted.broker_name,
            start=max(at, block.start),
            end=min(block.end, wanted.end),
            tags=both,
        )
        at = max(at, block.end)
    last = builder.finish()
    if last is not None:
        yield last
    if not settings.filters and tags is None and settings.fail_on_data_loss:
        _check_count(wanted, builder.rows + builder.skipped)


def _pull(wanted: OffsetRange, settings: ReadSettings, on_loss: OnLoss) -> Iterable[Block]:
    return RangeReader(
        client_for(settings.connection),
        wanted.key,
        wanted.start,
        wanted.end,
        group=settings.group,
        subscription=settings.subscription(wanted.topic),
        batch_size=settings.pull_count,
        max_bytes=settings.pull_bytes,
        in_flight=settings.pulls_in_flight,
        on_data_loss=on_loss,
    )


def _check_count(wanted: OffsetRange, count: int) -> None:
    """Refuse to end a range with fewer messages than it has: the last line of defence."""
    if count == wanted.message_count:
        return
    raise NoProgress(
        f"{wanted} gave {count} messages instead of {wanted.message_count}",
        hint="Its broker's consume queue and log disagree: see `skylarkmq store verify`, or set "
        "failOnDataLoss=false to go on",
    )
