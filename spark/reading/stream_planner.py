"""What a streaming query reads next: the decisions of the source, without Spark.

    initial()             where a new query starts; nowhere when that moves, see there
    latest(start, limit)  how far the next batch goes; `start` when there is nothing (yet)
    plan(start, end)      the ranges of a batch; the same for the same arguments, for Spark asks
                          again after a crash
    commit(end)           all below is in the sink

Everything below `start` in `latest` is in the sink, so the group's offsets are written back from
there as well: Spark never calls `commit` for the last batch of a run.

Rules of data loss; with failOnDataLoss=false each is logged and counted instead:
- `start` lies before the first message: those between have expired; goes on at the first.
- A queue ends before `start`: its topic was made anew, or its broker lost its last messages in a
  crash and gives their offsets to others. A queue that begins at 0 is taken for a new one and read
  from there, others go on at their end. Such a queue's end in a batch lies before its start.
- Queues come: read from their first message. One that begins behind offset 0 has lost what it had
  before, or its broker joined with an older disk.
- Queues go: they stay in the offsets, and what they hold is read; were they dropped, their return
  would read them twice.
- A broker is away: its queues stay where they are.

Driver process (Spark's runner of the query), one thread. Imports no pyspark.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from skylarkmq.spark.clock import BlockingClock
from skylarkmq.spark.errors import DataLost
from skylarkmq.spark.offsets import INT64_MAX, OffsetRange, QueueKey, QueueOffsets
from skylarkmq.spark.options import SourceOptions
from skylarkmq.spark.reading.filter_check import FilterCheck
from skylarkmq.spark.reading.planning import shares, split
from skylarkmq.spark.reading.positions import listed, resolve
from skylarkmq.spark.reading.queue_view import Brokers, QueueView

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limit:
    """How much a batch may, and should at least, hold; None: no bound."""

    max_rows: int | None = None
    min_rows: int | None = None


NO_LIMIT: Final = Limit()
NOWHERE: Final = QueueOffsets()
"""Where the first batch of a query starts that begins at the ends, or that has no queues yet."""
NEW_QUEUE: Final = (
    "the queue is new to this query and does not begin at 0: they expired before the query saw it, "
    "or its broker joined with an older disk"
)


class WriteBack(Protocol):
    """Where the group's offsets go; best effort."""

    def put(self, offsets: Mapping[QueueKey, int]) -> None: ...

    def close(self, timeout_s: float = 3.0) -> None: ...


class StreamPlanner:
    """One query's decisions. Keeps nothing that a restart would need."""

    def __init__(
        self,
        brokers: Brokers,
        options: SourceOptions,
        clock: BlockingClock,
        write_back: WriteBack | None = None,
    ) -> None:
        """Ask nobody yet."""
        self._options = options
        self._clock = clock
        self._write_back = write_back
        self._written: QueueOffsets | None = None
        self._view = QueueView(
            brokers,
            options.subject,
            clock,
            refresh_s=options.metadata_refresh_s,
            cache_s=options.offset_cache_s,
            patience_s=options.connection.retry_timeout_s,
        )
        self._filter = FilterCheck(brokers, options.reading)
        self._began: QueueOffsets | None = None
        self._target: QueueOffsets | None = None
        self._knows_unrouted = False
        self._last_batch_s: float | None = None
        self.lost_count = 0
        """Messages passed over with failOnDataLoss=false, as far as this process has seen."""

    @property
    def default_limit(self) -> Limit:
        """What the options say."""
        options = self._options
        return Limit(options.max_offsets_per_trigger, options.min_offsets_per_trigger)

    def initial(self) -> QueueOffsets:
        """Return where a new query starts.

        Spark asks more than once, and again when the first batch was cut short. So the answer is
        kept, and a place that moves is none: `latest` writes it down in a batch without messages.

        Raises:
            NotFound, OptionError: see `queue_view`, `positions`.
            RocketMQError: brokers did not answer for `retryTimeoutMs`.
        """
        if self._began is None:
            self._began = self._resolved()
            target = self._target
            if target is not None:  # frozen before; what came in between is behind the start
                late = {key: at for key, at in self._began.items() if at > target.get(key, at)}
                self._target = target.updated(late)
        return NOWHERE if self._options.starting.moves else self._began

    def freeze(self) -> None:
        """Let this run end where the queues end now (Trigger.AvailableNow).

        Raises:
            RocketMQError: a broker did not answer; a run without its queues would claim too much.
        """
        self._view.patiently(self._view.queues)
        self._target = self._view.ends_now()
        self._knows_unrouted = False

    def latest(self, start: QueueOffsets, limit: Limit) -> QueueOffsets:
        """Return how far the batch that starts at `start` goes.

        Raises:
            DataLost: with failOnDataLoss.
            RocketMQError: nothing is known yet and nobody answers, or a broker refuses.
        """
        if not start:
            return self._first()
        self._put(start)
        ends = self._ends(start)
        if not self._is_due(start, ends, limit):
            return start
        begins = self._begins(start, ends)
        backlogs = {key: ends[key] - begin for key, begin in begins.items()}
        if limit.max_rows is not None:
            backlogs = shares(backlogs, limit.max_rows)
        end = start.updated({key: begin + backlogs[key] for key, begin in begins.items()})
        if end != start:
            self._last_batch_s = self._clock.monotonic()
        elif self._target is not None and self._write_back is not None:
            self._write_back.close()  # the run ends here, and Spark then ends this process
        return end

    def report(self) -> QueueOffsets | None:
        """Return where the queues end, for the query's progress; asks nobody."""
        return self._target or self._view.last_ends()

    def plan(self, start: QueueOffsets, end: QueueOffsets) -> list[OffsetRange]:
        """Return the ranges of a batch, cut as the options say.

        Raises:
            DataLost: with failOnDataLoss.
            FilterRefused: a broker that was not asked before does not filter so.
            RocketMQError: a new queue's broker did not answer.
        """
        if not start:
            return []  # see `_first`
        changed = [key for key, until in end.items() if start.get(key) != until]
        firsts = self._view.beginnings(changed)
        unsure = [
            key for key in changed if key not in firsts and end[key] < start.get(key, INT64_MAX)
        ]
        if unsure:
            ask = self._view.brokers.min_offsets
            firsts |= self._view.patiently(lambda: ask(unsure, master_only=True))
        ranges: list[OffsetRange] = []
        for key in changed:
            begin, loss = begin_of(key, start.get(key), end[key], firsts.get(key))
            self._note(loss)
            if begin < end[key]:
                ranges.append(OffsetRange(*key, begin, end[key]))
        # Also here, as a query that goes on from its checkpoint does not begin again.
        self._view.patiently(lambda: self._filter.show(each.key for each in ranges))
        return split(
            ranges,
            min_partitions=self._options.min_partitions,
            max_records=self._options.max_records_per_partition,
        )

    def commit(self, end: QueueOffsets) -> None:
        """Take note that all below `end` is in the sink."""
        self._put(end)

    def close(self) -> None:
        """Write the group's offsets and end their thread."""
        if self._write_back is not None:
            self._write_back.close()

    def _resolved(self) -> QueueOffsets:
        view, reading = self._view, self._options.reading
        queues = view.patiently(view.queues)
        view.patiently(lambda: self._filter.show(queues))
        return view.patiently(
            lambda: resolve(self._options.starting, queues, view.brokers, reading.group)
        )

    def _first(self) -> QueueOffsets:
        """Return the end of a batch that starts nowhere and holds no message: it only lets Spark
        write down where the query stands. A query that began without queues waits for them."""
        if self._began:
            return self._began
        return QueueOffsets(dict.fromkeys(self._ends(NOWHERE), 0))

    def _ends(self, start: QueueOffsets) -> dict[QueueKey, int]:
        """Return the ends to go to, without queues that have nothing new."""
        target = self._target
        if target is None:
            ends = self._view.patiently(lambda: self._view.ends(start))
        else:
            ends = target = self._target = self._with_unrouted(start, target)
        return {
            key: until
            for key, until in ends.items()
            if until != start.get(key) and (until > 0 or key in start)
        }

    def _begins(self, start: QueueOffsets, ends: Mapping[QueueKey, int]) -> dict[QueueKey, int]:
        """Return from where each queue is read; new ones whose broker is silent wait."""
        if not ends:
            return {}
        firsts = self._view.beginnings(ends)
        begins: dict[QueueKey, int] = {}
        for key, until in ends.items():
            if key in start or key in firsts:
                begins[key], loss = begin_of(key, start.get(key), until, firsts.get(key))
                self._refuse(loss)
        return begins

    def _refuse(self, loss: DataLost | None) -> None:
        if loss is not None and self._options.reading.fail_on_data_loss:
            raise loss

    def _note(self, loss: DataLost | None) -> None:
        self._refuse(loss)
        if loss is not None:
            self.lost_count += loss.lost
            log.warning("failOnDataLoss=false, going on: %s", loss)

    def _is_due(self, start: QueueOffsets, ends: Mapping[QueueKey, int], limit: Limit) -> bool:
        """Return whether what there is makes a batch now; expired messages count.

        A run to a target ignores the minimum: it might never be reached. So does a queue that went
        back: it may grow beyond `start` again, and then nobody could tell.
        """
        gains = [until - start.get(key, 0) for key, until in ends.items()]
        enough = limit.min_rows is None or sum(gains) >= limit.min_rows
        if enough or self._target is not None or any(gain < 0 for gain in gains):
            return True
        last_s = self._last_batch_s
        waited_s = self._clock.monotonic() - last_s if last_s is not None else None
        return waited_s is None or waited_s >= self._options.max_trigger_delay_s

    def _with_unrouted(self, start: QueueOffsets, target: QueueOffsets) -> QueueOffsets:
        """Add the queues that only the query's offsets know any more, once in a run to a target."""
        gone = [key for key in start if key not in target]
        if not gone or self._knows_unrouted:
            return target
        self._knows_unrouted = True
        found = self._view.ends_of(gone)
        left = [key for key in gone if key not in found]
        if left:
            log.warning(
                "no broker serves %s now: this run leaves them where they are", listed(left)
            )
        return target.updated(found)

    def _put(self, offsets: QueueOffsets) -> None:
        if self._write_back is not None and offsets != self._written:
            self._written = offsets
            self._write_back.put(offsets)


def begin_of(
    key: QueueKey, start: int | None, end: int, first: int | None
) -> tuple[int, DataLost | None]:
    """Return from where a queue is read up to `end`, at most `end`, and what is lost meanwhile.

    Args:
        start: where the batch starts, None for a queue that is new.
        first: the queue's first message, None when its broker does not say.
    """
    if start is None:
        begin = min(first or 0, end)
        return begin, DataLost(key, 0, first or 0, begin, NEW_QUEUE) if begin > 0 else None
    if end < start:
        return (0 if first == 0 else end), DataLost(key, start, end, start - end)
    if first is not None and first > start:
        return min(first, end), DataLost(key, start, first, min(first, end) - start)
    return start, None
