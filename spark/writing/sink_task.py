"""One task of the sink: rows in, batches out to their queues, every answer awaited.

    row names a queue       that queue
    row has a sharding key  the queue of its hash, as RocketMQ's producers choose it
    row has a priority      that of its level, which the broker finds; alone, at a broker as below
    neither                 the topic's queues in turn, a batch each; when a broker is away, another
    neither, exactly once   the queues in turn of the broker that its unique key chooses

Rows of the first two kinds keep their order within a queue. What is in memory: a slice of the rows,
batches that are being filled (OPEN_SIZE_MAX together), and requests under way, which the window
bounds; while it is full no row is taken, so a slow broker slows Spark's task down.

Runs in a Spark worker, one object per task; no pyspark, no pyarrow.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Final

from skylarkmq.client.config import MIB
from skylarkmq.client.producer.lanes import by_hash
from skylarkmq.protocol.batch import MIN_BATCH_ITEM_SIZE, BatchItem, encode_batch
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.clients import client_for
from skylarkmq.spark.writing.promises import Promises, broker_of, lasting_write_queues
from skylarkmq.spark.writing.rows import Addressed, RowError
from skylarkmq.spark.writing.sink_options import SinkOptions
from skylarkmq.spark.writing.window import Batch, Outgoing, Receipt, SendWindow

if TYPE_CHECKING:
    from skylarkmq.spark.writing.packing import Items, Packed

OPEN_SIZE_MAX: Final = 8 * MIB
"""Bytes of all batches that are being filled; beyond it the largest goes as it is."""
REQUESTS_PER_FLUSH: Final = 10_000
"""Requests whose receipts are kept before they are summed up, which waits for their answers."""

_ANY: Final = -1
"""Stands for any queue, of any broker or of one that is named."""

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
    parts: list[bytes | memoryview] = field(default_factory=list[bytes | memoryview])
    size: int = 0
    """Bytes of the parts."""
    count: int = 0
    body_size: int = 0
    first_unique_key: str = ""
    last_unique_key: str = ""

    def add(self, part: bytes | memoryview, count: int, body_size: int, *keys: str) -> None:
        """Add messages; `keys` are the first one's and the last one's."""
        self.parts.append(part)
        self.size += len(part)
        self.count += count
        self.body_size += body_size
        self.first_unique_key = self.first_unique_key or keys[0]
        self.last_unique_key = keys[-1]

    def batch(self) -> Batch:
        """Return all of it."""
        body, last = b"".join(self.parts), self.last_unique_key
        return Batch(body, self.count, self.body_size, self.first_unique_key, last)


class SinkTask:
    """Sends a task's messages through a window."""

    def __init__(
        self,
        window: SendWindow,
        write_queues: Callable[[str], list[MessageQueue]],
        options: SinkOptions,
        error: Errors,
        partition: int = 0,
        promises: Promises | None = None,
    ) -> None:
        """Take what it works with.

        Args:
            write_queues: the queues of a topic in the order of RocketMQ's producers; asked once a
                topic.
            partition: where tasks start in a topic's queues, so that they do not all start at one.
            promises: None: whatever is there, messages are sent at least once.
        """
        self.totals: dict[MessageQueue, QueueTotal] = {}
        self._window = window
        self._write_queues = write_queues
        self._options = options
        self._error = error
        self._turn = partition
        self._promises = promises
        self._queues: dict[str, tuple[MessageQueue, ...]] = {}
        self._brokers: dict[str, tuple[str, ...]] = {}
        self._places: dict[tuple[str, int, str | None], MessageQueue] = {}
        self._open: dict[MessageQueue, _Open] = {}
        self._open_size = 0
        self._request_count = 0

    def send(self, messages: Iterable[Addressed]) -> None:
        """Send messages in their order; some may wait for others of their queue until `finish`.

        Raises:
            RowError: a message names a queue that is not there.
            RocketMQError: no route, or a request has failed for good.
        """
        for item in messages:
            key = self._key(item.topic, item.queue_id, item.broker_name, item.sharding_key,
                            item.message.unique_key)  # fmt: skip
            message = item.message
            size = MIN_BATCH_ITEM_SIZE + len(message.body) + len(message.properties)
            if item.alone or size > self._options.batch_size:
                if key.queue_id != _ANY and key in self._open:  # it keeps its place in its queue
                    self._go(key)
                queue, others = self._target(key)
                if item.by_priority:  # no queue: the broker refuses it where there are no levels
                    queue, *more = (each._replace(queue_id=-1) for each in (queue, *others))
                    others = tuple(more)
                self._put(queue, message, others)
                continue
            part = encode_batch((BatchItem(message.flag, message.body, message.properties),))
            batch = self._with_room(key, size)
            batch.add(part, 1, len(message.body), message.unique_key)
            self._added(size)

    def send_packed(self, packed: Packed) -> bool:
        """Send a slice of rows; as `send`.

        Returns whether it did: not when a row names a queue that is not there.

        Raises:
            RocketMQError: no route, or a request has failed for good.
        """
        try:
            targets = self._targets(packed)
        except RowError:
            return False
        for key, rows in targets:
            self._add_items(key, packed.all_items() if rows is None else packed.some_items(rows))
        return True

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

    def _targets(self, packed: Packed) -> list[tuple[MessageQueue, list[int] | None]]:
        """Return where the rows go: the queue as `_key` gives it, and its rows; None: all."""
        topics, count = packed.topics, packed.count
        if (
            isinstance(topics, str)
            and not (packed.queue_ids or packed.sharding_keys)
            and len(self._topic_brokers(topics)) < 2
        ):
            return [(MessageQueue(topics, "", _ANY), None)]
        found: dict[MessageQueue, list[int]] = {}
        for row, named in enumerate(
            zip(
                repeat(topics, count) if isinstance(topics, str) else topics,
                packed.queue_ids or repeat(None, count),
                packed.broker_names or repeat(None, count),
                packed.sharding_keys or repeat(None, count),
                packed.key_texts(),
                strict=True,
            )
        ):
            found.setdefault(self._key(*named), []).append(row)
        return [(key, None if len(found) == 1 else rows) for key, rows in found.items()]

    def _add_items(self, key: MessageQueue, items: Items) -> None:
        """Add messages to the batch of a target, which goes each time it is full."""
        batch_size, batch_count = self._options.batch_size, self._options.batch_count
        data, ends, body_ends, keys = items
        row, last = 0, len(ends) - 1
        while row < last:
            batch = self._with_room(key, ends[row + 1] - ends[row])
            limit = ends[row] + batch_size - batch.size
            stop = min(bisect_right(ends, limit) - 1, row + batch_count - batch.count, last)
            batch.add(
                data[ends[row] : ends[stop]],
                stop - row,
                body_ends[stop] - body_ends[row],
                *(keys[at].as_py().decode() for at in (row, stop - 1)),
            )
            size, row = ends[stop] - ends[row], stop
            self._added(size)

    def _with_room(self, key: MessageQueue, size: int) -> _Open:
        """Return the batch of a target, a new one when `size` bytes do not go into it."""
        batch = self._open.get(key)
        if batch is not None and (
            batch.size + size > self._options.batch_size or batch.count >= self._options.batch_count
        ):
            self._go(key)
            batch = None
        if batch is None:
            batch = self._open[key] = _Open(*self._target(key))
        return batch

    def _added(self, size: int) -> None:
        self._open_size += size
        if self._open_size > OPEN_SIZE_MAX:
            self._go(max(self._open, key=lambda each: self._open[each].size))

    def _key(
        self,
        topic: str,
        queue_id: int | None,
        broker_name: str | None,
        sharding_key: str | None,
        unique_key: str,
    ) -> MessageQueue:
        """Return the queue of a message; number _ANY when any will do, of the broker if named."""
        if queue_id is not None:
            return self._named_queue(topic, queue_id, broker_name or None)
        if sharding_key:
            return by_hash(self._topic_queues(topic), sharding_key)
        brokers = self._topic_brokers(topic)
        name = broker_of(brokers, unique_key) if len(brokers) > 1 else ""
        return MessageQueue(topic, name, _ANY)

    def _topic_brokers(self, topic: str) -> tuple[str, ...]:
        """Return the brokers among which the unique key chooses; none when it does not matter."""
        brokers = self._brokers.get(topic)
        if brokers is None:
            found = () if self._promises is None else self._promises.of(topic).brokers
            brokers = self._brokers[topic] = found
        return brokers

    def _topic_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        queues = self._queues.get(topic)
        if queues is None:
            queues = self._queues[topic] = tuple(self._write_queues(topic))
        return queues

    def _named_queue(self, topic: str, queue_id: int, broker_name: str | None) -> MessageQueue:
        place = (topic, queue_id, broker_name)
        found = self._places.get(place)
        if found is not None:
            return found
        queues = [
            queue
            for queue in self._topic_queues(topic)
            if queue.queue_id == queue_id and broker_name in (None, queue.broker_name)
        ]
        if len(queues) > 1:
            brokers = ", ".join(queue.broker_name for queue in queues)
            raise self._error(
                topic,
                f"column queueId is {queue_id}, and brokers {brokers} each have such a queue",
                "Add a column brokerName, or drop queueId and let the sink choose",
            )
        if not queues:
            broker = "" if broker_name is None else f", column brokerName {broker_name}"
            raise self._error(
                topic,
                f"column queueId is {queue_id}{broker}, and the topic has no such queue to write "
                f"to; it has {_shown(self._topic_queues(topic))}",
                "Drop queueId and brokerName to let the sink choose, which rows that were read "
                "from another topic need",
            )
        self._places[place] = queues[0]
        return queues[0]

    def _target(self, key: MessageQueue) -> tuple[MessageQueue, tuple[MessageQueue, ...]]:
        """Return the queue for a new request, and those that will do as well."""
        if key.queue_id != _ANY:
            return key, ()
        queues = self._topic_queues(key.topic)
        if key.broker_name:
            queues = tuple(each for each in queues if each.broker_name == key.broker_name)
        place = self._turn % len(queues)
        self._turn += 1
        return queues[place], queues[place + 1 :] + queues[:place]

    def _go(self, key: MessageQueue) -> None:
        batch = self._open.pop(key)
        self._open_size -= batch.size
        self._put(batch.queue, batch.batch(), batch.others)

    def _put(
        self, queue: MessageQueue, what: Outgoing | Batch, others: tuple[MessageQueue, ...]
    ) -> None:
        if self._promises is not None:
            self._promises.cover(queue, what.count if isinstance(what, Batch) else 1)
        self._window.send(queue, what, others=others)
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
    """Return what a task sends with, and what finds queues.

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
    return window, lambda topic: lasting_write_queues(client, topic, options.topic_brokers)
