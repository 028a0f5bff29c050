"""Accounts of gRPC calls: how they are proved, and what they may do."""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.access.accounts import read_rules
from skylarkmq.broker.access.control import AccessDenied
from skylarkmq.broker.access.rpc_control import HOSTS_MAX, RpcAccess, read_authorization
from skylarkmq.broker.access.rpc_rights import RPCS
from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.v5 import schema_pb2
from tests.broker.access.test_control import ACCOUNTS, SECRET

PEER = "10.0.0.9:4711"
DATE = "20200101T000000Z"
WHITE = "globalWhiteRemoteAddresses: [10.1.*.*]\n"


def access() -> RpcAccess:
    found = RpcAccess(RPCS, BrokerStats())
    found.rules = read_rules([(Path("plain_acl.yml"), (WHITE + ACCOUNTS).encode())])
    return found


def signed(key: str = "publisher", secret: str = SECRET, date: str = DATE) -> dict[str, str]:
    """Metadata as a client signs it."""
    signature = hmac.digest(secret.encode(), date.encode(), "sha1").hex().upper()
    text = f"MQv2-HMAC-SHA1 Credential={key}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {"authorization": text, "x-mq-date-time": date}


@pytest.mark.parametrize("key", ["publisher", "publisher/cn/RocketMQ", "administrator"])
def test_a_signature_proves_an_account(key: str) -> None:
    account = access().account("SendMessage", signed(key), PEER)
    assert account is not None and account.access_key == key.partition("/")[0]
    lower = signed(key)
    lower["authorization"] = lower["authorization"].replace(
        lower["authorization"][-40:], lower["authorization"][-40:].lower()
    )
    again = access().account("SendMessage", lower, PEER)
    assert again is not None and again.access_key == account.access_key


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({}, "no_access_key"),
        ({"authorization": ""}, "no_access_key"),
        (signed(""), "no_access_key"),
        (signed("nobody-here"), "unknown_account"),
        (signed(secret="another-secret"), "bad_signature"),
        ({**signed(), "x-mq-date-time": "20200101T000001Z"}, "bad_signature"),
        ({"authorization": signed(date="")["authorization"]}, "bad_signature"),
        ({"authorization": "Basic cHVibGlzaGVy"}, "bad_signature"),
        ({**signed(), "authorization": "MQv2-HMAC-SHA1 Credential=publisher"}, "bad_signature"),
        ({"authorization": "MQv2-HMAC-SHA1 " + "," * 5000}, "no_access_key"),
        ({"authorization": "MQv2-HMAC-SHA1 Credential=publisher,Signature=é"}, "bad_signature"),
    ],
)
def test_others_are_refused_and_counted(metadata: dict[str, str], reason: str) -> None:
    found = access()
    with pytest.raises(AccessDenied) as caught:
        found.account("SendMessage", metadata, PEER)
    assert caught.value.reason == reason
    assert not caught.value.is_known
    assert found._stats.auth_failures[reason] == 1


def test_white_addresses() -> None:
    found = access()
    assert found.account("SendMessage", {}, "10.1.2.3:1") is None
    found.check(None, "SendMessage", "10.1.2.3:1", object())
    home = found.account("SendMessage", signed("at-home", "x"), "127.0.0.1:1")
    assert home is not None and home.access_key == "at-home"
    with pytest.raises(AccessDenied):
        found.account("SendMessage", signed("at-home", "x"), PEER)


def test_white_addresses_follow_the_rules_and_are_bounded() -> None:
    found = access()
    assert found.account("Heartbeat", {}, "10.1.2.3:1") is None
    for number in range(2 * HOSTS_MAX):
        found.account("Heartbeat", {}, f"10.1.{number // 256}.{number % 256}:1")
    assert len(found._white) <= HOSTS_MAX
    found.rules = read_rules([(Path("plain_acl.yml"), ACCOUNTS.encode())])
    with pytest.raises(AccessDenied):
        found.account("Heartbeat", {}, "10.1.2.3:1")


def topic(name: str) -> schema_pb2.Resource:
    return schema_pb2.Resource(name=name)


def settings(publish: str = "", group: str = "", subscribe: str = "") -> Any:
    command = schema_pb2.TelemetryCommand()
    if publish:
        command.settings.publishing.topics.add(name=publish)
    if group:
        command.settings.subscription.group.name = group
    if subscribe:
        command.settings.subscription.subscriptions.add().topic.name = subscribe
    return command


def message(*topics: str) -> schema_pb2.SendMessageRequest:
    return schema_pb2.SendMessageRequest(
        messages=[schema_pb2.Message(topic=topic(name)) for name in topics]
    )


def receive(name: str, group: str) -> schema_pb2.ReceiveMessageRequest:
    queue = schema_pb2.MessageQueue(topic=topic(name))
    return schema_pb2.ReceiveMessageRequest(group=topic(group), message_queue=queue)


RECALL = schema_pb2.RecallMessageRequest
ACK = schema_pb2.AckMessageRequest
BEAT = schema_pb2.HeartbeatRequest


@pytest.mark.parametrize(
    ("key", "name", "request_", "missing"),
    [
        ("publisher", "SendMessage", message("Mine"), ""),
        ("publisher", "SendMessage", message("Mine", "Other"), "topic:Other"),
        ("publisher", "SendMessage", message(), ""),
        ("subscriber", "SendMessage", message("Mine"), "topic:Mine"),
        ("administrator", "SendMessage", message("Other"), ""),
        ("publisher", "QueryRoute", schema_pb2.QueryRouteRequest(topic=topic("Mine")), ""),
        ("subscriber", "QueryRoute", schema_pb2.QueryRouteRequest(topic=topic("Mine")), ""),
        ("subscriber", "QueryRoute", schema_pb2.QueryRouteRequest(topic=topic("No")), "topic:No"),
        ("subscriber", "ReceiveMessage", receive("Mine", "readers"), ""),
        ("subscriber", "ReceiveMessage", receive("Mine", "others"), "group:others"),
        ("subscriber", "ReceiveMessage", receive("Other", "readers"), "topic:Other"),
        ("subscriber", "ReceiveMessage", receive("%RETRY%others", "readers"), "group:others"),
        ("subscriber", "AckMessage", ACK(topic=topic("Mine"), group=topic("readers")), ""),
        ("publisher", "AckMessage", ACK(topic=topic("Both"), group=topic("readers")), "group:"),
        ("publisher", "RecallMessage", RECALL(topic=topic("Mine")), ""),
        ("subscriber", "RecallMessage", RECALL(topic=topic("Mine")), "topic:Mine"),
        ("subscriber", "Heartbeat", BEAT(group=topic("readers")), ""),
        ("subscriber", "Heartbeat", BEAT(group=topic("others")), "group:others"),
        ("publisher", "Heartbeat", BEAT(), ""),
        ("publisher", "Telemetry", settings("Mine"), ""),
        ("publisher", "Telemetry", settings("Other"), "topic:Other"),
        ("subscriber", "Telemetry", settings("", "readers", "Mine"), ""),
        ("subscriber", "Telemetry", settings("", "readers", "Other"), "topic:Other"),
        ("subscriber", "Telemetry", settings("", "others", "Mine"), "group:others"),
    ],
)
def test_rights(key: str, name: str, request_: Any, missing: str) -> None:
    found = access()
    account = found.account(name, signed(key), PEER)
    if not missing:
        found.check(account, name, PEER, request_)
        return
    with pytest.raises(AccessDenied) as caught:
        found.check(account, name, PEER, request_)
    assert missing in caught.value.remark
    assert caught.value.is_known
    assert found._stats.auth_failures["no_permission"] == 1


def test_a_topic_of_retries_needs_the_right_to_what_pop_has_there() -> None:
    """`%RETRY%readers` may have what another group has not acknowledged of its topic."""
    found = access()
    account = found.account("ReceiveMessage", signed("subscriber"), PEER)
    request = receive("%RETRY%readers", "readers")
    found.check(account, "ReceiveMessage", PEER, request)
    origins = {"%RETRY%readers": ["Mine", "Other"]}
    found._topics_of_retries = lambda name: origins.get(name, ())
    for name, refused in (
        ("ReceiveMessage", request),
        ("SendMessage", message("%RETRY%readers")),
    ):
        with pytest.raises(AccessDenied, match="topic:Other"):
            found.check(account, name, PEER, refused)
    with pytest.raises(AccessDenied, match="topic:Third"):
        found.check(account, "ReceiveMessage", PEER, receive("%RETRY%readers+Third", "readers"))
    with pytest.raises(AccessDenied, match="group:others"):
        found.check(account, "ReceiveMessage", PEER, receive("%RETRY%others+Mine", "readers"))
    found.check(account, "ReceiveMessage", PEER, receive("%RETRY%readers+Mine", "readers"))
    found.check(account, "ReceiveMessage", PEER, receive("Mine", "readers"))
    found.check(account, "AckMessage", PEER, ACK(topic=topic("Mine"), group=topic("readers")))


def test_a_namespace_gives_no_right() -> None:
    """It is not looked at, so what it is before has the rights of its name."""
    found = access()
    for named, may in (("Mine", True), ("Other", False)):
        resource = schema_pb2.Resource(resource_namespace="Mine", name=named)
        sent = schema_pb2.SendMessageRequest(messages=[schema_pb2.Message(topic=resource)])
        account = found.account("SendMessage", signed(), PEER)
        if may:
            found.check(account, "SendMessage", PEER, sent)
            continue
        with pytest.raises(AccessDenied, match="topic:Other"):
            found.check(account, "SendMessage", PEER, sent)


def test_a_call_without_a_row_is_refused() -> None:
    found = access()
    account = found.account("NewCall", signed("administrator"), PEER)
    with pytest.raises(RemoteProtocolError):
        found.check(account, "NewCall", PEER, object())


def test_rows_are_of_calls_that_there_are() -> None:
    for name, row in RPCS.items():
        request = getattr(schema_pb2, f"{name}Request", schema_pb2.TelemetryCommand)
        assert row.name == name and row.told
        list(row.read(request()))


def test_an_authorization_of_any_form_is_read() -> None:
    assert read_authorization("") == ("", "")
    assert read_authorization("MQv2-HMAC-SHA1 Credential=,") == ("", "")
    assert read_authorization("MQv2-HMAC-SHA1 Signature=ab , Credential=key/x") == ("key", "ab")
