"""The kinds of cases that Kombu's own transports share, and what RocketMQ makes of AMQP's names."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("kombu", reason="the extra `kombu` is not installed")

import kombu
from kombu.utils.json import dumps

import skylarkmq.integrations.kombu  # noqa: F401 - makes skylarkmq:// known
from skylarkmq.client import Message
from skylarkmq.client.sync import Admin, Producer, ReceivedMessage
from skylarkmq.integrations.kombu import hub, popped
from skylarkmq.integrations.kombu.topics import exchange_topic, queue_of, topic_of
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.flags import validate_topic
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.testing import Account, SyncBroker
from tests.support.patience import LIMIT_S, until_sync

pytestmark = [pytest.mark.timing]

AT_ONCE: Any = {"client": {"start_timeout": 0}}


@pytest.fixture
def connection(skylarkmq_broker_sync: SyncBroker) -> Iterator[kombu.Connection]:
    url = f"skylarkmq://{skylarkmq_broker_sync.namesrv_addr}"
    options = {"consumer": {"commit_interval": 0.05}}
    with kombu.Connection(url, transport_options=options) as connection:
        yield connection
    assert not hub._hubs, "the last connection closes the SDK's"


@pytest.fixture
def admin(skylarkmq_broker_sync: SyncBroker) -> Iterator[Admin]:
    with Admin(namesrv_addr=skylarkmq_broker_sync.namesrv_addr) as admin:
        yield admin


def publish(connection: kombu.Connection, body: Any, **settings: Any) -> None:
    connection.Producer().publish(body, **settings)


class Listening:
    """A consumer, and what came."""

    def __init__(self, connection: kombu.Connection, *queues: kombu.Queue, **settings: Any) -> None:
        self.messages: list[Any] = []
        self._connection = connection
        self.consumer = connection.Consumer(
            list(queues), callbacks=[lambda _, message: self.messages.append(message)], **settings
        )

    def next(self) -> Any:
        count = len(self.messages)
        while len(self.messages) == count:
            self._connection.drain_events(timeout=LIMIT_S)
        return self.messages[-1]

    def has_none(self) -> None:
        with pytest.raises(socket.timeout):
            self._connection.drain_events(timeout=0.1)


# Connection


def test_a_connection_closes_and_opens_again(connection: kombu.Connection) -> None:
    for _ in range(2):
        assert connection.connect() and connection.connected
        assert connection.default_channel
        connection.close()
        assert not connection.connected


def test_a_cluster_that_is_away_is_a_connection_error() -> None:
    with kombu.Connection("skylarkmq://127.0.0.1:1", transport_options=AT_ONCE) as connection:
        with pytest.raises(connection.connection_errors):
            connection.connect()
        assert not hub._hubs


def test_the_next_cluster_takes_over(skylarkmq_broker_sync: SyncBroker) -> None:
    urls = f"skylarkmq://127.0.0.1:1;skylarkmq://{skylarkmq_broker_sync.namesrv_addr}"
    with kombu.Connection(urls, transport_options=AT_ONCE) as connection:
        connection.ensure_connection(max_retries=3, interval_start=0)
        assert connection.connected


@pytest.mark.parametrize(("said", "start_timeout"), [({"connect_timeout": 4}, 4), (AT_ONCE, 0)])
def test_a_start_waits_for_as_long_as_kombu_says(
    said: dict[str, Any], start_timeout: float
) -> None:
    options = {"transport_options": said} if said is AT_ONCE else said
    with kombu.Connection("skylarkmq://127.0.0.1:1", **options) as connection:
        assert connection.transport._settings()["start_timeout"] == start_timeout


def test_another_secret_is_another_connection(skylarkmq_broker_sync: SyncBroker) -> None:
    """Or who has a wrong one would send with the right one of somebody else in this process."""
    address = skylarkmq_broker_sync.namesrv_addr
    urls = [f"skylarkmq://shop-key:{secret}@{address}" for secret in ("one", "other", "one")]
    with ExitStack() as opened:
        hubs = [
            opened.enter_context(kombu.Connection(url)).ensure_connection().transport.hub
            for url in urls
        ]
    assert hubs[0] is hubs[2] and hubs[0] is not hubs[1]


@pytest.mark.skylarkmq(accounts=[Account("shop-key", "shop-secret", admin=True)])
def test_the_url_has_the_account_and_the_namespace(
    skylarkmq_broker_sync: SyncBroker,
) -> None:
    address = skylarkmq_broker_sync.namesrv_addr
    with (
        kombu.Connection(f"skylarkmq://shop-key:shop-secret@{address}/tenant") as connection,
        closing(connection.SimpleQueue("orders")) as queue,
    ):
        queue.put("hello")
        assert queue.get(timeout=LIMIT_S).payload == "hello"
    assert len(skylarkmq_broker_sync.messages("tenant%orders")) == 1


# Messages


def test_a_message_keeps_its_parts(connection: kombu.Connection) -> None:
    with closing(connection.SimpleQueue("orders")) as queue:
        queue.put({"a": [1]}, headers={"k": "v"}, correlation_id="o-1", serializer="json")
        message = queue.get(timeout=LIMIT_S)
        assert (message.payload, message.headers) == ({"a": [1]}, {"k": "v"})
        assert message.content_type == "application/json"
        assert message.properties["correlation_id"] == "o-1"
        message.ack()


def test_the_task_is_found_by_its_key(connection: kombu.Connection, admin: Admin) -> None:
    with closing(connection.SimpleQueue("orders")) as queue:
        queue.put("hello", correlation_id="o-1")
        assert len(admin.query("orders", key="o-1")) == 1


def test_acknowledged_is_done(
    connection: kombu.Connection, skylarkmq_broker_sync: SyncBroker
) -> None:
    with closing(connection.SimpleQueue("orders")) as queue:
        queue.put("hello")
        queue.get(timeout=LIMIT_S).ack()
        skylarkmq_broker_sync.wait_lag("kombu-orders", 0)
        with pytest.raises(queue.Empty):
            queue.get_nowait()


def test_rejected_is_a_dead_letter(
    connection: kombu.Connection, skylarkmq_broker_sync: SyncBroker
) -> None:
    with closing(connection.SimpleQueue("orders")) as queue:
        queue.put("hello")
        queue.get(timeout=LIMIT_S).reject()
    assert len(skylarkmq_broker_sync.messages("%DLQ%kombu-orders")) == 1


def test_requeued_comes_again_before_the_others(connection: kombu.Connection) -> None:
    queue = kombu.Queue("orders")
    with Listening(connection, queue).consumer:
        pass  # declared
    for body in "abc":
        publish(connection, body, routing_key="orders")
    listening = Listening(connection, queue)
    with listening.consumer:
        first = listening.next()
        first.requeue()
        again = listening.next()
        assert again.payload == first.payload
        assert again.delivery_info["redelivered"] and not first.delivery_info["redelivered"]
        again.ack()


def test_prefetch_is_a_limit(connection: kombu.Connection) -> None:
    queue = kombu.Queue("orders")
    listening = Listening(connection, queue, prefetch_count=1)
    with listening.consumer:
        for body in "ab":
            publish(connection, body, routing_key="orders")
        first = listening.next()
        listening.has_none()
        first.ack()
        assert listening.next().payload != first.payload


def test_what_is_not_acknowledged_comes_to_the_next_one(
    skylarkmq_broker_sync: SyncBroker,
) -> None:
    url, queue = f"skylarkmq://{skylarkmq_broker_sync.namesrv_addr}", kombu.Queue("orders")
    with kombu.Connection(url) as connection:
        listening = Listening(connection, queue)
        with listening.consumer:
            publish(connection, "hello", routing_key="orders")
            assert listening.next().payload == "hello"
    with kombu.Connection(url) as connection:
        listening = Listening(connection, queue)
        with listening.consumer:
            listening.next().ack()
            assert listening.messages[0].payload == "hello"


def test_an_exchange_s_topic_has_one_queue_which_keeps_the_order(
    connection: kombu.Connection, admin: Admin
) -> None:
    exchange = kombu.Exchange("bulletins", type="fanout")
    with Listening(connection, kombu.Queue("readers", exchange)).consumer:
        (settings,) = admin.describe_topic(exchange_topic("bulletins")).settings
    assert (settings.read_queues, settings.write_queues) == (1, 1)


def test_what_another_member_has_now_is_not_handed_out_here() -> None:
    """Of messages that wait for a worker those of revoked queues go; the new owner has them."""
    source = hub.Source(cast(hub.Hub, SimpleNamespace(wake=lambda: None)), "orders", False)
    mine, gone = (MessageQueue("orders", "broker-a", number) for number in range(2))
    body = dumps({"body": "", "properties": {}}).encode()
    for queue in (mine, gone, gone, mine):
        received = SimpleNamespace(queue=queue, reconsume_times=0)
        source._arrived(body, cast(ReceivedMessage, received))
    source._arrived(body, None)  # of an exchange, which has no owner
    source._revoked([gone])
    taken: list[MessageQueue | None] = []
    while (held := source.take()) is not None:
        taken.append(None if held.received is None else held.received.queue)
    assert taken == [mine, mine, None]


def test_a_consumer_that_is_cancelled_gives_its_queues_up(
    connection: kombu.Connection, skylarkmq_broker_sync: SyncBroker
) -> None:
    queue = kombu.Queue("orders")
    listening = Listening(connection, queue)
    with listening.consumer:
        publish(connection, "hello", routing_key="orders")
        message = listening.next()
    skylarkmq_broker_sync.wait_members("kombu-orders", 1)  # the message may still be acknowledged
    message.ack()
    skylarkmq_broker_sync.wait_members("kombu-orders", 0)
    assert skylarkmq_broker_sync.lag("kombu-orders") == 0


def test_an_eta_waits_at_the_broker(
    connection: kombu.Connection, skylarkmq_broker_sync: SyncBroker
) -> None:
    later = skylarkmq_broker_sync.now() + timedelta(minutes=10)
    queue = kombu.Queue("orders")
    listening = Listening(connection, queue)
    with listening.consumer:
        for eta in (later.isoformat(), (later + timedelta(days=30)).isoformat()):
            publish(connection, eta, routing_key="orders", headers={"eta": eta})
        # Too far ahead for the broker: the worker waits.
        assert listening.next().headers["eta"].startswith(str((later + timedelta(days=30)).date()))
        listening.has_none()
        skylarkmq_broker_sync.advance(601)
        assert listening.next().payload == later.isoformat()


def test_what_is_no_message_of_kombus_is_a_dead_letter(
    connection: kombu.Connection, skylarkmq_broker_sync: SyncBroker
) -> None:
    listening = Listening(connection, kombu.Queue("orders"))
    with (
        listening.consumer,
        Producer(namesrv_addr=skylarkmq_broker_sync.namesrv_addr) as producer,
    ):
        producer.send(Message("orders", b"not JSON"))
        producer.send(Message("orders", b"[]"))
        publish(connection, "hello", routing_key="orders")
        listening.next().ack()
        skylarkmq_broker_sync.wait_lag("kombu-orders", 0)
    assert len(skylarkmq_broker_sync.messages("%DLQ%kombu-orders")) == 2


# Queues and exchanges


def test_a_queue_counts_is_purged_and_deleted(connection: kombu.Connection, admin: Admin) -> None:
    queue = kombu.Queue("orders")(connection)
    queue.declare()
    for body in "abc":
        publish(connection, body, routing_key="orders")
    assert queue.queue_declare(passive=True).message_count == 3
    assert queue.purge() == 3
    with closing(connection.SimpleQueue("orders")) as simple, pytest.raises(simple.Empty):
        simple.get_nowait()
    queue.delete()
    assert "orders" not in admin.list_topics()


def test_a_queue_that_nobody_declared_is_not_found(connection: kombu.Connection) -> None:
    with pytest.raises(connection.channel_errors, match="NOT_FOUND"):
        kombu.Queue("other")(connection).queue_declare(passive=True)


def test_a_direct_exchange_takes_the_queues_of_its_key(connection: kombu.Connection) -> None:
    exchange = kombu.Exchange("prices", type="direct")
    queues = [kombu.Queue(name, exchange, routing_key=name) for name in ("eu", "us")]
    listening = Listening(connection, *queues)
    with listening.consumer:
        publish(connection, "1", exchange=exchange, routing_key="us")
        assert listening.next().delivery_info["routing_key"] == "us"
        listening.has_none()


def test_a_topic_exchange_matches(connection: kombu.Connection) -> None:
    exchange = kombu.Exchange("events", type="topic")
    queues = [
        kombu.Queue("stays", exchange, routing_key="task.*"),
        kombu.Queue("goes", exchange, routing_key="#", auto_delete=True),
    ]
    listening = Listening(connection, queues[1])
    with listening.consumer:
        # No queue that stays is declared: the event goes to those that listen now.
        publish(connection, "1", exchange=exchange, routing_key="worker.online")
        assert listening.next().payload == "1"
    listening = Listening(connection, queues[0])
    with listening.consumer:
        publish(connection, "2", exchange=exchange, routing_key="task.sent")
        assert listening.next().payload == "2"


def test_a_fanout_reaches_each_queue_from_its_binding_on(
    connection: kombu.Connection,
) -> None:
    exchange = kombu.Exchange("news", type="fanout")
    kombu.Queue("first", exchange)(connection).declare()
    publish(connection, "early", exchange=exchange)
    kombu.Queue("second", exchange)(connection).declare()
    publish(connection, "late", exchange=exchange)
    for name, expected in (("first", ["early", "late"]), ("second", ["late"])):
        listening = Listening(connection, kombu.Queue(name, exchange))
        with listening.consumer:
            assert [listening.next().payload for _ in expected] == expected
            listening.has_none()
            for message in listening.messages:
                message.ack()


def test_a_queue_of_a_connection_leaves_nothing_behind(
    connection: kombu.Connection, admin: Admin
) -> None:
    exchange = kombu.Exchange("box", type="fanout")
    queue = kombu.Queue("listener@host.box", exchange, auto_delete=True, durable=False)
    listening = Listening(connection, queue, no_ack=True)
    with listening.consumer:
        publish(connection, "hello", exchange=exchange)
        assert listening.next().payload == "hello"
        publish(connection, "you alone", routing_key=queue.name)
        assert listening.next().payload == "you alone"
    assert admin.list_groups() == []
    assert set(admin.list_topics()) == {exchange_topic(""), exchange_topic("box")}


def test_an_answer_waits_for_its_consumer(connection: kombu.Connection) -> None:
    """Celery declares the queue of its results with the task, and consumes it later."""
    queue = kombu.Queue("d1f2c5b0-9c44-4f0d-8b61-6e6a6c1c8a55", auto_delete=True, durable=False)
    queue(connection).declare()
    publish(connection, "result", routing_key=queue.name)
    listening = Listening(connection, queue, no_ack=True)
    with listening.consumer:
        assert listening.next().payload == "result"


# Names


@given(st.text(min_size=1, max_size=20))
def test_a_name_is_a_topic_and_back(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    topic = topic_of(name) if len(name.encode()) < 40 else "t"
    assert validate_topic(topic) is None
    assert topic == "t" or queue_of(topic) == name


def test_names_are_readable() -> None:
    assert topic_of("celery") == "celery"
    assert topic_of("celery@host.pidbox") == "celery|40host|2Epidbox"
    assert exchange_topic("celery.pidbox") == "exchange|celery|2Epidbox"
    with pytest.raises(ValueError, match="longer than"):
        topic_of("." * 100)


# Priorities


def urgent(connection: kombu.Connection, **settings: Any) -> kombu.Queue:
    """A queue with ten levels of priority, declared."""
    queue = kombu.Queue("urgent", routing_key="urgent", max_priority=9, **settings)
    queue(connection.default_channel).declare()
    return queue


def plain(connection: kombu.Connection) -> kombu.Queue:
    """The same without priorities."""
    queue = kombu.Queue("urgent", routing_key="urgent")
    queue(connection.default_channel).declare()
    return queue


def send_urgent(connection: kombu.Connection, *priorities: int, **settings: Any) -> None:
    for priority in priorities:
        publish(connection, priority, routing_key="urgent", priority=priority, **settings)


def handled(listening: Listening, count: int) -> list[Any]:
    """The next messages, each acknowledged before the next one comes."""
    found: list[Any] = []
    for _ in range(count):
        message = listening.next()
        message.ack()
        found.append(message.payload)
    return found


def test_the_most_urgent_message_comes_first(connection: kombu.Connection, admin: Admin) -> None:
    queue = urgent(connection)
    (attributes,) = admin.topic_attributes("urgent").values()
    assert attributes == {"message.type": "PRIORITY"}
    send_urgent(connection, 0, 3, 9, 3, 200)
    listening = Listening(connection, queue, prefetch_count=1)
    with listening.consumer:
        assert handled(listening, 2) == [9, 200]
        first = listening.next()  # in hand; what comes meanwhile is not
        send_urgent(connection, 7)
        first.ack()
        assert first.payload == 3
        assert handled(listening, 3) == [7, 3, 0]
        listening.has_none()
    until_sync(lambda: admin.progress("kombu-urgent", "urgent").lag == 0)


def test_who_asks_often_gets_no_more_than_one(connection: kombu.Connection) -> None:
    urgent(connection)
    send_urgent(connection, 1, 1, 1)
    source = connection.transport.hub.source("urgent")
    held = until_sync(source.take)
    for _ in range(5):
        time.sleep(0.02)
        assert len(source._popped.held) == 1
    held.ack()
    assert until_sync(source.take)


def test_what_was_sent_before_the_first_worker_came_is_not_skipped(
    connection: kombu.Connection, skylarkmq_broker_sync: SyncBroker
) -> None:
    queue = urgent(connection)
    send_urgent(connection, *range(10))
    assert sorted(
        queue(connection.default_channel).get(no_ack=True).payload for _ in range(10)
    ) == [*range(10)]
    assert queue(connection.default_channel).get(no_ack=True) is None


def test_a_message_in_hand_is_hidden_for_as_long_as_its_worker_lives(
    connection: kombu.Connection,
    skylarkmq_broker_sync: SyncBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(popped, "RENEW_S", 0.05)
    listening = Listening(connection, urgent(connection), prefetch_count=1)
    send_urgent(connection, 5)
    with listening.consumer:
        first = listening.next()
        (delivery,) = connection.transport.hub.source("urgent")._popped.held
        seen = {delivery._message._checkpoint}
        for _ in range(4):
            until_sync(lambda: delivery._message._checkpoint not in seen)
            seen.add(delivery._message._checkpoint)
            skylarkmq_broker_sync.advance(50)
        first.ack()
        listening.has_none()
    until_sync(lambda: skylarkmq_broker_sync.lag("kombu-urgent") == 0)


def test_a_worker_that_leaves_gives_back_what_it_has(
    connection: kombu.Connection, skylarkmq_broker_sync: SyncBroker
) -> None:
    queue = urgent(connection)
    send_urgent(connection, 5)
    url = f"skylarkmq://{skylarkmq_broker_sync.namesrv_addr}"
    with kombu.Connection(url, transport_options={"queues": 3}) as other:
        theirs = Listening(other, queue, prefetch_count=1)
        theirs.consumer.consume()
        assert not theirs.next().delivery_info["redelivered"]
    listening = Listening(connection, queue)
    with listening.consumer:
        message = listening.next()
        assert message.delivery_info["redelivered"]
        message.ack()


def test_an_urgent_message_is_rejected_and_requeued(
    connection: kombu.Connection, skylarkmq_broker_sync: SyncBroker
) -> None:
    listening = Listening(connection, urgent(connection), prefetch_count=1)
    send_urgent(connection, 5)
    with listening.consumer:
        listening.next().requeue()
        again = listening.next()
        assert again.delivery_info["redelivered"]
        again.reject()
        listening.has_none()
    (letter,) = skylarkmq_broker_sync.messages("%DLQ%kombu-urgent")
    assert letter.priority == 5
    assert skylarkmq_broker_sync.lag("kombu-urgent") == 0


def test_a_queue_with_priorities_is_purged(connection: kombu.Connection) -> None:
    queue = urgent(connection)(connection.default_channel)
    send_urgent(connection, 1, 2, 3)
    assert queue.get() is not None
    assert queue.purge() == 3
    send_urgent(connection, 4)
    assert until_sync(queue.get).payload == 4


def test_a_topic_from_before_stays_without_priorities(
    connection: kombu.Connection, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic("urgent", queues=2)
    queue = urgent(connection)
    assert "has no priorities: its topic was there before" in caplog.text
    send_urgent(connection, 3)
    listening = Listening(connection, queue)
    with listening.consumer:
        assert handled(listening, 1) == [3]


def test_a_delayed_urgent_message_comes_at_its_priority(
    connection: kombu.Connection, skylarkmq_broker_sync: SyncBroker
) -> None:
    queue = urgent(connection)
    eta = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    send_urgent(connection, 1)
    send_urgent(connection, 8, headers={"eta": eta})
    skylarkmq_broker_sync.advance(3601)
    until_sync(lambda: len(skylarkmq_broker_sync.messages("urgent")) == 2)
    listening = Listening(connection, queue, prefetch_count=1)
    with listening.consumer:
        assert handled(listening, 2) == [8, 1]


# A broker that is away, or refuses


@pytest.mark.parametrize(
    ("has_priorities", "what"), [(True, "ack"), (True, "reject"), (False, "reject")]
)
def test_what_is_done_while_the_broker_is_away_holds_no_place(
    connection: kombu.Connection,
    skylarkmq_broker_sync: SyncBroker,
    caplog: pytest.LogCaptureFixture,
    has_priorities: bool,
    what: str,
) -> None:
    queue = urgent(connection) if has_priorities else plain(connection)
    listening = Listening(connection, queue, prefetch_count=1)
    with listening.consumer:
        send_urgent(connection, 5, 5)
        first = listening.next()
        skylarkmq_broker_sync.faults.refuse_connections()
        getattr(first, what)()
        skylarkmq_broker_sync.restart(kill=True)
        assert not listening.next().delivery_info["redelivered"]
        listening.messages[-1].ack()
        skylarkmq_broker_sync.wait_lag("kombu-urgent", 0)
        listening.has_none()
    dead = skylarkmq_broker_sync.messages("%DLQ%kombu-urgent") if what == "reject" else []
    assert len(dead) == (what == "reject")
    assert caplog.text.count("is told later") == 1


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_ERROR, ResponseCode.MESSAGE_ILLEGAL])
def test_a_message_whose_broker_takes_no_acknowledgement_comes_again(
    connection: kombu.Connection,
    skylarkmq_broker_sync: SyncBroker,
    code: ResponseCode,
) -> None:
    listening = Listening(connection, urgent(connection), prefetch_count=1)
    send_urgent(connection, 5)
    refusing = skylarkmq_broker_sync.faults.fail(RequestCode.ACK_MESSAGE, None, code)
    with listening.consumer:
        listening.next().ack()
        source = connection.transport.hub.source("urgent")
        assert not source._popped.held  # what is done is hidden no longer
        skylarkmq_broker_sync.advance(61)
        again = listening.next()
        assert again.delivery_info["redelivered"]
        refusing.heal()
        again.ack()
        skylarkmq_broker_sync.wait_lag("kombu-urgent", 0)


@pytest.mark.parametrize("has_priorities", [True, False])
def test_a_queue_goes_on_after_what_is_no_message_while_the_broker_refuses(
    connection: kombu.Connection, skylarkmq_broker_sync: SyncBroker, has_priorities: bool
) -> None:
    queue = urgent(connection) if has_priorities else plain(connection)
    with Producer(namesrv_addr=skylarkmq_broker_sync.namesrv_addr) as producer:
        producer.send(Message("urgent", b"not JSON", priority=9 if has_priorities else None))
    send_urgent(connection, 5)
    faults = skylarkmq_broker_sync.faults
    codes = (RequestCode.SEND_MESSAGE, RequestCode.CONSUMER_SEND_MSG_BACK)
    refusing = [faults.fail(code, None) for code in codes]
    listening = Listening(connection, queue)
    with listening.consumer:
        listening.next().ack()
        until_sync(lambda: any(fault.hits for fault in refusing))
        for fault in refusing:
            fault.heal()
        skylarkmq_broker_sync.wait_lag("kombu-urgent", 0)
    assert len(skylarkmq_broker_sync.messages("%DLQ%kombu-urgent")) == 1
