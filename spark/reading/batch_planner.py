"""What a batch reads: the ranges between a start and an end of each queue, without Spark.

Planner process, one thread, once for each query. Imports no pyspark.
"""

from __future__ import annotations

import logging
from typing import Final

from skylarkmq.spark.clock import BlockingClock
from skylarkmq.spark.errors import DataLost
from skylarkmq.spark.offsets import OffsetRange, QueueKey, describe
from skylarkmq.spark.option_reading import OptionError
from skylarkmq.spark.options import SourceOptions
from skylarkmq.spark.reading.filter_check import FilterCheck
from skylarkmq.spark.reading.narrowing import EVERYTHING, Narrowing
from skylarkmq.spark.reading.planning import split
from skylarkmq.spark.reading.positions import Position, resolve
from skylarkmq.spark.reading.queue_view import Brokers, QueueView

log = logging.getLogger(__name__)
_ASKED_FOR: Final = frozenset({"offsets"})


class BatchPlanner:
    """One batch's decisions."""

    def __init__(self, brokers: Brokers, options: SourceOptions, clock: BlockingClock) -> None:
        """Ask nobody yet."""
        self._options = options
        self._view = QueueView(
            brokers,
            options.subject,
            clock,
            refresh_s=options.metadata_refresh_s,
            patience_s=options.connection.retry_timeout_s,
        )

    def plan(self, narrowing: Narrowing = EVERYTHING) -> list[OffsetRange]:
        """Return the ranges to read, cut as the options say.

        Raises:
            NotFound, OptionError: see `queue_view`, `positions`; a start lies behind its end.
            DataLost: with failOnDataLoss, when exact offsets are not there (any more).
            RocketMQError: brokers did not answer for `retryTimeoutMs`.
        """
        view, options = self._view, self._options
        queues = view.patiently(view.queues)
        view.patiently(lambda: FilterCheck(view.brokers, options.reading).show(queues))
        firsts = view.patiently(lambda: view.brokers.min_offsets(queues))
        # Positions are resolved for all queues, so that a filter hides no error of the options.
        starting = self._resolved(options.starting, queues)
        ends = view.patiently(lambda: view.brokers.max_offsets(queues))
        ending = self._resolved(options.ending, queues)
        ranges: list[OffsetRange] = []
        for key in filter(narrowing.wants, queues):
            if starting[key] > ending[key] and options.starting.kind in _ASKED_FOR:
                raise self._contradiction(key, starting[key], ending[key])
            start, end = self._within(key, starting[key], ending[key], firsts[key], ends[key])
            start, end = self._narrowed(key, start, end, narrowing)
            if start < end:
                ranges.append(OffsetRange(*key, start, end))
        return split(
            ranges,
            min_partitions=options.min_partitions,
            max_records=options.max_records_per_partition,
        )

    def _resolved(self, position: Position, queues: list[QueueKey]) -> dict[QueueKey, int]:
        view = self._view
        group = self._options.reading.group
        return dict(view.patiently(lambda: resolve(position, queues, view.brokers, group)))

    def _contradiction(self, key: QueueKey, start: int, end: int) -> OptionError:
        options = self._options
        name = options.ending.option or options.starting.option
        return OptionError(
            f"{describe(key)} starts at {start} and ends at {end}: "
            f"option {options.starting.option} lies behind the end; correct it"
            + (f", or option {options.ending.option}" if options.ending.option else ""),
            name,
        )

    def _within(
        self, key: QueueKey, start: int, end: int, first: int, max_end: int
    ) -> tuple[int, int]:
        """Return the range as far as the broker has it; the rest is lost."""
        if start > max_end and self._options.starting.kind == "group":  # made anew: see begin_of
            self._lose(DataLost(key, start, max_end, start - max_end))
            start = 0 if first == 0 else max_end
        if start >= end:
            return start, start
        if end > max_end and self._options.ending.kind in _ASKED_FOR:
            self._lose(self._too_far(key, end, max_end))
            end = max(start, max_end)
        if start < first:
            self._lose(DataLost(key, start, first, min(first, end) - start))
            start = min(first, end)
        return start, end

    def _narrowed(
        self, key: QueueKey, start: int, end: int, narrowing: Narrowing
    ) -> tuple[int, int]:
        start, end = max(start, narrowing.low_offset), min(end, narrowing.end_offset)
        view = self._view
        low_ms, end_ms = narrowing.low_ms, narrowing.end_ms
        if low_ms > 0 and start < end:
            start = max(start, view.patiently(lambda: view.brokers.offset_at(key, low_ms)))
        if end_ms is not None and start < end:
            end = min(end, view.patiently(lambda: view.brokers.offset_at(key, end_ms)))
        return start, end

    def _too_far(self, key: QueueKey, end: int, max_end: int) -> OptionError:
        name = self._options.ending.option
        return OptionError(
            f"option {name}: {describe(key)} ends at {max_end}, and {end} is asked for: correct "
            "it, or set failOnDataLoss=false to read what there is",
            name,
        )

    def _lose(self, loss: DataLost | OptionError) -> None:
        if self._options.reading.fail_on_data_loss:
            raise loss
        log.warning("failOnDataLoss=false, going on: %s", loss)
