"""A task of the sink: every message goes once, to its queue, in order, in bounded batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.client.producer.lanes import by_hash
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.spark.writing import sink_task as sink_task_module
from skylarkmq.spark.writing.packing import Packer
from skylarkmq.spark.writing.promises import Promise, Promises
from skylarkmq.spark.writing.rows import Addressed, RowError, RowReader
from skylarkmq.spark.writing.sink_columns import SINK_TYPES, plan_rows
from skylarkmq.spark.writing.sink_options import SinkOptions
from skylarkmq.spark.writing.sink_task import SinkTask
from skylarkmq.spark.writing.window import Batch, Outgoing, Receipt
from tests.spark.support.sent_messages import messages_of
from tests.spark.writing.test_rows import Row, batch_of
from tests.support.amounts import examples

OPTIONS = SinkOptions(
    ConnectionSettings(name_servers=("127.0.0.1:9876",)), batch_size=300, batch_count=4
)
QUEUES = {
    "T": [MessageQueue("T", broker, number) for broker in ("a", "b") for number in range(3)],
    "U": [MessageQueue("U", "a", number) for number in range(2)],
}


class FakeWindow:
    """Takes every request; keeps what came."""

    def __init__(self) -> None:
        self.requests: list[tuple[MessageQueue, list[Outgoing], Sequence[MessageQueue]]] = []
        self.receipts: list[Receipt] = []
        self.flush_count = 0

    def send(
        self,
        queue: MessageQueue,
        what: Outgoing | Batch,
        *,
        others: Sequence[MessageQueue] = (),
    ) -> None:
        messages = messages_of(what)
        self.requests.append((queue, messages, others))
        size = sum(len(message.body) for message in messages)
        first, last = messages[0].unique_key, messages[-1].unique_key
        self.receipts.append(Receipt(queue, len(messages), size, first, last, 0, 1))

    def flush(self) -> list[Receipt]:
        self.flush_count += 1
        found, self.receipts = self.receipts, []
        return found


def error(topic: str, why: str, hint: str) -> RowError:
    return RowError(f"{topic}: {why}", hint=hint)


def task_with(window: FakeWindow, options: SinkOptions = OPTIONS, partition: int = 0) -> SinkTask:
    return SinkTask(window, lambda topic: QUEUES[topic], options, error, partition)


def addressed(
    key: str,
    size: int = 10,
    topic: str = "T",
    queue_id: int | None = None,
    broker_name: str | None = None,
    sharding_key: str | None = None,
    alone: bool = False,
) -> Addressed:
    message = Outgoing(bytes(size), b"UNIQ_KEY\x01" + key.encode(), key)
    return Addressed(topic, message, queue_id, broker_name, sharding_key, alone)


def sent(messages: list[Addressed], options: SinkOptions = OPTIONS) -> FakeWindow:
    window = FakeWindow()
    task = task_with(window, options)
    task.send(messages)
    task.finish()
    return window


def keys(window: FakeWindow) -> list[list[str]]:
    return [[message.unique_key for message in messages] for _, messages, _ in window.requests]


def numbers(window: FakeWindow) -> list[int]:
    return [int(key) for batch in keys(window) for key in batch]


def test_batches_by_count_and_by_size() -> None:
    assert keys(sent([addressed(f"{n}") for n in range(9)])) == [
        ["0", "1", "2", "3"], ["4", "5", "6", "7"], ["8"]
    ]  # fmt: skip
    assert keys(sent([addressed(f"{n}", 100) for n in range(3)])) == [["0", "1"], ["2"]]
    assert keys(sent([addressed("0"), addressed("1", 1000), addressed("2")])) == [
        ["1"], ["0", "2"]
    ]  # fmt: skip


def test_without_batches() -> None:
    options = replace(OPTIONS, batch_size=0)
    assert keys(sent([addressed(f"{n}") for n in range(3)], options)) == [["0"], ["1"], ["2"]]


def test_queues_in_turn_with_the_others_to_go_to() -> None:
    window = sent([addressed(f"{n}", 200) for n in range(7)])
    assert [queue for queue, _, _ in window.requests] == [*QUEUES["T"], QUEUES["T"][0]]
    for queue, _, others in window.requests:
        assert {queue, *others} == set(QUEUES["T"])
        assert queue not in others
    task = task_with(window := FakeWindow(), partition=8)
    task.send([addressed("x")])
    task.finish()
    assert window.requests[0][0] == QUEUES["T"][2]


def test_a_sharding_key_chooses_as_producers_do() -> None:
    window = sent([addressed(f"{n}", sharding_key=f"key{n % 5}") for n in range(40)])
    for queue, messages, others in window.requests:
        assert not others
        for message in messages:
            assert by_hash(QUEUES["T"], f"key{int(message.unique_key) % 5}") == queue


def test_a_named_queue() -> None:
    window = sent(
        [addressed("0", queue_id=1, broker_name="b"), addressed("1", topic="U", queue_id=1)]
    )
    assert [queue for queue, _, _ in window.requests] == [
        MessageQueue("T", "b", 1),
        MessageQueue("U", "a", 1),
    ]


def test_of_a_priority_the_broker_finds_the_queue() -> None:
    window = sent([addressed(f"{n}", alone=True)._replace(by_priority=True) for n in range(4)])
    assert keys(window) == [["0"], ["1"], ["2"], ["3"]]
    for queue, _, others in window.requests:
        assert {queue, *others} == {MessageQueue("T", broker, -1) for broker in ("a", "b")}
    assert [queue.broker_name for queue, _, _ in window.requests] == ["a", "a", "a", "b"]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (addressed("0", queue_id=1), "brokers a, b each have such a queue.*brokerName"),
        (addressed("0", queue_id=3, broker_name="a"),
         "queueId is 3, column brokerName a, and the topic has no such queue.*0 to 2 on a, 0 to 2"),
        (addressed("0", topic="U", queue_id=2), "no such queue to write to; it has 0 to 1 on a"),
    ],
)  # fmt: skip
def test_queues_that_are_not_there(message: Addressed, text: str) -> None:
    with pytest.raises(RowError, match=text):
        sent([message])


def test_what_goes_alone_keeps_its_place_in_its_queue() -> None:
    where = {"queue_id": 0, "broker_name": "a"}
    window = sent([
        addressed("0", **where), addressed("1", alone=True, **where),  # type: ignore[arg-type]
        addressed("2", **where), addressed("3", 500, **where),  # type: ignore[arg-type]
    ])  # fmt: skip
    assert keys(window) == [["0"], ["1"], ["2"], ["3"]]


def test_open_batches_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_task_module, "OPEN_SIZE_MAX", 500)
    window = FakeWindow()
    task = task_with(window)
    for number in range(60):
        task.send([addressed(f"{number}", 20, queue_id=number % 3, broker_name="ab"[number % 2])])
        assert sum(batch.size for batch in task._open.values()) == task._open_size <= 500
    task.finish()
    assert sorted(numbers(window)) == list(range(60))


def test_receipts_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_task_module, "REQUESTS_PER_FLUSH", 2)
    window = FakeWindow()
    task = task_with(window, replace(OPTIONS, batch_size=0))
    task.send(addressed(f"{n}", topic="U", queue_id=0) for n in range(7))
    assert window.flush_count == 3
    (total,) = task.finish().values()
    assert (total.count, total.size, total.resent) == (7, 70, 7)
    assert (total.first_unique_key, total.last_unique_key) == ("0", "6")


MESSAGES = st.builds(
    addressed,
    st.just(""),
    size=st.integers(0, 400),
    topic=st.sampled_from(["T", "U"]),
    queue_id=st.none() | st.integers(0, 1),
    broker_name=st.just("a"),
    sharding_key=st.none() | st.sampled_from(["x", "y", "z"]),
    alone=st.booleans(),
)


@given(st.lists(MESSAGES, max_size=60), st.integers(0, 9))
def test_whatever_comes(messages: list[Addressed], partition: int) -> None:
    named = [
        each._replace(
            message=each.message._replace(
                unique_key=f"{number}", properties=f"UNIQ_KEY\x01{number}".encode()
            )
        )
        for number, each in enumerate(messages)
    ]
    window = FakeWindow()
    task = task_with(window, partition=partition)
    task.send(named)
    totals = task.finish()
    placed: dict[MessageQueue, list[int]] = defaultdict(list)
    for queue, batch, others in window.requests:
        assert len(batch) <= OPTIONS.batch_count
        for message in batch:
            number = int(message.unique_key)
            item = named[number]
            assert queue.topic == item.topic
            assert len(batch) == 1 or not item.alone
            if item.queue_id is not None:
                assert queue == MessageQueue(item.topic, "a", item.queue_id)
            elif item.sharding_key is not None:
                assert queue == by_hash(QUEUES[item.topic], item.sharding_key)
            else:
                assert others or len(QUEUES[item.topic]) == 1
                continue
            assert not others
            placed[queue].append(number)
    for in_queue in placed.values():
        assert in_queue == sorted(in_queue)
    assert sorted(numbers(window)) == list(range(len(named)))
    assert sum(total.count for total in totals.values()) == len(named)


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "body": st.binary(max_size=150),
            "topic": st.sampled_from(["T", "T", "U"]),
            "msgId": st.integers(0, 10**9).map(str),
            "brokerName": st.just("a"),
        },
        optional={
            "queueId": st.none() | st.integers(0, 1),
            "shardingKey": st.none() | st.sampled_from(["x", "y", "z"]),
        },
    ),
    min_size=1,
    max_size=40,
)
OPEN_OPTIONS = replace(OPTIONS, topic=None)


class TwoBrokers(Promises):
    """Promises that each row goes to the broker of its key."""

    def __init__(self) -> None: ...

    def of(self, topic: str) -> Promise:
        return Promise(("a", "b") if topic == "T" else ())

    def cover(self, queue: MessageQueue, count: int) -> None: ...


@examples(20, 100)
@given(st.lists(ROWS, min_size=1, max_size=3), st.sampled_from([None, TwoBrokers()]))
def test_a_slice_goes_where_its_rows_would_go(
    parts: list[list[Row]], promises: Promises | None
) -> None:
    ways: list[dict[MessageQueue, list[str]]] = []
    for packs in (True, False):
        window = FakeWindow()
        task = SinkTask(window, lambda topic: QUEUES[topic], OPEN_OPTIONS, error, 0, promises)
        for rows in parts:
            batch = batch_of(rows)
            fields = [(name, SINK_TYPES[name][0]) for name in batch.schema.names]
            plan = plan_rows(fields, has_topic=False)
            if packs:
                packed = Packer(plan, OPEN_OPTIONS, key_of, None).pack(batch, 0)
                assert packed is not None
                assert task.send_packed(packed)
            else:
                task.send(RowReader(plan, OPEN_OPTIONS, key_of).messages(batch))
        task.finish()
        found: dict[MessageQueue, list[str]] = defaultdict(list)
        for queue, messages, others in window.requests:
            brokers = {each.broker_name for each in (queue, *others)}
            assert len(messages) <= OPTIONS.batch_count
            assert len(messages) == 1 or sum(len(it.body) for it in messages) <= OPTIONS.batch_size
            name = "" if len(brokers) > 1 else queue.broker_name
            place = MessageQueue(queue.topic, name, -1) if others else queue
            found[place] += [message.unique_key for message in messages]
        ways.append(found)
    assert ways[0] == ways[1]


def key_of(topic: str, row: int) -> str:
    raise AssertionError("every row has a key")


def test_a_slice_with_a_queue_that_is_not_there_is_not_sent() -> None:
    rows: list[Row] = [{"body": b"x", "topic": "U", "msgId": "1", "queueId": 7}]
    batch = batch_of(rows)
    plan = plan_rows([(name, SINK_TYPES[name][0]) for name in batch.schema.names], has_topic=False)
    packed = Packer(plan, OPEN_OPTIONS, key_of, None).pack(batch, 0)
    assert packed is not None
    window = FakeWindow()
    assert not task_with(window).send_packed(packed)
    assert not window.requests
