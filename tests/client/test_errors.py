"""Errors: the tree, the mapping from codes, hints and retryability."""

from __future__ import annotations

import asyncio
import copy
import pickle
from datetime import timedelta
from typing import Any

import pytest

from skylarkmq import testing
from skylarkmq.client import (
    AuthError,
    BrokerError,
    Client,
    ConnectionFailed,
    ConsumerClosed,
    IllegalState,
    Message,
    MessageIllegal,
    NoPermission,
    Producer,
    RequestTimeout,
    RocketMQError,
    ServiceNotAvailable,
    SubscriptionNotExist,
    SystemBusy,
    TopicNotExist,
    errors,
)
from skylarkmq.client.errors import broker_error
from skylarkmq.protocol.compression import CompressionKind, CompressionUnavailableError
from skylarkmq.protocol.errors import RemoteProtocolError, WireError
from skylarkmq.protocol.flags import RMQ_SYS_TRANS_HALF_TOPIC
from skylarkmq.protocol.frame import BadFrameError
from tests.client.consumer.support import Group


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (1, BrokerError, True),
        (2, SystemBusy, True),
        (3, BrokerError, False),
        (13, MessageIllegal, False),
        (14, ServiceNotAvailable, True),
        (16, NoPermission, True),
        (17, TopicNotExist, True),
        (24, SubscriptionNotExist, False),
        (4711, BrokerError, False),
    ],
)
def test_codes_become_classes(code: int, kind: type[BrokerError], retryable: bool) -> None:
    error = broker_error(code, "the remark, verbatim", "10.0.0.1:10911")
    assert type(error) is kind
    assert (error.code, error.remark, error.broker_addr) == (
        code, "the remark, verbatim", "10.0.0.1:10911",
    )  # fmt: skip
    assert error.retryable is retryable
    assert "the remark, verbatim" in str(error)
    assert str(code) in str(error)


def test_access_control_is_told_by_its_remark() -> None:
    remark = "org.apache.rocketmq.acl.common.AclException: No accessKey is configured, x"
    assert isinstance(broker_error(1, remark, "a:1"), AuthError)


def test_a_refusal_for_lack_of_replicas_does_not_name_the_disk() -> None:
    text = str(broker_error(14, "1 replicas are in sync, and minInSyncReplicas=2", "a:1"))
    assert "minInSyncReplicas" in text
    assert "disk" not in text


def test_a_missing_remark_is_empty() -> None:
    assert broker_error(14, None, "a:1").remark == ""


def test_the_log_is_named_where_the_broker_does_not_say_why() -> None:
    assert "log" in broker_error(14, None, "a:1").hint
    assert broker_error(14, "disk full", "a:1").hint == ""


def test_the_tree() -> None:
    assert issubclass(RequestTimeout, TimeoutError)
    assert issubclass(ConsumerClosed, IllegalState)
    for kind in (BrokerError, ConnectionFailed, RequestTimeout, IllegalState, AuthError):
        assert issubclass(kind, RocketMQError)
    assert ConnectionFailed("a:1", "down").retryable
    assert not IllegalState("no").retryable


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("broker", r"'broker' is no host:port: name servers have a port, mostly 9876"),
        ("10.0.0.1:9876;10.0.0.2", "'10.0.0.2' is no host:port"),
        (":9876", "is no host:port"),
        ("broker:99999", "'broker:99999' is no host:port: a port is 1 to 65535"),
        ("http://broker:9876", "is a URL: name servers are host:port"),
    ],
)
def test_an_address_that_cannot_be_one_is_told_at_once(address: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Client(address)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"delay": "5"}, r"delay is seconds or a timedelta, not str; .* delay_level"),
        ({"delay": True}, r"delay is seconds or a timedelta, not bool; .* delay_level"),
        ({"deliver_at": 1_700_000_000}, "deliver_at is a datetime with its time zone, not int"),
    ],
)
def test_a_time_of_the_wrong_kind_is_told_with_the_right_one(
    wrong: dict[str, Any], why: str
) -> None:
    with pytest.raises(TypeError, match=why):
        Message("orders", b"x", **wrong)
    assert Message("orders", b"x", delay=5) == Message("orders", b"x", delay=timedelta(seconds=5))


async def test_what_is_no_message_and_whose_topic_is_taken_is_told_before_it_is_sent() -> None:
    it = Group()
    producer = Producer(client=it.client())
    await it.wait(producer.start())
    text: Any = "orders"
    for sending in (producer.send(text), producer.send_many([text])):
        with pytest.raises(TypeError, match=r"Message\('orders', b'body'\), not str 'orders'"):
            await it.wait(sending)
    with pytest.raises(TypeError, match="not str 'orders'"):
        producer.send_nowait(text)
    with pytest.raises(ValueError, match="is the brokers' own: send to another one"):
        await it.wait(producer.send(Message(RMQ_SYS_TRANS_HALF_TOPIC, b"x")))
    await it.wait(producer.stop())
    await it.wait(producer._client.stop())


@pytest.mark.parametrize(
    ("code", "remark", "cure"),
    [
        (13, "topic T has no priorities", "Leave the priority out"),
        (16, "'listenPort'='1': it takes a restart", "start the broker again"),
        (16, "a group is consumed in one way at a time; stop them first", ""),
    ],
)
def test_what_a_remark_says_has_a_cure_of_its_own(code: int, remark: str, cure: str) -> None:
    hint = broker_error(code, remark, "b:1").hint
    assert cure in hint if cure else not hint


def test_code_13_says_both_of_its_meanings() -> None:
    hint = broker_error(13, "maybe msg body or properties length not matched", "b:1").hint
    assert "maxMessageSize" in hint
    assert "what it asks for is not allowed" in hint


def test_a_delay_beyond_the_limit_names_that_limit_alone() -> None:
    async def too_late() -> MessageIllegal:
        async with (
            testing.run_broker() as broker,
            Producer(namesrv_addr=broker.namesrv_addr) as producer,
        ):
            with pytest.raises(MessageIllegal) as caught:
                await producer.send(Message("T", b"x", delay=timedelta(days=400)))
        return caught.value

    error = asyncio.run(too_late())
    assert str(error) == (
        f"{error.broker_addr} answered MESSAGE_ILLEGAL(13): timer message illegal, the delay time "
        "should not be bigger than the max delay 259200000ms (timerMaxDelaySec). Give it a shorter "
        "delay, or the broker a higher timerMaxDelaySec"
    )


def test_a_broker_in_this_process_needs_posix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.name", "nt")
    with pytest.raises(ImportError, match="run_broker needs POSIX, as the broker does: run the"):
        testing.run_broker  # noqa: B018


def of_kind(kind: type[Exception]) -> Exception:
    if issubclass(kind, BrokerError):
        return kind(17, "the remark", "10.0.0.1:10911", hint="Do this")
    made: dict[type[Exception], tuple[Any, ...]] = {
        errors.ReplyTimeout: ("orders", 3.0),
        errors.RouteNotFound: ("orders", "no_broker", "Do this"),
        errors.MessageTooLarge: (5, 4),
        errors.NotDurableError: ("its result", "FLUSH_DISK_TIMEOUT"),
        errors.ConnectionFailed: ("10.0.0.1:10911", "refused"),
        errors.TlsError: ("10.0.0.1:10911", "expired"),
        CompressionUnavailableError: (CompressionKind.ZSTD,),
        RemoteProtocolError: (1, "the remark"),
        BadFrameError: (1, "the remark"),
    }
    return kind(*made.get(kind, ("text",)))


THROWN_BY_THE_SDK = tuple(f"skylarkmq.{room}." for room in ("client", "remoting", "protocol"))


def kinds_of(root: type[Exception]) -> list[type[Exception]]:
    below = [each for kind in root.__subclasses__() for each in kinds_of(kind)]
    return [root, *(each for each in below if each.__module__.startswith(THROWN_BY_THE_SDK))]


@pytest.mark.parametrize("kind", [*kinds_of(RocketMQError), *kinds_of(WireError)])
def test_each_error_passes_between_processes(kind: type[Exception]) -> None:
    error = of_kind(kind)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == str(error)
        assert again.__dict__ == error.__dict__
