"""What a query reads next: the decisions of the source, without Spark.

    shares          how much of a backlog one batch takes
    split, pack     how long ranges are cut, and which of them make a task
    BatchPlanner    the ranges between a start and an end of each queue
    StreamPlanner   how far the next micro-batch goes, and its ranges

Driver process, one thread. Imports no pyspark.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, TypeVar

from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.errors import DataLost
from skylarkmq.spark.offsets import INT64_MAX, OffsetRange, QueueKey, QueueOffsets, describe
from skylarkmq.spark.option_reading import OptionError
from skylarkmq.spark.options import SourceOptions
from skylarkmq.spark.reading.key_lookup import KeyLookup
from skylarkmq.spark.reading.last_read import BatchCheck
from skylarkmq.spark.reading.positions import Position, listed, resolve
from skylarkmq.spark.reading.queue_view import FilterCheck, QueueView
from skylarkmq.spark.reading.write_back import OffsetWriteBack

K = TypeVar("K", bound=Hashable)

log = logging.getLogger(__name__)


def shares(backlogs: Mapping[K, int], limit: int) -> dict[K, int]:
    """Divide `limit` by the size of each backlog; no queue gets more than it has.

    Each backlog above 0 gets at least 1, so that a short one beside a long one never starves: with
    more backlogs than `limit` the sum is their number. Else it is `limit`, or all there is. Equal
    backlogs give equal results in every call; the order of the keys decides who gets a remainder.
    """
    wanting = {key: size for key, size in backlogs.items() if size > 0}
    total = sum(wanting.values())
    if total <= limit:
        return {key: max(0, size) for key, size in backlogs.items()}
    given: dict[K, int] = {}
    rest, left = dict(wanting), limit
    while short := [key for key, size in rest.items() if left * size < total]:
        given.update(dict.fromkeys(short, 1))  # an exact share would be below 1
        left -= len(short)
        total -= sum(rest.pop(key) for key in short)
    given.update({key: left * size // total for key, size in rest.items()})
    spare = left - sum(given[key] for key in rest)
    by_remainder = sorted(rest, key=lambda key: left * rest[key] % total, reverse=True)
    for key in by_remainder[:spare]:
        given[key] += 1
    return {key: given.get(key, 0) for key in backlogs}


def split(
    ranges: Iterable[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[OffsetRange]:
    """Cut ranges so that there are `min_partitions` at least and none is above `max_records`.

    Together the pieces are the same messages in the same order, and no piece is empty. The pieces
    of one range differ by one message at most. There are fewer than `min_partitions` only when
    there are fewer messages.
    """
    full = [each for each in ranges if each.message_count > 0]
    pieces = _piece_counts(full, min_partitions or 0)
    if max_records is not None:
        pieces = {
            each: max(count, -(-each.message_count // max_records))
            for each, count in pieces.items()
        }
    return [part for each in full for part in _cut(each, pieces[each])]


def _piece_counts(ranges: list[OffsetRange], min_partitions: int) -> dict[OffsetRange, int]:
    """Return into how many pieces each range goes, so that the longest piece is short."""
    pieces = dict.fromkeys(ranges, 1)
    longest: list[tuple[float, OffsetRange]] = [
        (-each.message_count, each) for each in pieces if each.message_count > 1
    ]
    heapq.heapify(longest)
    for _ in range(min_partitions - len(pieces)):
        if not longest:
            break
        each = longest[0][1]
        count = pieces[each] = pieces[each] + 1
        if count < each.message_count:
            heapq.heapreplace(longest, (-each.message_count / count, each))
        else:
            heapq.heappop(longest)
    return pieces


def _cut(whole: OffsetRange, count: int) -> list[OffsetRange]:
    edges = [whole.start + whole.message_count * index // count for index in range(count + 1)]
    return [whole._replace(start=start, end=end) for start, end in pairwise(edges)]


def pack(
    ranges: Sequence[OffsetRange],
    *,
    together: int,
    min_partitions: int | None = None,
    max_partitions: int | None = None,
) -> list[tuple[OffsetRange, ...]]:
    """Return the ranges of each task: a task costs what thousands of messages do.

    Neighbours share a task as long as they have `together` messages at most. Where that makes more
    tasks than `max_partitions`, or fewer than `min_partitions`, there are as many as that, with
    about equally many messages. Ranges and tasks keep their order.
    """
    tasks: list[list[OffsetRange]] = []
    size = 0
    for each in ranges:
        size += each.message_count
        if tasks and size <= together:
            tasks[-1].append(each)
        else:
            tasks.append([each])
            size = each.message_count
    low = min(min_partitions or 0, len(ranges))
    count = max(low, min(len(tasks), max_partitions or len(tasks)))
    if count == len(tasks):
        return [tuple(task) for task in tasks]
    loads = [(0, number) for number in range(count)]
    shared: list[list[int]] = [[] for _ in loads]
    for place in sorted(range(len(ranges)), key=lambda at: -ranges[at].message_count):
        load, number = loads[0]
        shared[number].append(place)
        heapq.heapreplace(loads, (load + ranges[place].message_count, number))
    return [tuple(ranges[place] for place in task) for task in sorted(map(sorted, shared))]


_ASKED_FOR: Final = frozenset({"offsets"})


class BatchPlanner:
    """One batch's decisions, made once for each query."""

    def __init__(self, brokers: BlockingClient, options: SourceOptions) -> None:
        """Ask no broker yet."""
        self._options = options
        self._view = QueueView(
            brokers,
            options.subject,
            refresh_s=options.metadata_refresh_s,
            patience_s=options.connection.retry_timeout_s,
        )

    def plan(self) -> list[OffsetRange]:
        """Return the ranges to read, cut as the options say.

        Raises:
            NotFound, OptionError: see `queue_view`, `positions`; a start lies after its end.
            DataLost: with failOnDataLoss, when exact offsets are not there (any more).
            RocketMQError: brokers did not answer for `retryTimeoutMs`.
        """
        view, options = self._view, self._options
        queues = view.patiently(view.queues)
        view.patiently(lambda: FilterCheck(view.brokers, options.reading).show(queues))
        firsts = view.patiently(lambda: view.brokers.min_offsets(queues))
        starting = self._resolved(options.starting, queues)
        ends = view.patiently(lambda: view.brokers.max_offsets(queues))
        ending = self._resolved(options.ending, queues)
        chosen = KeyLookup(view.brokers, options.keys)
        ranges: list[OffsetRange] = []
        for key in queues:
            if starting[key] > ending[key] and options.starting.kind in _ASKED_FOR:
                raise self._contradiction(key, starting[key], ending[key])
            start, end = self._within(key, starting[key], ending[key], firsts[key], ends[key])
            ranges += [OffsetRange(*key, *part) for part in chosen.parts(key, start, end)]
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
            f"option {options.starting.option} lies after the end; correct it"
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
USED_AGAIN: Final = (
    "the message before it is another one than the query has read. The topic was made anew, or the "
    "broker lost its last messages in a crash or has an older disk, and these offsets are used "
    "again"
)


class StreamPlanner:
    """One streaming query's decisions. Keeps nothing that a restart would need.

        initial()             where a new query starts; nowhere when that moves, see there
        latest(start, limit)  how far the next batch goes; `start` when there is nothing (yet)
        plan(start, end)      the ranges of a batch; the same for the same arguments, for Spark asks
                              again after a crash
        commit(end)           all below is in the sink

    Everything below `start` in `latest` is in the sink, so the group's offsets are written back
    from there as well: Spark never calls `commit` for the last batch of a run.

    Rules of data loss; with failOnDataLoss=false each is logged and counted instead:
    - `start` lies before the first message: those between have expired; goes on at the first.
    - A queue ends before `start`: its topic was made anew, or its broker lost its last messages in
      a crash and gives their offsets to others. A queue that begins at 0 is taken for a new one and
      read from there, others go on at their end. Such a queue's end in a batch lies before its
      start.
    - A queue has grown beyond `start` with offsets that are used again: the message before `start`
      is another one than the checkpoint says. Such a queue goes on at the first message that was
      stored after the one that it has read; a shorter queue too, when it has one. The offsets of
      a release that noted no messages, a message that has expired, and a broker that does not tell
      are no loss.
    - Queues come: they are read from their first message. One that begins after offset 0 has lost
      what it had before, or its broker joined with an older disk.
    - Queues go: they stay in the offsets, and what they hold is read; were they dropped, their
      return would read them twice.
    - A broker is away: its queues stay where they are.
    """

    def __init__(
        self,
        brokers: BlockingClient,
        options: SourceOptions,
        write_back: OffsetWriteBack | None = None,
    ) -> None:
        """Ask no broker yet."""
        self._options = options
        self._clock = brokers.clock
        self._write_back = write_back
        self._written: QueueOffsets | None = None
        self._view = QueueView(
            brokers,
            options.subject,
            refresh_s=options.metadata_refresh_s,
            cache_s=options.offset_cache_s,
            patience_s=options.connection.retry_timeout_s,
            group=options.reading.group,
        )
        self._filter = FilterCheck(brokers, options.reading)
        self._began: QueueOffsets | None = None
        self._target: QueueOffsets | None = None
        self._knows_unrouted = False
        self._last_batch_s: float | None = None
        self._end: QueueOffsets | None = None
        self._last_read = BatchCheck(self._view)
        self.lost_count = 0
        """Messages passed over with failOnDataLoss=false, as far as this process has seen."""

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
            if target is not None:  # frozen before; what came in between lies after the start
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
            RocketMQError: nothing is known yet and no broker answers, or one refuses.
        """
        end = self._latest(start, limit)
        patient = self._target is not None
        self._end = start if end == start else self._last_read.noted(start, end, patient=patient)
        return self._end

    def _latest(self, start: QueueOffsets, limit: Limit) -> QueueOffsets:
        if not start:
            return self._first()
        self._put(start)
        known = self._known_ends(start)
        # At first also of queues that seem to have nothing new: they may have just as much again.
        is_first, patient = not self._last_read.was_compared, self._target is not None
        last_read = self._last_read
        again = last_read.compare(start, known, patient=patient) if is_first else {}
        ends = {
            key: until
            for key, until in known.items()
            if key in again or (until != start.get(key) and (until > 0 or key in start))
        }
        if not again and not self._is_due(start, ends, limit):
            return start
        if not is_first:
            again = last_read.compare(start, ends, patient=patient)
        ends = {key: until for key, until in ends.items() if key not in last_read.silent}
        begins = self._begins(start, ends, again)
        backlogs = {key: ends[key] - begin for key, begin in begins.items()}
        if limit.max_rows is not None:
            backlogs = shares(backlogs, limit.max_rows)
        reached = {key: begin + backlogs[key] for key, begin in begins.items()}
        end = start.updated(
            {key: at for key, at in reached.items() if at != start.get(key) or key in again}
        )
        if end != start:
            self._last_batch_s = self._clock.monotonic()
        elif self._target is not None and self._write_back is not None:
            self._write_back.close()  # the run ends here, and Spark then ends this process
        return end

    def report(self) -> dict[str, Any] | None:
        """Return what the query's progress shows as its latest offset; asks no broker.

            v, o     where the queues end, or a run to a target will, as `QueueOffsets.to_json`
            behind   messages by topic between the end of the last batch and there
            lost     messages passed over with failOnDataLoss=false since the query was started
            away     brokers that do not answer: their queues stay where they are

        None: nothing is known yet.
        """
        ends = self._target or self._view.last_ends()
        if ends is None:
            return None
        reached = self._end or NOWHERE
        behind = {key.topic: 0 for key in reached}
        for key, at in reached.items():
            behind[key.topic] += max(0, ends.get(key, at) - at)
        return ends.to_json() | {
            "behind": behind,
            "lost": self.lost_count,
            "away": self._view.away(),
        }

    def plan(self, start: QueueOffsets, end: QueueOffsets) -> list[OffsetRange]:
        """Return the ranges of a batch, cut as the options say.

        Raises:
            DataLost: with failOnDataLoss.
            FilterRefused: a broker that was not asked before does not filter so.
            RocketMQError: a new queue's broker did not answer.
        """
        if not start:
            return []  # see `_first`
        again = self._last_read.compared(start, end)
        changed = [
            key
            for key, until in end.items()
            if start.get(key) != until
            or (key in again and start.before.get(key) != end.before.get(key))
        ]
        firsts = self._view.beginnings(changed)
        unsure = [
            key for key in changed if key not in firsts and end[key] < start.get(key, INT64_MAX)
        ]
        if unsure:
            ask = self._view.brokers.min_offsets
            firsts |= self._view.patiently(lambda: ask(unsure, master_only=True))
        ranges: list[OffsetRange] = []
        for key in changed:
            at, first = start.get(key), firsts.get(key)
            begin, loss = begin_of(key, at, end[key], first, again.get(key))
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
        ends = self._known_ends(NOWHERE)
        return QueueOffsets({key: 0 for key, until in ends.items() if until > 0})

    def _known_ends(self, start: QueueOffsets) -> QueueOffsets:
        """Return the ends to go to."""
        target = self._target
        if target is None:
            return self._view.patiently(lambda: self._view.ends(start))
        self._target = self._with_unrouted(start, target)
        return self._target

    def _begins(
        self,
        start: QueueOffsets,
        ends: Mapping[QueueKey, int],
        again: Mapping[QueueKey, int],
    ) -> dict[QueueKey, int]:
        """Return from where each queue is read; new ones whose broker is silent wait."""
        if not ends:
            return {}
        firsts = self._view.beginnings(ends)
        begins: dict[QueueKey, int] = {}
        for key, until in ends.items():
            if key in start or key in firsts:
                at, first = start.get(key), firsts.get(key)
                begins[key], loss = begin_of(key, at, until, first, again.get(key))
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
        back: it may grow beyond `start` again, and then the loss could not be seen.
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
    key: QueueKey, start: int | None, end: int, first: int | None, again: int | None = None
) -> tuple[int, DataLost | None]:
    """Return from where a queue is read up to `end`, at most `end`, and what is lost meanwhile.

    Args:
        start: where the batch starts, None for a queue that is new.
        first: the queue's first message, None when its broker does not say.
        again: from where on offsets below `start` are used again, None where they are not.
    """
    if start is None:
        begin = min(first or 0, end)
        return begin, DataLost(key, 0, first or 0, begin, NEW_QUEUE) if begin > 0 else None
    if again is not None:
        begin = min(max(again, first or 0), end)
        return begin, DataLost(key, start, begin, start - begin, USED_AGAIN)
    if end < start:
        return (0 if first == 0 else end), DataLost(key, start, end, start - end)
    if first is not None and first > start:
        return min(first, end), DataLost(key, start, first, min(first, end) - start)
    return start, None
