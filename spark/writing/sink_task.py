"""One task of the sink: rows in, batches out to their queues, every answer awaited.

    row names a queue       that queue
    row has a sharding key  the queue of its hash, as RocketMQ's producers choose it
    neither                 the topic's queues in turn, a batch each; when a broker is away, another

Rows of the first two kinds keep their order within a queue. What is in memory: a slice of the rows,
batches that are being filled (OPEN_SIZE_MAX together), and requests under way, which the window
bounds; while it is full no row is taken, so a slow broker slows Spark's task down.

Runs in a Spark worker, one object per task; no pyspark, no pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from skylarkmq.client.config import MIB
from skylarkmq.client.producer.lanes import by_hash
from skylarkmq.protocol.batch import MIN_BATCH_ITEM_SIZE
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.cluster import BlockingClient, client_for, patiently
from skylarkmq.spark.writing.rows import Addressed, RowError
from skylarkmq.spark.writing.sink_options import SinkOptions
from skylarkmq.spark.writing.window import Outgoing, Receipt, SendWindow

OPEN_SIZE_MAX: Final = 8 * MIB
"""Bytes of all batches that are being filled; beyond it the largest goes as it is."""
REQUESTS_PER_FLUSH: Final = 10_000
"""Requests whose receipts are kept before they are summed up, which waits for their answers."""

Errors = Callable[[str, str, str], RowError]
"""Topic, why, hint: the error for the row that is being read."""


@dataclass(slots=True)
class QueueTotal:
    """What a task stored in one queue."""

    count: int = 0
    size: int = 0
    """Bytes of bodies."""
    first_unique_key: str = ""
    last_unique_key: str = ""
    resent: int = 0

    def add(self, receipt: Receipt) -> None:
        """Count one request, later than those before."""
        self.count += receipt.count
        self.size += receipt.size
        self.first_unique_key = self.first_unique_key or receipt.first_unique_key
        self.last_unique_key = receipt.last_unique_key
        self.resent += receipt.resent


@dataclass(slots=True)
class _Open:
    """A batch that is being filled."""

    queue: MessageQueue
    others: tuple[MessageQueue, ...] = ()
    size: int = 0
    messages: list[Outgoing] = field(default_factory=list[Outgoing])


class SinkTask:
    """Sends a task's messages through a window."""

    def __init__(
        self,
        window: SendWindow,
        write_queues: Callable[[str], list[MessageQueue]],
        options: SinkOptions,
        error: Errors,
        partition: int = 0,
    ) -> None:
        """Take what it works with.

        Args:
            write_queues: the queues of a topic in the order of RocketMQ's producers; asked once a
                topic.
            partition: where tasks start in a topic's queues, so that they do not all start at one.
        """
        self.totals: dict[MessageQueue, QueueTotal] = {}
        self._window = window
        self._write_queues = write_queues
        self._options = options
        self._error = error
        self._turn = partition
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._places: dict[tuple[str, int, str | None], MessageQueue] = {}
        self._open: dict[MessageQueue | str, _Open] = {}
        self._open_size = 0
        self._request_count = 0

    def send(self, messages: Iterable[Addressed]) -> None:
        """Send messages in their order; some may wait for others of their queue until `finish`.

        Raises:
            RowError: a message names a queue that is not there.
            RocketMQError: no route, or a request has failed for good.
        """
        batch_size, batch_count = self._options.batch_size, self._options.batch_count
        for item in messages:
            key = self._key(item)
            message = item.message
            size = MIN_BATCH_ITEM_SIZE + len(message.body) + len(message.properties)
            batch = self._open.get(key)
            alone = item.alone or size > batch_size
            if batch is not None and (
                not isinstance(key, str)  # what goes alone keeps its place in its queue
                if alone
                else batch.size + size > batch_size or len(batch.messages) >= batch_count
            ):
                self._go(key)
                batch = None
            if alone:
                queue, others = self._target(key)
                self._put(queue, [message], others)
                continue
            if batch is None:
                batch = self._open[key] = _Open(*self._target(key))
            batch.messages.append(message)
            batch.size += size
            self._open_size += size
            if self._open_size > OPEN_SIZE_MAX:
                self._go(max(self._open, key=lambda each: self._open[each].size))

    def finish(self) -> dict[MessageQueue, QueueTotal]:
        """Send what is left and wait for every answer; return what each queue got.

        Raises:
            RocketMQError: a request has failed for good.
        """
        for key in list(self._open):
            self._go(key)
        self._take_receipts()
        return self.totals

    # Inside

    def _key(self, item: Addressed) -> MessageQueue | str:
        """Return the queue of a message, or its topic when any of the topic's queues will do."""
        if item.queue_id is not None:
            return self._named_queue(item, item.queue_id)
        if item.sharding_key is not None:
            return by_hash(self._topic_queues(item.topic), item.sharding_key)
        return item.topic

    def _topic_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = tuple(self._write_queues(topic))
        return queues

    def _named_queue(self, item: Addressed, queue_id: int) -> MessageQueue:
        place = (item.topic, queue_id, item.broker_name)
        found = self._places.get(place)
        if found is not None:
            return found
        queues = [
            queue
            for queue in self._topic_queues(item.topic)
            if queue.queue_id == queue_id and item.broker_name in (None, queue.broker_name)
        ]
        if len(queues) > 1:
            brokers = ", ".join(queue.broker_name for queue in queues)
            raise self._error(
                item.topic,
                f"column queueId is {queue_id}, and brokers {brokers} each have such a queue",
                "Add a column brokerName, or drop queueId and let the sink choose",
            )
        if not queues:
            broker = "" if item.broker_name is None else f", column brokerName {item.broker_name}"
            raise self._error(
                item.topic,
                f"column queueId is {queue_id}{broker}, and the topic has no such queue to write "
                f"to; it has {_shown(self._topic_queues(item.topic))}",
                "Drop queueId and brokerName to let the sink choose, which rows that were read "
                "from another topic need",
            )
        self._places[place] = queues[0]
        return queues[0]

    def _target(self, key: MessageQueue | str) -> tuple[MessageQueue, tuple[MessageQueue, ...]]:
        """Return the queue for a new request, and those that will do as well."""
        if not isinstance(key, str):
            return key, ()
        queues = self._topic_queues(key)
        place = self._turn % len(queues)
        self._turn += 1
        return queues[place], queues[place + 1 :] + queues[:place]

    def _go(self, key: MessageQueue | str) -> None:
        batch = self._open.pop(key)
        self._open_size -= batch.size
        self._put(batch.queue, batch.messages, batch.others)

    def _put(
        self, queue: MessageQueue, messages: list[Outgoing], others: tuple[MessageQueue, ...]
    ) -> None:
        self._window.send(queue, messages, others=others)
        self._request_count += 1
        if self._request_count % REQUESTS_PER_FLUSH == 0:
            self._take_receipts()

    def _take_receipts(self) -> None:
        for receipt in self._window.flush():
            total = self.totals.get(receipt.queue)
            if total is None:
                total = self.totals[receipt.queue] = QueueTotal()
            total.add(receipt)


def _shown(queues: Iterable[MessageQueue]) -> str:
    ids: dict[str, list[int]] = {}
    for queue in queues:
        ids.setdefault(queue.broker_name, []).append(queue.queue_id)
    return ", ".join(
        f"{min(found)} to {max(found)} on {broker}" for broker, found in sorted(ids.items())
    )


def task_window(options: SinkOptions) -> tuple[SendWindow, Callable[[str], list[MessageQueue]]]:
    """Return what a task of the sink, or of the job replay, sends with, and what finds queues.

    That is a window over the worker's client, and a function that returns the queues of a topic.

    The latter waits `retryTimeoutMs` for a name server that is away, as sending waits for brokers;
    it raises as `BlockingClient.write_queues`.
    """
    client = client_for(options.connection)
    window = SendWindow(
        client,
        group=options.producer_group,
        max_in_flight=options.requests_max,
        max_in_flight_bytes=options.unacknowledged_size,
        accepted=options.accepted,
    )
    return window, lambda topic: lasting_write_queues(client, topic)


def lasting_write_queues(client: BlockingClient, topic: str) -> list[MessageQueue]:
    """Return the queues of a topic, trying again while no name server answers."""
    return patiently(
        lambda: client.write_queues(topic),
        client.clock,
        client.settings.retry_timeout_s,
        f"topic {topic}",
    )
