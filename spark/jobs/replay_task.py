"""One task of a replay: the rows of some source queues, in the order of their offsets, to a topic.

    rows, sorted by source queue and offset
      below the ledger's next offset   passed over: an earlier run sent them
      others                           sent to the source queue's one target queue, in order
    every RECORD_ROWS rows or RECORD_S seconds, and at a queue's end: every acknowledgement is
    awaited, then the ledger says how far the queue is

Messages keep body, keys, tags, properties and flag; their unique keys are made of topic, broker,
queue and offset of the source, so a copy of a copy is seen. Runs in a Spark worker; no pyspark.
"""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.clock import BlockingClock
from skylarkmq.spark.jobs.replay_ledger import Done, Ledger
from skylarkmq.spark.writing.rows import Addressed, RowError, RowReader
from skylarkmq.spark.writing.sink_columns import plan_rows
from skylarkmq.spark.writing.sink_options import SinkOptions
from skylarkmq.spark.writing.sink_task import SinkTask
from skylarkmq.spark.writing.window import SendWindow

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final[tuple[tuple[str, str], ...]] = (
    ("topic", "string"),
    ("brokerName", "string"),
    ("queueId", "int"),
    ("queueOffset", "bigint"),
    ("msgId", "string"),
    ("keys", "string"),
    ("tags", "string"),
    ("body", "binary"),
    ("properties", "map<string,string>"),
    ("flag", "int"),
)
"""The columns of the rows, in this order."""
IDENTITY: Final = ("topic", "brokerName", "queueId", "queueOffset")
RECORD_ROWS: Final = 10_000
RECORD_S: Final = 1.0
SMOOTH_S: Final = 0.2
"""With a rate, messages that go together are those of so many seconds at most."""


@dataclass(frozen=True, slots=True)
class ReplaySetup:
    """What every task is told; picklable."""

    options: SinkOptions
    """With `topic` set to the target."""
    ledger: Ledger
    """Of the run that the task belongs to."""
    numbers: dict[MessageQueue, int]
    """Source queue to its number in the ledger."""
    targets: dict[MessageQueue, MessageQueue]
    rate: float | None = None
    """Messages per second of this task; None: as fast as brokers take them."""
    keep_ids: bool = False

    @property
    def sink_options(self) -> SinkOptions:
        """How messages are put together: the source's place makes their keys."""
        options = replace(self.options, identity=() if self.keep_ids else IDENTITY)
        if self.rate is None:
            return options
        together = max(1, min(options.batch_count, int(self.rate * SMOOTH_S)))
        return replace(options, batch_count=together)


class Pace:
    """Holds a task to a rate; time that was lost is not made up for."""

    def __init__(self, rate: float | None, clock: BlockingClock) -> None:
        self._step_s = 0.0 if rate is None else 1.0 / rate
        self._clock = clock
        self._next_s = clock.monotonic()

    def take(self) -> None:
        """Wait until one more message may go."""
        if not self._step_s:
            return
        now_s = self._clock.monotonic()
        self._next_s = max(self._next_s + self._step_s, now_s - SMOOTH_S)
        self._clock.sleep(self._next_s - now_s)


class ReplayTask:
    """Sends the rows that one task gets. One thread."""

    def __init__(
        self,
        setup: ReplaySetup,
        window: SendWindow,
        write_queues: Callable[[str], list[MessageQueue]],
        clock: BlockingClock,
    ) -> None:
        self._setup = setup
        self._clock = clock
        self._pace = Pace(setup.rate, clock)
        options = setup.sink_options
        plan = plan_rows(COLUMNS, has_topic=True, identity=options.identity)
        # The ledger says where rows go, not their own queue.
        plan = replace(plan, queue_id=None, broker_name=None)
        self._rows = RowReader(plan, options, self._no_id)
        self._sink = SinkTask(window, write_queues, options, self._rows.error)
        self._source: MessageQueue | None = None
        self._done = Done()
        self._unrecorded = 0
        self._record_at_s = 0.0

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Done]]:
        """Send all rows; yield the number of each source queue that is through, and how far.

        Raises:
            RowError, RocketMQError: a message could not be sent; the ledger has those before it.
            RunEndedError: the driver is gone, or was told to stop, or another run is at work.
        """
        for batch in batches:
            for source, part in runs(batch):
                if source != self._source:
                    if self._source is not None:
                        yield self._end_of_queue(self._source)
                    self._begin(source)
                self._send(source, part)
        if self._source is not None:
            yield self._end_of_queue(self._source)

    # Inside

    def _begin(self, source: MessageQueue) -> None:
        self._setup.ledger.require_run()
        self._source = source
        self._done = self._setup.ledger.claim(self._setup.numbers[source])
        self._record_at_s = self._clock.monotonic() + RECORD_S

    def _send(self, source: MessageQueue, batch: pa.RecordBatch) -> None:
        offsets: list[int] = batch.column(3).to_pylist()  # type: ignore[assignment]
        first = next((at for at, offset in enumerate(offsets) if offset >= self._done[0]), None)
        if first is None:
            return
        rest = batch.slice(first)
        target = self._setup.targets[source]
        messages = self._rows.messages(rest)
        for offset in offsets[first:]:
            try:
                item = next(messages)
            except RowError as error:
                raise RowError(
                    f"the message at offset {offset} of queue {source.queue_id} of topic "
                    f"{source.topic} on broker {source.broker_name}: {error}"
                ) from error
            self._pace.take()
            self._sink.send((_to(target, item),))
            sent, size = self._done.sent + 1, self._done.size + len(item.message.body)
            self._done = Done(offset + 1, sent, size)
            self._unrecorded += 1
            if self._unrecorded >= RECORD_ROWS or self._clock.monotonic() >= self._record_at_s:
                self._record(source)

    def _record(self, source: MessageQueue) -> None:
        """Wait for every acknowledgement, then write down how far the queue is."""
        self._sink.finish()
        if self._unrecorded:
            self._setup.ledger.record(self._setup.numbers[source], self._done)
            self._unrecorded = 0
        self._setup.ledger.require_run()
        self._record_at_s = self._clock.monotonic() + RECORD_S

    def _end_of_queue(self, source: MessageQueue) -> tuple[int, Done]:
        self._record(source)
        return self._setup.numbers[source], self._done

    def _no_id(self, topic: str, row: int) -> str:
        raise RowError(f"row {row} has no msgId to keep", hint="Replay without --keep-ids")


def runs(batch: pa.RecordBatch) -> Iterator[tuple[MessageQueue, pa.RecordBatch]]:
    """Yield the parts of a batch that are of one source queue each, in their order."""
    columns: list[list[Any]] = [batch.column(place).to_pylist() for place in range(3)]
    queues = list(zip(*columns, strict=True))
    bounds = [
        0,
        *(place for place in range(1, len(queues)) if queues[place] != queues[place - 1]),
        len(queues),
    ]
    for start, end in pairwise(bounds):
        if start < end:
            yield MessageQueue(*queues[start]), batch.slice(start, end - start)


def _to(target: MessageQueue, item: Addressed) -> Addressed:
    return item._replace(queue_id=target.queue_id, broker_name=target.broker_name)


def send_rows(setup: ReplaySetup, batches: Iterable[pa.RecordBatch]) -> None:
    """Send a task's rows with the worker's client; raises what `ReplayTask.run` does."""
    from skylarkmq.spark.clock import SystemClock
    from skylarkmq.spark.writing.sink_task import task_window

    window, write_queues = task_window(setup.sink_options)
    task = ReplayTask(setup, window, write_queues, SystemClock())
    for _ in task.run(batches):
        pass  # the ledger has it
