"""A window of sends: every message acknowledged, each queue in order, nothing beyond the bounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylarkmq.client.errors import (
    AuthError,
    ConnectionFailed,
    ProtocolError,
    RequestTimeout,
    RocketMQError,
)
from skylarkmq.client.namespace import Namespace
from skylarkmq.client.send_result import STORED_CODES, SendStatus
from skylarkmq.protocol.batch import split_batch
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.headers.send import UNCONFIRMED_FIELD
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.properties import decode_properties
from skylarkmq.protocol.remoting_command import RESPONSE_FLAG, RemotingCommand
from skylarkmq.spark.cluster import BlockingClient
from skylarkmq.spark.errors import SendFailed
from skylarkmq.spark.settings import ConnectionSettings
from skylarkmq.spark.writing.window import Outgoing, Receipt, SendWindow
from skylarkmq.testing.threaded import SyncBroker
from tests.spark.support.blocking_clock import TestClock
from tests.spark.support.sent_messages import request_of

A0, A1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)
B0 = MessageQueue("T", "broker-b", 0)
OK = int(ResponseCode.SUCCESS)
BUSY = int(ResponseCode.SYSTEM_BUSY)
LOST = ConnectionFailed("a", "connection lost", reached=True)


def outgoing(key: str, size: int = 10) -> Outgoing:
    return Outgoing(key.encode().ljust(size, b"."), f"UNIQ_KEY\x01{key}".encode(), key)


@dataclass(eq=False)
class FakePending:
    address: str
    command: RemotingCommand
    said: int | RocketMQError
    keys: list[str]


@dataclass
class FakeBrokers:
    """The part of `BlockingClient` that a window uses, with brokers that store in lists.

    `says` is asked at each try: the code to answer with, or the error; an error after which the
    message may be stored all the same stores it.
    """

    says: Callable[[str, list[str]], int | RocketMQError] = lambda broker, keys: OK
    settings: ConnectionSettings = field(
        default_factory=lambda: ConnectionSettings(("ns:1",), retry_timeout_s=5.0)
    )
    clock: TestClock = field(default_factory=TestClock)
    namespace: Namespace = field(default_factory=lambda: Namespace(""))
    stored: dict[MessageQueue, list[str]] = field(default_factory=dict[MessageQueue, list[str]])
    under_way: list[FakePending] = field(default_factory=list[FakePending])
    tries: list[FakePending] = field(default_factory=list[FakePending])
    refusal_fields: dict[str, str] = field(default_factory=dict[str, str])
    most_count: int = 0
    most_size: int = 0
    answers_early: Callable[[], bool] = lambda: False

    @property
    def typed(self) -> BlockingClient:
        return cast(BlockingClient, self)

    def wire_name(self, name: str) -> str:
        return self.namespace.wrap(name)

    def master_of(self, queue: MessageQueue) -> str:
        return queue.broker_name

    def forget_routes(self, queue: MessageQueue) -> None: ...

    def deadline_s(self) -> float:
        return self.clock.monotonic() + 3

    def begin(self, address: str, command: RemotingCommand) -> FakePending:
        fields = command.ext_fields
        if command.code == RequestCode.SEND_BATCH_MESSAGE:
            texts = [item.properties.decode() for item in split_batch(command.body)]
        else:
            texts = [fields["i"]]
        keys = [decode_properties(text)["UNIQ_KEY"] for text in texts]
        said = self.says(address, keys)
        if isinstance(said, ConnectionFailed) and not said.reached:
            raise said
        queue = MessageQueue(fields["b"], address, int(fields["e"]))
        if said in (OK, 10, 11, 12) or isinstance(said, ConnectionFailed | RequestTimeout):
            self.stored.setdefault(queue, []).extend(keys)
        pending = FakePending(address, command, said, keys)
        self.tries.append(pending)
        self.under_way.append(pending)
        self.most_count = max(self.most_count, len(self.under_way))
        size = sum(len(it.command.body) for it in self.under_way)
        self.most_size = max(self.most_size, size)
        return pending

    def has_answer(self, pending: FakePending) -> bool:
        return self.answers_early()

    def wait(self, pending: FakePending, deadline_s: float) -> RemotingCommand:
        self.under_way.remove(pending)
        if isinstance(pending.said, RocketMQError):
            raise pending.said
        fields = {"msgId": "id", "queueId": pending.command.ext_fields["e"], "queueOffset": "7"}
        if pending.said not in STORED_CODES:
            fields = self.refusal_fields
        return RemotingCommand(pending.said, flag=RESPONSE_FLAG, remark="why", ext_fields=fields)


def window(brokers: FakeBrokers, **other: object) -> SendWindow:
    return SendWindow(brokers.typed, group="p", **other)  # type: ignore[arg-type]


def once(*said: int | RocketMQError) -> Callable[[str, list[str]], int | RocketMQError]:
    """Say these, one try each, then OK."""
    left: Iterator[int | RocketMQError] = iter(said)
    return lambda broker, keys: next(left, OK)


def test_batches_and_single_messages() -> None:
    brokers = FakeBrokers()
    sends = window(brokers)
    sends.send(A0, request_of([outgoing("1"), outgoing("2", 20)]))
    sends.send(A1, outgoing("3"))
    sends.send(A0, outgoing("4"))
    assert sends.flush() == [
        Receipt(A0, 2, 30, "1", "2", 7),
        Receipt(A1, 1, 10, "3", "3", 7),
        Receipt(A0, 1, 10, "4", "4", 7),
    ]
    assert sends.flush() == []
    assert brokers.stored == {A0: ["1", "2", "4"], A1: ["3"]}
    codes = [it.command.code for it in brokers.tries]
    assert codes.count(RequestCode.SEND_BATCH_MESSAGE) == 1


def test_a_queue_without_others_has_one_request_under_way() -> None:
    brokers = FakeBrokers()
    sends = window(brokers)
    for number in range(10):
        sends.send(A0, outgoing(str(number)))
    assert len(brokers.under_way) == 1
    sends.flush()
    assert brokers.stored[A0] == [str(number) for number in range(10)]


@pytest.mark.parametrize("others", [(), (A0,)])
def test_the_window_is_bounded(others: tuple[MessageQueue, ...]) -> None:
    brokers = FakeBrokers()
    sends = window(brokers, max_in_flight=5, max_in_flight_bytes=10_000)
    for number in range(100):
        queue = MessageQueue("T", "broker-a", number % 20)
        sends.send(queue, outgoing(str(number), 50 if number < 50 else 3000), others=others)
    sends.flush()
    assert 4 <= brokers.most_count <= 5
    assert 6000 <= brokers.most_size <= 10_000


def test_a_flush_makes_room() -> None:
    brokers = FakeBrokers()
    sends = window(brokers, max_in_flight=5, max_in_flight_bytes=10_000)
    for _ in range(4):
        brokers.most_count = 0
        for number in range(3):
            sends.send(A0, outgoing(str(number), 3000), others=(A1,))
        assert brokers.most_count == 3
        sends.flush()


def test_one_request_larger_than_the_window_goes_alone() -> None:
    brokers = FakeBrokers()
    sends = window(brokers, max_in_flight_bytes=100)
    for number in range(3):
        sends.send(A0, outgoing(str(number), 5000), others=(A1,))
    sends.flush()
    assert brokers.most_count == 1


@pytest.mark.parametrize(
    ("said", "resent"),
    [
        (BUSY, 0),
        (int(ResponseCode.FLOW_CONTROL), 0),
        (int(ResponseCode.SYSTEM_ERROR), 0),
        (ConnectionFailed("a", "refused"), 0),
        (LOST, 1),
        (RequestTimeout("late"), 1),
        (ProtocolError("garbage"), 1),
    ],
)
def test_what_passes_is_sent_again(said: int | RocketMQError, resent: int) -> None:
    brokers = FakeBrokers(once(said, said))
    sends = window(brokers)
    sends.send(A0, outgoing("1"))
    sends.send(A0, outgoing("2"))
    receipts = sends.flush()
    assert [it.resent for it in receipts] == [2 * resent, 0]
    assert list(dict.fromkeys(brokers.stored[A0])) == ["1", "2"]
    assert brokers.clock.slept == sorted(brokers.clock.slept)
    assert len(brokers.clock.slept) == 2


def test_a_broker_that_is_away_is_passed_over_where_there_are_others() -> None:
    def says(broker: str, keys: list[str]) -> int | RocketMQError:
        return ConnectionFailed(broker, "refused") if broker == "broker-a" else OK

    brokers = FakeBrokers(says)
    sends = window(brokers)
    for number in range(10):
        sends.send(A0, outgoing(str(number)), others=(A1, B0))
    assert {it.queue for it in sends.flush()} == {B0}
    assert not brokers.clock.slept


def test_a_request_that_finds_no_place_fails_after_a_while() -> None:
    brokers = FakeBrokers(lambda broker, keys: ConnectionFailed(broker, "connection refused"))
    sends = window(brokers)
    sends.send(A0, request_of([outgoing("1"), outgoing("2")]))
    text = r"queue 0 of topic T on broker broker-a: 2 messages, 20 bytes, msgId 1 to 2.*refused"
    with pytest.raises(SendFailed, match=text) as caught:
        sends.flush()
    assert isinstance(caught.value.__cause__, ConnectionFailed)
    assert 5 <= sum(brokers.clock.slept) < 8
    with pytest.raises(SendFailed):
        sends.flush()
    with pytest.raises(SendFailed):
        sends.send(A1, outgoing("3"))


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (int(ResponseCode.MESSAGE_ILLEGAL), "MESSAGE_ILLEGAL.*why.*maxMessageSize"),
        (AuthError(1, "AclException", "a"), "AclException"),
        (3, "REQUEST_CODE_NOT_SUPPORTED"),
    ],
)
def test_what_stays_fails_at_once(said: int | RocketMQError, text: str) -> None:
    brokers = FakeBrokers(once(said))
    sends = window(brokers)
    sends.send(A0, outgoing("1"))
    with pytest.raises(SendFailed, match=text):
        sends.flush()
    assert len(brokers.tries) == 1


@pytest.mark.parametrize("code", [10, 11, 12])
def test_a_status_that_is_not_accepted(code: int) -> None:
    brokers = FakeBrokers(once(code))
    sends = window(brokers)
    sends.send(A0, outgoing("1"))
    assert sends.flush()[0].resent == 1
    assert brokers.stored[A0] == ["1", "1"]  # told by `resent`
    brokers = FakeBrokers(lambda broker, keys: code)
    sends = window(brokers)
    sends.send(A0, outgoing("1"))
    with pytest.raises(SendFailed, match="acceptStatus="):
        sends.flush()
    assert len(brokers.tries) == 1 + brokers.settings.retries
    brokers = FakeBrokers(lambda broker, keys: code)
    sends = window(brokers, accepted=frozenset(SendStatus))
    sends.send(A0, outgoing("1"))
    assert sends.flush()[0].resent == 0


def test_what_replicas_cannot_confirm_is_sent_again_a_bounded_number_of_times() -> None:
    """Each try may leave a copy."""
    brokers = FakeBrokers(once(14), refusal_fields={UNCONFIRMED_FIELD: "true"})
    sends = window(brokers)
    sends.send(A0, outgoing("1"))
    assert sends.flush()[0].resent == 1
    brokers = FakeBrokers(lambda broker, keys: 14, refusal_fields=brokers.refusal_fields)
    sends = window(brokers)
    sends.send(A0, outgoing("1"))
    with pytest.raises(SendFailed, match="not acknowledged"):
        sends.flush()
    assert len(brokers.tries) == 1 + brokers.settings.retries


@pytest.mark.parametrize("code", [16, 17, 204, 205])
def test_a_refusal_that_only_another_broker_may_lift(code: int) -> None:
    brokers = FakeBrokers(lambda broker, keys: code if broker == "broker-a" else OK)
    sends = window(brokers)
    sends.send(A0, outgoing("1"), others=(A1, B0))
    assert sends.flush()[0].queue == B0
    sends.send(A0, outgoing("2"))
    with pytest.raises(SendFailed, match=r"not acknowledged, tried for 0\.\d+ s: .*why"):
        sends.flush()
    assert len(brokers.tries) == 2 + 1 + brokers.settings.retries


def test_names_are_wrapped_on_the_wire_alone() -> None:
    brokers = FakeBrokers(namespace=Namespace("shop"))
    sends = window(brokers)
    sends.send(A0, outgoing("1"))
    assert sends.flush()[0].queue == A0
    fields = brokers.tries[0].command.ext_fields
    assert (fields["a"], fields["b"]) == ("shop%p", "shop%T")


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(0, 60),
    trouble=st.sampled_from([0.0, 0.2, 0.5]),
    in_flight=st.integers(1, 10),
)
def test_random_days(seed: int, count: int, trouble: float, in_flight: int) -> None:
    """Every message is stored, in its queue's order; twice only where `resent` says so."""
    dice = random.Random(seed)
    errors: list[int | RocketMQError] = [BUSY, 10, LOST, RequestTimeout("x"), ProtocolError("x")]

    def says(broker: str, keys: list[str]) -> int | RocketMQError:
        return dice.choice(errors) if dice.random() < trouble else OK

    brokers = FakeBrokers(
        says,
        ConnectionSettings(("ns:1",), retry_timeout_s=1e6, retries=1000),
        answers_early=lambda: dice.random() < 0.5,
    )
    sends = window(brokers, max_in_flight=in_flight)
    wanted: dict[MessageQueue, list[str]] = {}
    receipts: list[Receipt] = []
    number = 0
    for _ in range(count):
        queue = dice.choice([A0, A1, B0])
        keys = [str(number := number + 1) for _ in range(dice.randint(1, 3))]
        wanted.setdefault(queue, []).extend(keys)
        sends.send(queue, request_of([outgoing(key) for key in keys]))
        if dice.random() < 0.1:
            receipts += sends.flush()
    receipts += sends.flush()
    assert not brokers.under_way
    assert sum(it.count for it in receipts) == number
    for queue, keys in wanted.items():
        assert list(dict.fromkeys(brokers.stored[queue])) == keys
    if not any(it.resent for it in receipts):
        assert brokers.stored == wanted


def test_a_real_broker(broker: SyncBroker, topic: str) -> None:
    client = BlockingClient(ConnectionSettings((broker.namesrv_addr,)))
    queues = client.write_queues(topic)
    sends = SendWindow(client, group="p")
    for number in range(200):
        queue = queues[number % 4]
        parts = [outgoing(f"{number}-{part}") for part in range(number % 3 + 1)]
        sends.send(queue, request_of(parts))
    receipts = sends.flush()
    assert client.max_offsets(queues) == {
        queue: sum(it.count for it in receipts if it.queue == queue) for queue in queues
    }
    for queue in queues:
        keys = [it.properties["UNIQ_KEY"] for it in broker.messages(topic, queue.queue_id)]
        assert keys == [
            f"{number}-{part}"
            for number in range(queue.queue_id, 200, 4)
            for part in range(number % 3 + 1)
        ]
    client.close()


def test_a_topic_that_the_broker_makes(broker: SyncBroker) -> None:
    client = BlockingClient(ConnectionSettings((broker.namesrv_addr,)))
    sends = SendWindow(client, group="p")
    queue = client.write_queues("made_by_spark")[1]
    sends.send(queue, request_of([outgoing("1"), outgoing("2")]))
    (receipt,) = sends.flush()
    assert receipt == Receipt(queue, 2, 20, "1", "2", 0)
    client.close()


def test_a_message_that_is_too_large(broker: SyncBroker, topic: str) -> None:
    client = BlockingClient(ConnectionSettings((broker.namesrv_addr,)))
    sends = SendWindow(client, group="p")
    sends.send(client.write_queues(topic)[0], outgoing("big", 5_000_000))
    with pytest.raises(SendFailed, match=r"5000000 bytes, msgId big.*maxMessageSize"):
        sends.flush()
    client.close()
