"""Messages of the sink are stored once where the topic has a deduplication window, whatever fails.

Each test says with `windowed` off what happens without the window: so it would fail without it.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from skylarkmq.client import DeduplicationWindow
from skylarkmq.client.errors import RocketMQError
from skylarkmq.client.sync import Admin
from skylarkmq.protocol.bodies.text import encode_body
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import MQVersion, RequestCode
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.protocol.topic_attributes import DEDUPLICATION_KEYS, DEDUPLICATION_SECONDS
from skylarkmq.spark import clients
from skylarkmq.spark.errors import SendFailed
from skylarkmq.spark.option_reading import OptionError
from skylarkmq.spark.sink import SendReceipt, StreamSink, batch_sink, stream_sink
from skylarkmq.spark.writing.promises import broker_of
from skylarkmq.spark.writing.rows import RowError
from skylarkmq.testing.accounts import Account
from skylarkmq.testing.threaded import SyncBroker, run_broker_sync
from tests.spark.support.scripted_brokers import scripted_brokers
from tests.spark.support.sink_tasks import BODY, LOCAL, Context, batches, in_task
from tests.support.patience import LIMIT_S, until_sync

TOPIC = "once"
ROWS = 500
SCHEMA = StructType([StructField("body", BinaryType()), StructField("number", LongType())])
BODIES = [b"%d" % number for number in range(ROWS)]
BATCH = RequestCode.SEND_BATCH_MESSAGE
WINDOW = DeduplicationWindow(600)
windowed = pytest.mark.parametrize("windowed", [True, False])


@pytest.fixture(autouse=True)
def no_clients_left() -> Iterator[None]:
    yield
    clients.close_all()


def make_topic(
    broker: SyncBroker,
    windowed: bool = True,
    topic: str = TOPIC,
    window: DeduplicationWindow = WINDOW,
) -> None:
    with broker.client() as client, Admin(client=client) as admin:
        admin.create_topic(topic, deduplication=window if windowed else None)


def options(broker: SyncBroker, **more: str) -> dict[str, str]:
    return {
        "nameserver": broker.namesrv_addr, "topic": TOPIC, "idempotencycolumns": "number",
        "sendbatchrows": "50", **more,
    }  # fmt: skip


def once(broker: SyncBroker, **more: str) -> dict[str, str]:
    return options(broker, delivery="exactlyOnce", **more)


def rows(numbers: range = range(ROWS), step: int = 100) -> Iterator[pa.RecordBatch]:
    for start in range(numbers.start, numbers.stop, step):
        part = range(start, min(start + step, numbers.stop))
        columns = [pa.array([BODIES[number] for number in part]), pa.array(part, pa.int64())]
        yield pa.record_batch(columns, names=["body", "number"])


def writer(given: dict[str, str]) -> StreamSink:
    """A writer as a task has it."""
    made: StreamSink = pickle.loads(pickle.dumps(stream_sink(given, SCHEMA, overwrite=False)))
    return made


def copies(broker: SyncBroker, topic: str = TOPIC) -> Counter[bytes]:
    return Counter(message.body for message in broker.messages(topic))


def copies_of_each(broker: SyncBroker) -> set[int]:
    """How many copies the rows have; all of them are there."""
    found = copies(broker)
    assert found.keys() == set(BODIES)
    return set(found.values())


@windowed
def test_a_repeated_task(
    skylarkmq_broker_sync: SyncBroker, windowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = skylarkmq_broker_sync
    make_topic(broker, windowed)
    for attempt in range(2):
        # Another order, as after a shuffle.
        in_task(monkeypatch, Context(2, attempt, LOCAL))
        batch = list(rows())
        writer(options(broker)).write(iter(batch if attempt else batch[::-1]))
    assert copies_of_each(broker) == ({1} if windowed else {2})


@windowed
def test_a_repeated_task_whose_rows_are_known_by_their_place(
    skylarkmq_broker_sync: SyncBroker, windowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = skylarkmq_broker_sync
    make_topic(broker, windowed)
    for attempt in range(2):
        in_task(monkeypatch, Context(2, attempt, LOCAL))
        given = {**options(broker), "idempotencycolumns": ""}
        stream_sink(given, BODY, overwrite=False).write(batches(BODIES))
    assert copies_of_each(broker) == ({1} if windowed else {2})


@windowed
def test_answers_that_are_lost(skylarkmq_broker_sync: SyncBroker, windowed: bool) -> None:
    broker = skylarkmq_broker_sync
    make_topic(broker, windowed)
    broker.faults.drop_reply(BATCH, 3)
    given = options(broker, sendtimeoutms="150", sendsinflight="2")
    receipt = writer(given).write(rows())
    assert receipt.resent >= 3
    found = copies(broker)
    assert found.keys() == set(BODIES)
    assert (max(found.values()) > 1) is not windowed


@windowed
@pytest.mark.parametrize("kill", [False, True])
def test_a_broker_that_starts_again_in_the_middle(
    skylarkmq_broker_sync: SyncBroker, windowed: bool, kill: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = skylarkmq_broker_sync
    make_topic(broker, windowed)

    def until_half() -> Iterator[pa.RecordBatch]:
        yield from rows(range(300))
        broker.restart(kill=kill)
        yield from rows(range(300, 400))
        raise OSError("the executor is out of disk space")

    in_task(monkeypatch, Context(local=LOCAL))
    with pytest.raises(OSError, match="disk space"):
        writer(options(broker)).write(until_half())
    broker.restart(kill=kill)
    before = copies(broker)  # how far a task came that was broken off is its own affair
    in_task(monkeypatch, Context(attempt=1, local=LOCAL))
    writer(options(broker)).write(rows())
    once_more = {body: before.get(body, 0) + 1 for body in BODIES}
    assert copies(broker) == (dict.fromkeys(BODIES, 1) if windowed else once_more)


@pytest.fixture
def sync_flush() -> Iterator[SyncBroker]:
    with run_broker_sync("dev", settings={"flushDiskType": "SYNC_FLUSH"}) as broker:
        yield broker


@windowed
def test_a_disk_that_does_not_confirm_in_time(sync_flush: SyncBroker, windowed: bool) -> None:
    """The broker stores the messages, says FLUSH_DISK_TIMEOUT, and gets them again."""
    make_topic(sync_flush, windowed)
    fault, seen = sync_flush.faults.pause_flush(), sync_flush.faults.delay(BATCH, 0)
    receipts: list[SendReceipt] = []
    task = threading.Thread(
        target=lambda: receipts.append(
            writer(options(sync_flush, sendtimeoutms="60000")).write(rows(range(50)))
        )
    )
    task.start()
    try:
        until_sync(lambda: bool(seen.hits), "a request")
        sync_flush.advance(5)
        until_sync(lambda: seen.hits > 1, "the same request again")
    finally:
        fault.heal()
        task.join(LIMIT_S)
    assert receipts[0].resent >= 1
    assert copies(sync_flush) == Counter(BODIES[:50] if windowed else 2 * BODIES[:50])


@pytest.fixture
def two_brokers() -> Iterator[tuple[SyncBroker, SyncBroker]]:
    with ExitStack() as stack:
        first = stack.enter_context(run_broker_sync())
        settings = {"brokerName": "broker-b", "namesrvAddr": first.namesrv_addr}
        second = stack.enter_context(run_broker_sync(settings=settings))
        with first.client() as client, Admin(client=client) as admin:
            until_sync(lambda: len(admin.cluster().brokers) == 2, "the second broker")
        yield first, second


@windowed
def test_a_row_stays_with_its_broker(
    two_brokers: tuple[SyncBroker, SyncBroker], windowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two_brokers
    make_topic(first, windowed)
    for attempt in range(2):
        in_task(monkeypatch, Context(attempt=attempt, local=LOCAL))
        # Another number of rows before: without the keys the turns would be others.
        numbers = range(25 if attempt == 0 else 0, ROWS)
        writer(options(first, topicbrokers="broker-b,broker-a")).write(rows(numbers))
    here, there = copies(first), copies(second)
    assert min(len(here), len(there)) >= 100
    if windowed:
        assert here + there == Counter(BODIES)
        for found, name in ((first, "broker-a"), (second, "broker-b")):
            for message in found.messages(TOPIC):
                assert broker_of(("broker-a", "broker-b"), message.unique_key or "") == name
    else:
        assert (here & there).total() or max((here + there).values()) > 1


def test_a_broker_that_is_away_is_waited_for(
    two_brokers: tuple[SyncBroker, SyncBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two_brokers
    make_topic(first)
    in_task(monkeypatch, Context(local=LOCAL))
    given = once(first, topicbrokers="broker-a,broker-b")
    made = writer({**given, "retrytimeoutms": "300"})

    def until_half() -> Iterator[pa.RecordBatch]:
        yield from rows(range(300))
        second.faults.refuse_connections()
        yield from rows(range(300, ROWS))

    with pytest.raises(SendFailed, match="topic once on broker broker-b"):
        made.write(until_half())
    with pytest.raises(RocketMQError):  # it does not even tell
        made.write(rows())
    second.faults.clear()
    writer(given).write(rows())
    assert copies(first) + copies(second) == Counter(BODIES)


@pytest.mark.parametrize(
    ("window", "more", "why"),
    [
        (None, {}, r"topic once has no deduplication window on broker broker-a\. Give it one: "
                   r"skylarkmq topic update once --deduplicate 600"),
        (DeduplicationWindow(60), {},
         r"is 60 s, and the 4 tries of a task may take 252 s .*--deduplicate 600\. Or lower retry"),
        (DeduplicationWindow(60), {"retrytimeoutms": "5s"}, ""),
        (DeduplicationWindow(600), {"topic": "absent"},
         r"broker-a has no topic absent yet\. Create it: skylarkmq topic create absent --dedupl"),
        (DeduplicationWindow(600), {"topicbrokers": "broker-a,broker-c", "retrytimeoutms": "1"},
         r"broker-c: this broker of option topicBrokers takes no messages of topic once.*broker-a"),
        (DeduplicationWindow(600), {"delivery": "often"}, "is one of auto, exactlyOnce, atLeast"),
    ],
)  # fmt: skip
def test_a_promise_that_cannot_be_kept_is_refused_at_once(
    skylarkmq_broker_sync: SyncBroker,
    window: DeduplicationWindow | None,
    more: dict[str, str],
    why: str,
) -> None:
    broker = skylarkmq_broker_sync
    if window is None:
        make_topic(broker, windowed=False)
    else:
        make_topic(broker, window=window)
    given = {**once(broker), **more}
    if not why:
        batch_sink(given, SCHEMA, overwrite=False)
        return
    with pytest.raises(Exception, match=why):
        batch_sink(given, SCHEMA, overwrite=False)


def test_rows_that_are_known_by_their_place_are_refused_at_once() -> None:
    given = {"nameserver": "127.0.0.1:1", "topic": TOPIC, "delivery": "exactlyOnce"}
    with pytest.raises(OptionError, match="or a column msgId a row is known by its place"):
        stream_sink(given, BODY, overwrite=False)


def test_several_brokers_are_to_be_named(two_brokers: tuple[SyncBroker, SyncBroker]) -> None:
    make_topic(two_brokers[0])
    with pytest.raises(OptionError, match=r"Name them: topicBrokers=broker-a,broker-b"):
        stream_sink(once(two_brokers[0]), SCHEMA, overwrite=False)


def test_topics_of_a_column_are_looked_at_by_the_task(skylarkmq_broker_sync: SyncBroker) -> None:
    broker = skylarkmq_broker_sync
    make_topic(broker, windowed=False)
    given = {**once(broker), "topic": ""}
    schema = StructType([*SCHEMA.fields, StructField("topic", StringType())])
    made = batch_sink(given, schema, overwrite=False)
    columns = [pa.array([b"x"]), pa.array([1]), pa.array([TOPIC])]
    batch = pa.record_batch(columns, names=["body", "number", "topic"])
    with pytest.raises(OptionError, match="topic once has no deduplication window"):
        made.write(iter([batch]))
    assert not broker.messages(TOPIC)


def test_a_row_without_a_message_id(skylarkmq_broker_sync: SyncBroker) -> None:
    broker = skylarkmq_broker_sync
    make_topic(broker)
    schema = StructType([*SCHEMA.fields[:1], StructField("msgId", StringType())])
    made = batch_sink({**once(broker), "idempotencycolumns": ""}, schema, overwrite=False)

    def batch(*ids: str | None) -> Iterator[pa.RecordBatch]:
        columns = [pa.array([b"x"] * len(ids)), pa.array(ids, pa.string())]
        return iter([pa.record_batch(columns, names=["body", "msgId"])])

    made.write(batch("a", "b", "a"))
    assert [message.unique_key for message in broker.messages(TOPIC)] == ["a", "b"]
    with pytest.raises(RowError, match=r"column msgId is null or empty.*idempotencyColumns"):
        made.write(batch("c", None))


def test_more_messages_than_keys(skylarkmq_broker_sync: SyncBroker) -> None:
    broker = skylarkmq_broker_sync
    make_topic(broker, window=DeduplicationWindow(600, 200))
    for _ in range(2):
        with pytest.raises(SendFailed, match="more messages for topic once than the 200 whose"):
            writer(once(broker)).write(rows())
    assert set(copies(broker).values()) == {1}


def test_a_task_that_is_repeated_too_late(
    skylarkmq_broker_sync: SyncBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = skylarkmq_broker_sync
    make_topic(broker)
    made = writer(once(broker))
    made._planned_ms -= 700_000
    in_task(monkeypatch, Context(local=LOCAL))
    made.write(rows())
    in_task(monkeypatch, Context(attempt=1, local=LOCAL))
    with pytest.raises(SendFailed, match=r"repeated 700 s .* is 600 s.*--deduplicate 1400"):
        made.write(rows())
    assert copies_of_each(broker) == {1}


def test_what_the_log_says(
    skylarkmq_broker_sync: SyncBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker = skylarkmq_broker_sync
    make_topic(broker, window=DeduplicationWindow(600, 200))

    def said(made: StreamSink, write: Callable[[StreamSink], SendReceipt]) -> str:
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="skylarkmq.spark.sink"):
            made.commit([pickle.loads(pickle.dumps(write(made)))], 4)
        return "\n".join(record.getMessage() for record in caplog.records)

    auto = said(writer(options(broker)), lambda made: made.write(rows()))
    assert "topic once: exactly once, as repeats within 600 s of a message's first copy" in auto
    assert "500 messages for topic once went to broker broker-a, whose deduplication " in auto
    assert "window knows 200: a repeat" in auto
    given = {**options(broker), "idempotencycolumns": ""}
    by_place = stream_sink(given, BODY, overwrite=False)
    text = said(by_place, lambda made: made.write(batches(BODIES[:10])))
    assert "that is, where a repeated task gets the same rows in the same order" in text
    plain = writer(options(broker, delivery="atLeastOnce"))
    assert "topic once: at least once: option delivery=atLeastOnce" in said(
        plain, lambda made: made.write(rows())
    )


def test_an_account_that_may_only_publish() -> None:
    account = Account("the-sink", topic_rights={TOPIC: "PUB"})
    with run_broker_sync(accounts=[account, Account("the-admin", admin=True)]) as broker:
        with broker.client("the-admin") as client, Admin(client=client) as admin:
            admin.create_topic(TOPIC, deduplication=WINDOW)
        secret = broker.credentials("the-sink")
        given = options(broker, accesskey=secret.access_key, secretkey=secret.secret_key)
        with pytest.raises(OptionError, match="broker broker-a does not tell: "):
            writer({**given, "delivery": "exactlyOnce"})
        receipt = writer(given).write(rows(range(10)))
        assert receipt.promises[TOPIC].text.startswith("at least once: broker broker-a does not")
        assert copies(broker) == Counter(BODIES[:10])


@pytest.mark.parametrize("knows_the_request", [False, True])
def test_rocketmqs_brokers_promise_nothing(knows_the_request: bool) -> None:
    """Even those of 5.x, which tell the attributes that a broker of ours has left on the disk."""
    config = TopicConfig(
        topic_name="T", attributes={DEDUPLICATION_SECONDS: "9999", DEDUPLICATION_KEYS: "9"}
    )

    def say(request: RemotingCommand) -> RemotingCommand:
        answer = request.reply(0 if knows_the_request else 3)
        answer.version = MQVersion.V4_9_7
        answer.body = encode_body(config) if knows_the_request else b""
        return answer

    with scripted_brokers(say) as (name_server, _):
        given = {"nameserver": name_server, "topic": "T", "idempotencycolumns": "number"}
        with pytest.raises(OptionError, match=r"broker-a is RocketMQ 4\.9\.7, which has no dedupl"):
            stream_sink({**given, "delivery": "exactlyOnce"}, SCHEMA, overwrite=False)
