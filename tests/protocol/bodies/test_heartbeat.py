"""Heartbeats: the golden one, those of other clients, hostile ones."""

import json

import pytest

from skylarkmq.protocol.bodies.group import CheckClientRequestBody, HeartbeatData, SubscriptionData
from skylarkmq.protocol.bodies.text import decode_body, encode_body
from skylarkmq.protocol.errors import RemoteProtocolError
from tests.protocol.message_vectors import FRAMES
from tests.protocol.support import only_frame

GOLDEN = only_frame(bytes.fromhex(FRAMES["heartbeat_json"]["hex"])).body


def test_the_golden_heartbeat() -> None:
    body = decode_body(HeartbeatData, GOLDEN)
    assert body.client_id == "192.0.2.10@4242#77"
    assert [producer.group_name for producer in body.producer_data_set] == ["pg_test"]
    (consumer,) = body.consumer_data_set
    assert (consumer.consume_type, consumer.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    (subscribed,) = consumer.subscription_data_set
    assert (subscribed.topic, subscribed.sub_string) == ("TopicTest", "TagA")
    assert (subscribed.tags_set, subscribed.code_set) == (["TagA"], [2598919])
    assert encode_body(body) == GOLDEN


def test_enums_by_ordinal_and_numbers_in_quotes() -> None:
    """As the C++ client writes them."""
    data = json.loads(GOLDEN)
    data["consumerDataSet"][0] |= {"consumeType": 1, "messageModel": 1, "consumeFromWhere": 0}
    data["consumerDataSet"][0]["subscriptionDataSet"][0]["subVersion"] = "1700000000001"
    data["consumerDataSet"][0]["subscriptionDataSet"][0]["codeSet"] = ["2598919"]
    assert decode_body(HeartbeatData, json.dumps(data).encode()) == decode_body(
        HeartbeatData, GOLDEN
    )


@pytest.mark.parametrize("ordinal", [3, -1, 2**70])
def test_an_unknown_ordinal_is_refused(ordinal: int) -> None:
    data = json.loads(GOLDEN)
    data["consumerDataSet"][0]["consumeType"] = ordinal
    with pytest.raises(RemoteProtocolError):
        decode_body(HeartbeatData, json.dumps(data).encode())


@pytest.mark.parametrize("text", ["", "1e3", "1.0", "\u0661", "x", "9" * 20])
@pytest.mark.parametrize("member", ["subVersion", "codeSet"])
def test_numbers_in_quotes_follow_the_strict_rule(member: str, text: str) -> None:
    data = json.loads(GOLDEN)
    subscription = data["consumerDataSet"][0]["subscriptionDataSet"][0]
    subscription[member] = [text] if member == "codeSet" else text
    with pytest.raises(RemoteProtocolError):
        decode_body(HeartbeatData, json.dumps(data).encode())


def test_shared_subscriptions_as_fastjson_writes_them() -> None:
    data = json.loads(GOLDEN)
    consumers = data["consumerDataSet"]
    reference = {"$ref": "$.consumerDataSet[0].subscriptionDataSet[0]"}
    consumers.append({**consumers[0], "groupName": "other", "subscriptionDataSet": [reference]})
    first, second = decode_body(HeartbeatData, json.dumps(data).encode()).consumer_data_set
    assert second.group_name == "other"
    assert second.subscription_data_set == first.subscription_data_set


def test_what_later_clients_add_is_ignored() -> None:
    data = {**json.loads(GOLDEN), "heartbeatFingerprint": 0, "withoutSub": False}
    body = decode_body(HeartbeatData, json.dumps(data).encode())
    assert encode_body(body) == GOLDEN


def test_twenty_thousand_subscriptions_are_read_like_one() -> None:
    data = json.loads(GOLDEN)
    data["consumerDataSet"][0]["subscriptionDataSet"] = [
        {"topic": f"T{number}", "subString": "*"} for number in range(20_000)
    ]
    (consumer,) = decode_body(HeartbeatData, json.dumps(data).encode()).consumer_data_set
    assert len(consumer.subscription_data_set) == 20_000


@pytest.mark.parametrize("member", ["clientID", "groupName", "topic", "subString"])
def test_what_a_heartbeat_must_have(member: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_body(HeartbeatData, GOLDEN.replace(member.encode(), b"x" + member.encode()))


def test_an_empty_heartbeat() -> None:
    body = decode_body(HeartbeatData, b'{"clientID":"c"}')
    assert (body.producer_data_set, body.consumer_data_set) == ([], [])


def test_a_filter_to_check() -> None:
    body = CheckClientRequestBody(
        client_id="c",
        group="g",
        subscription_data=SubscriptionData(topic="T", sub_string="a > 1", expression_type="SQL92"),
    )
    assert decode_body(CheckClientRequestBody, encode_body(body)) == body
    assert json.loads(encode_body(body))["subscriptionData"]["expressionType"] == "SQL92"
