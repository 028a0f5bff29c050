"""Pulls over the wire: who may pull what, subscriptions, holding, and the offset on the request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.bodies.topic import TopicConfig
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.tags_code import tags_code
from skylarkmq.store.results import GetMessageResult
from tests.support import heartbeats
from tests.support.live_broker import live_broker
from tests.support.manual_clock import ManualClock
from tests.support.raw_client import RawClient, pull_fields, send_fields

SEND, PULL, QUERY_OFFSET, MAX_OFFSET = 310, 11, 14, 30
SUSPEND, COMMIT, SUBSCRIPTION = 2, 1, 4


@pytest.mark.parametrize("flush_type", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_held_pull_that_fails_costs_no_sender_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush_type: str
) -> None:
    async with live_broker(tmp_path, flush_disk_type=flush_type) as broker:
        sender = await RawClient.open(broker.listen_address)
        reader = await RawClient.open(broker.listen_address)
        await sender.call(SEND, send_fields("T"), b"0")
        held = reader.send(PULL, pull_fields("T", offset=1, sysFlag=str(SUSPEND | SUBSCRIPTION)))
        other = reader.send(30, {"topic": "T", "queueId": "0"})
        await reader.answer(other)
        assert broker.parts.holding.count == 1

        def unreadable(*_: object) -> GetMessageResult:
            raise OSError("the disk cannot read this")

        monkeypatch.setattr(broker.parts.store, "get_message", unreadable)
        answer = await sender.call(SEND, send_fields("T"), b"1")
        assert (answer.code, answer.ext_fields["queueOffset"]) == (0, "1")
        pulled = await reader.answer(held)
        assert pulled.code == ResponseCode.SYSTEM_ERROR
        await sender.close()
        await reader.close()


async def test_a_pull_commits_no_offset_that_cannot_be(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        client = await RawClient.open(broker.listen_address)
        await client.call(SEND, send_fields("T"), b"0")
        flags = str(COMMIT | SUBSCRIPTION)
        for offset in ("1", "-1", "2"):  # there is one message
            await client.call(PULL, pull_fields("T", sysFlag=flags, commitOffset=offset))
        where = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}
        answer = await client.call(QUERY_OFFSET, where)
        assert answer.ext_fields["offset"] == "1"
        await client.close()


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    async with live_broker(tmp_path) as controller:
        yield controller


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[RawClient]:
    """A connection to a broker whose topic `T` holds messages of the tags A, B, A."""
    peer = await RawClient.open(broker.listen_address)
    for tag in ("A", "B", "A"):
        await peer.call(SEND, send_fields("T", 0, f"TAGS\x01{tag}"), tag.encode())
    yield peer
    await peer.close()


def set_group(broker: BrokerController, **changes: Any) -> None:
    group = broker.parts.groups.find("cg")
    assert group is not None
    broker.parts.groups.update(msgspec.structs.replace(group, **changes))


async def heartbeat(
    client: RawClient,
    tags: str = "*",
    version: int = 1,
    model: str = "CLUSTERING",
    name: str = "c1",
    **more: Any,
) -> None:
    """Join the group `cg` with a subscription to `T`."""
    codes = [] if tags == "*" else [tags_code(tag.strip()) for tag in tags.split("||")]
    wanted = heartbeats.subscription("T", tags, **{"subVersion": version, "codeSet": codes, **more})
    body = heartbeats.heartbeat(name, heartbeats.consumer_data("cg", wanted, messageModel=model))
    assert (await client.call(34, {}, body)).code == 0


def by_heartbeat(**more: str) -> dict[str, str]:
    """A pull without a subscription of its own."""
    fields = pull_fields("T", sysFlag="0", subVersion="1", **more)
    del fields["subscription"]
    return fields


@pytest.mark.parametrize("code", [PULL, 361])
async def test_the_heartbeats_subscription_decides(client: RawClient, code: int) -> None:
    await heartbeat(client, "B || C")
    answer = await client.call(code, by_heartbeat())
    assert answer.code == 0, answer.remark
    assert [message.body for message in decode_messages(answer.body)] == [b"B"]
    assert answer.ext_fields["nextBeginOffset"] == "3"
    assert answer.ext_fields["suggestWhichBrokerId"] == "0"


@pytest.mark.parametrize(
    ("beat", "code", "word"),
    [
        (None, ResponseCode.SUBSCRIPTION_NOT_EXIST, "no heartbeat"),
        ({"topic": "other"}, ResponseCode.SUBSCRIPTION_NOT_EXIST, "does not subscribe to T"),
        ({"version": 0}, ResponseCode.SUBSCRIPTION_NOT_LATEST, "not latest"),
        ({"expressionType": "SQL92"}, ResponseCode.SYSTEM_ERROR, "SQL92"),
    ],
)
async def test_a_pull_whose_subscription_is_not_known(
    client: RawClient, beat: dict[str, Any] | None, code: int, word: str
) -> None:
    if beat is not None:
        await heartbeat(client, **beat)
    answer = await client.call(PULL, by_heartbeat())
    assert answer.code == code, answer.remark
    assert word in (answer.remark or "")


async def test_a_newer_heartbeat_than_the_pulls_is_good(client: RawClient) -> None:
    await heartbeat(client, version=9)
    assert (await client.call(PULL, by_heartbeat())).code == 0


@pytest.mark.parametrize(("permission", "code"), [(6, 0), (4, 0), (2, ResponseCode.NO_PERMISSION)])
async def test_the_brokers_permission(tmp_path: Path, permission: int, code: int) -> None:
    async with live_broker(tmp_path, broker_permission=permission) as broker:
        client = await RawClient.open(broker.listen_address)
        await client.call(SEND, send_fields("T"), b"x")
        assert (await client.call(PULL, pull_fields("T"))).code == code
        await client.close()


@pytest.mark.parametrize(("permission", "code"), [(6, 0), (4, 0), (2, ResponseCode.NO_PERMISSION)])
async def test_the_topics_permission(
    broker: BrokerController, client: RawClient, permission: int, code: int
) -> None:
    broker.parts.topics.update(
        TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4, perm=permission)
    )
    assert (await client.call(PULL, pull_fields("T"))).code == code


@pytest.mark.parametrize(
    ("changes", "model", "code"),
    [
        ({"consume_enable": False}, "CLUSTERING", ResponseCode.NO_PERMISSION),
        ({"consume_broadcast_enable": False}, "BROADCASTING", ResponseCode.NO_PERMISSION),
        ({"consume_broadcast_enable": False}, "CLUSTERING", ResponseCode.SUCCESS),
        ({}, "BROADCASTING", ResponseCode.SUCCESS),
    ],
)
async def test_what_a_group_may_do(
    broker: BrokerController, client: RawClient, changes: dict[str, Any], model: str, code: int
) -> None:
    set_group(broker, **changes)
    await heartbeat(client, model=model)
    answer = await client.call(PULL, by_heartbeat())
    assert answer.code == code, answer.remark


async def test_a_group_that_may_not_be_made(tmp_path: Path) -> None:
    async with live_broker(tmp_path, auto_create_subscription_group=False) as broker:
        client = await RawClient.open(broker.listen_address)
        await client.call(SEND, send_fields("T"), b"x")
        answer = await client.call(PULL, pull_fields("T"))
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert "autoCreateSubscriptionGroup" in (answer.remark or "")
        await client.close()


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"queueId": "-1"}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": "4"}, ResponseCode.SYSTEM_ERROR),
        ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"subscription": "A" * 40_000}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"maxMsgNums": "0"}, 0),
        ({"maxMsgNums": "-5"}, 0),
        ({"maxMsgNums": "2147483647"}, 0),
        ({"maxMsgBytes": "-1"}, 0),
        ({"queueOffset": "9223372036854775807"}, ResponseCode.PULL_OFFSET_MOVED),
    ],
)
async def test_numbers_out_of_range(client: RawClient, more: dict[str, str], code: int) -> None:
    answer = await client.call(PULL, {**pull_fields("T"), **more})
    assert answer.code == code, answer.remark


async def test_a_one_way_pull_is_neither_answered_nor_held(
    broker: BrokerController, client: RawClient
) -> None:
    client.send(PULL, pull_fields("T", 0, 0), oneway=True)
    client.send(PULL, pull_fields("T", 0, 3, sysFlag=str(SUSPEND | SUBSCRIPTION)), oneway=True)
    count = len(client.frames)
    await client.call(9999)
    assert len(client.frames) == count + 1
    assert broker.parts.holding.count == 0


async def test_a_place_that_one_member_came_to_is_not_open_to_another(
    broker: BrokerController, client: RawClient
) -> None:
    other = await RawClient.open(broker.listen_address)
    await heartbeat(client)
    await heartbeat(other, name="c2")
    for _ in range(3):  # the first ones open the fast path
        assert (await client.call(PULL, by_heartbeat())).code == ResponseCode.SUCCESS
    answer = await other.call(PULL, by_heartbeat(queueOffset="2"))
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert answer.ext_fields["nextBeginOffset"] == "0"
    assert (await client.call(PULL, by_heartbeat(queueOffset="2"))).code == ResponseCode.SUCCESS
    await other.close()


async def test_a_held_pull_commits_its_offset_at_once(
    broker: BrokerController, client: RawClient
) -> None:
    await client.call(MAX_OFFSET, {"topic": "T", "queueId": "0"})
    flags = str(COMMIT | SUSPEND | SUBSCRIPTION)
    client.send(PULL, pull_fields("T", 0, 3, sysFlag=flags, commitOffset="2"))
    where = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}
    assert (await client.call(QUERY_OFFSET, where)).ext_fields["offset"] == "2"
    assert broker.parts.holding.count == 1


@pytest.mark.parametrize(
    ("config", "asked_ms", "answered_s"),
    [({}, "15000", 15), ({}, "-1", 5), ({"long_polling_enable": False}, "15000", 1)],
)
async def test_how_long_a_pull_is_held(
    tmp_path: Path, config: dict[str, Any], asked_ms: str, answered_s: float
) -> None:
    clock = ManualClock()
    async with live_broker(tmp_path, clock=clock, **config) as broker:
        client = await RawClient.open(broker.listen_address)
        await client.call(SEND, send_fields("T"), b"x")
        flags = str(SUSPEND | SUBSCRIPTION)
        fields = pull_fields("T", 0, 1, sysFlag=flags, suspendTimeoutMillis=asked_ms)
        opaque = client.send(PULL, fields)
        await client.call(9999)
        clock.advance(answered_s - 0.1)
        assert broker.parts.holding.count == 1
        clock.advance(0.2)
        assert broker.parts.holding.count == 0
        answer = await client.answer(opaque)
        assert (answer.code, answer.remark) == (
            ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE"
        )  # fmt: skip
        await client.close()


async def test_a_pull_of_an_empty_queue_waits_for_its_first_message(client: RawClient) -> None:
    held = client.send(PULL, pull_fields("T", 3, 0, sysFlag=str(SUSPEND | SUBSCRIPTION)))
    await client.call(SEND, send_fields("T", 3), b"first")
    answer = await client.answer(held)
    assert [message.body for message in decode_messages(answer.body)] == [b"first"]


async def test_a_consumer_is_carried_over_what_it_does_not_want(tmp_path: Path) -> None:
    clock = ManualClock()
    async with live_broker(tmp_path, clock=clock) as broker:
        client = await RawClient.open(broker.listen_address)
        await client.call(SEND, send_fields("T", 0, "TAGS\x01B"), b"x")
        flags = str(SUSPEND | SUBSCRIPTION)
        fields = pull_fields("T", 0, 1, sysFlag=flags, subscription="A")
        held = client.send(PULL, fields)
        await client.call(SEND, send_fields("T", 0, "TAGS\x01B"), b"x")
        assert broker.parts.holding.count == 1
        clock.advance(5)
        answer = await client.answer(held)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert answer.ext_fields["nextBeginOffset"] == "2"
        await client.close()


async def test_a_held_pull_follows_changes(tmp_path: Path) -> None:
    clock = ManualClock()
    async with live_broker(tmp_path, clock=clock) as broker:
        client = await RawClient.open(broker.listen_address)
        for tag in "AB":
            await client.call(SEND, send_fields("T", 0, f"TAGS\x01{tag}"), tag.encode())
        await heartbeat(client, "A", version=1)
        suspend = {"sysFlag": str(SUSPEND), "suspendTimeoutMillis": "15000"}
        await client.call(MAX_OFFSET, {"topic": "T", "queueId": "0"})
        held = client.send(PULL, {**by_heartbeat(), **suspend, "queueOffset": "2"})
        await heartbeat(client, "B", version=2)
        await client.call(SEND, send_fields("T", 0, "TAGS\x01B"), b"wanted now")
        assert broker.parts.holding.count == 1  # the sweep, as in RocketMQ, follows the new one
        clock.advance(5)
        answer = await client.answer(held)
        assert [message.body for message in decode_messages(answer.body)] == [b"wanted now"]

        held = client.send(PULL, {**by_heartbeat(), **suspend, "queueOffset": "3"})
        await client.call(9999)
        set_group(broker, consume_enable=False)
        await client.call(SEND, send_fields("T", 0, "TAGS\x01B"), b"not for them")
        assert (await client.answer(held)).code == ResponseCode.NO_PERMISSION
        await client.close()
