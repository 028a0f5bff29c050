"""The life of a client: telemetry, heartbeats, receives, and its end."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.access.accounts import Account
from skylarkmq.broker.base.addresses import AddressList
from skylarkmq.broker.grpc import sessions as limits
from skylarkmq.broker.grpc.calls import RpcRefused
from skylarkmq.protocol.bodies.group import ConsumerData, SubscriptionData
from skylarkmq.protocol.codes import LanguageCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.broker.group_rig import FakeConnection
from tests.broker.grpc.session_rig import (
    GROUP,
    TOPIC,
    SessionRig,
    a_call,
    publishing,
    subscription,
)
from tests.support.manual_clock import settle

ANY = schema_pb2.FilterExpression()


@pytest.fixture
async def rig() -> SessionRig:
    rig = SessionRig()
    rig.start()
    return rig


def members(rig: SessionRig, group: str = GROUP) -> list[str]:
    return [client.client_id for client in rig.consumers.clients(group).values()]


def old_member(rig: SessionRig, group: str = GROUP) -> FakeConnection:
    """A member that pulls."""
    peer = FakeConnection()
    data = ConsumerData(
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
        consume_type="CONSUME_PASSIVELY",
        group_name=group,
        message_model="CLUSTERING",
        subscription_data_set=[SubscriptionData(topic=TOPIC, sub_string="*")],
    )
    member: object = peer
    rig.consumers.register(member, "old@1", LanguageCode.JAVA, 409, data)  # type: ignore[arg-type]
    return peer


# Settings


async def test_settings_are_answered_and_make_a_member(rig: SessionRig) -> None:
    rig.group(retry_max_times=4)
    stream = await rig.open(subscription())
    (answer,) = stream.took()
    assert answer.status.code == Code.OK
    assert answer.settings.backoff_policy.max_attempts == 5
    assert answer.settings.subscription.group.name == GROUP
    assert members(rig) == ["c@1"]
    assert rig.consumers.pops(GROUP)
    assert rig.consumers.client_ids(GROUP) == []
    wanted = rig.consumers.find_subscription(GROUP, TOPIC)
    assert wanted is not None
    assert wanted.sub_string == "*"


async def test_settings_are_answered_each_time(rig: SessionRig) -> None:
    stream = await rig.open()
    for topics in (("T",), ("T", "U"), ("U",)):
        stream.says(settings=subscription(*topics))
        await settle(20)
        (answer,) = stream.took()
        named = [entry.topic.name for entry in answer.settings.subscription.subscriptions]
        assert named == list(topics)
    info = rig.consumers.group(GROUP)
    assert info is not None
    assert list(info.subscriptions) == ["U"]


async def test_a_group_that_does_not_exist_is_made_by_nobody_here(rig: SessionRig) -> None:
    before = dict(rig.groups.table)
    stream = await rig.open(subscription(group="fresh"))
    (answer,) = stream.took()
    assert answer.settings.backoff_policy.max_attempts == 17
    assert rig.groups.table == before


async def test_a_producer_is_in_a_group_for_each_topic(rig: SessionRig) -> None:
    stream = await rig.open(publishing("T", "U"))
    assert stream.took()[0].settings.publishing.max_body_size == 4 << 20
    assert sorted(rig.producers.groups) == ["T", "U"]
    stream.says(settings=publishing("U", "V"))
    await settle(20)
    assert sorted(rig.producers.groups) == ["U", "V"]
    await rig.leave()
    assert list(rig.producers.groups) == []


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (schema_pb2.Settings(), Code.BAD_REQUEST),
        (publishing("a b"), Code.ILLEGAL_TOPIC),
        (subscription(kind=schema_pb2.PULL_CONSUMER), Code.UNSUPPORTED),
    ],
)
async def test_settings_that_cannot_be_used_end_the_stream(
    rig: SessionRig, settings: schema_pb2.Settings, code: int
) -> None:
    stream = await rig.open(settings)
    with pytest.raises(RpcRefused) as why:
        await rig.tasks[0]
    assert why.value.code == code
    assert why.value.ends_stream
    assert stream.took() == []
    assert len(rig.sessions) == 0


async def test_a_client_that_ends_its_stream_is_answered_first(rig: SessionRig) -> None:
    stream = await rig.open()
    stream.room.clear()
    stream.says(settings=subscription())
    stream.half_closes()
    await settle(20)
    assert not rig.tasks[0].done()
    stream.room.set()
    await rig.tasks[0]
    assert len(stream.took()) == 1
    assert members(rig) == ["c@1"], "it opens another one"


async def test_a_cancelled_stream_leaves_no_task(rig: SessionRig) -> None:
    before = asyncio.all_tasks()
    await rig.open(subscription())
    rig.tasks[0].cancel()
    await settle(20)
    assert rig.tasks[0].cancelled()
    assert asyncio.all_tasks() == before


async def test_other_commands_are_passed_over(rig: SessionRig) -> None:
    stream = await rig.open()
    stream.says()
    stream.says(verify_message_result=schema_pb2.VerifyMessageResult(nonce="7"))
    stream.says(reconnect_endpoints_command=schema_pb2.ReconnectEndpointsCommand(nonce="7"))
    stream.says(settings=subscription())
    for nonce in ("7", "-1", "x", "9" * 400, "²"):
        stream.says(verify_message_result=schema_pb2.VerifyMessageResult(nonce=nonce))
        stream.says(thread_stack_trace=schema_pb2.ThreadStackTrace(nonce=nonce))
    await settle(20)
    assert len(stream.took()) == 1
    assert not rig.tasks[0].done()


async def test_a_client_that_does_not_read_gets_no_more(rig: SessionRig) -> None:
    stream = await rig.open()
    stream.room.clear()
    for _ in range(300):
        stream.says(settings=subscription())
    await settle(20)
    stream.room.set()
    with pytest.raises(RpcRefused) as why:
        await rig.tasks[0]
    assert why.value.code == Code.TOO_MANY_REQUESTS


async def test_settings_of_another_group_leave_the_first(rig: SessionRig) -> None:
    stream = await rig.open(subscription())
    stream.says(settings=subscription(group="h"))
    await settle(20)
    assert members(rig) == []
    assert members(rig, "h") == ["c@1"]
    assert rig.released == [("c@1", GROUP)]


# Heartbeats and silence


async def test_a_heartbeat_of_nobody_is_told_so(rig: SessionRig) -> None:
    with pytest.raises(RpcRefused) as why:
        await rig.beat()
    assert why.value.code == Code.UNRECOGNIZED_CLIENT_TYPE
    assert len(rig.sessions) == 0


async def test_heartbeats_keep_a_client(rig: SessionRig) -> None:
    rig.sessions.start()
    rig.housekeeping.start()
    stream = await rig.open(subscription())
    stream.half_closes()
    for _ in range(30):
        assert await rig.beat() == Code.OK
        rig.clock.advance(10)
    assert members(rig) == ["c@1"]
    rig.clock.advance(90)
    assert members(rig) == ["c@1"]
    rig.clock.advance(40)
    assert members(rig) == []
    assert len(rig.sessions) == 0
    assert rig.released == [("c@1", GROUP)]
    with pytest.raises(RpcRefused):
        await rig.beat()


async def test_the_stream_of_a_silent_client_ends(rig: SessionRig) -> None:
    """It opens another one and sends its settings again, if it is there."""
    rig.sessions.start()
    await rig.open(subscription())
    rig.clock.advance(140)
    await settle(20)
    assert rig.tasks[0].done()
    await rig.open(subscription())
    assert members(rig) == ["c@1"]


async def test_housekeeping_alone_ends_a_client_too(rig: SessionRig) -> None:
    await rig.open(subscription())
    rig.clock.advance(121)
    rig.housekeeping.scan()
    assert len(rig.sessions) == 0
    assert rig.released == [("c@1", GROUP)]


async def test_a_client_that_leaves_is_gone_at_once(rig: SessionRig) -> None:
    stream = await rig.open(subscription())
    await rig.leave()
    assert members(rig) == []
    assert rig.released == [("c@1", GROUP)]
    await settle(20)
    assert not rig.tasks[0].done(), "the client ends it"
    stream.half_closes()
    await rig.tasks[0]
    await rig.leave()
    assert rig.released == [("c@1", GROUP)]


async def test_a_producers_end_releases_nothing(rig: SessionRig) -> None:
    await rig.open(publishing("T"))
    await rig.leave()
    assert rig.released == []


async def test_a_stop_gives_nothing_to_others(rig: SessionRig) -> None:
    timers = rig.clock.pending_count
    rig.sessions.start()
    await rig.open(subscription())
    await rig.open(publishing("T"), a_call("p@1"))
    rig.sessions.stop()
    await settle(20)
    assert all(task.done() for task in rig.tasks)
    assert len(rig.sessions) == rig.consumers.client_count == rig.producers.client_count == 0
    assert rig.released == []
    assert rig.clock.pending_count == timers


# Receives


async def test_a_receive_without_settings_makes_a_member(rig: SessionRig) -> None:
    tags = schema_pb2.FilterExpression(type=schema_pb2.TAG, expression="A")
    rig.sessions.receives(a_call(), GROUP, TOPIC, tags)
    rig.sessions.receives(a_call(), GROUP, "U", ANY)
    info = rig.consumers.group(GROUP)
    assert info is not None
    assert [(each.topic, each.sub_string) for each in info.subscriptions.values()] == [
        ("T", "A"),
        ("U", "*"),
    ]
    assert await rig.beat() == Code.OK
    await rig.open(subscription("U"))
    assert list(info.subscriptions) == ["U"], "what settings say counts"


@pytest.mark.parametrize(
    ("said", "timeout_s"),
    [({"seconds": 10, "nanos": 500_000_000}, 10.5), (None, 3.0), ({"seconds": -1}, 3.0)],
)
async def test_a_receive_tells_how_long_its_client_waits_for_an_answer(
    rig: SessionRig, said: dict[str, int] | None, timeout_s: float
) -> None:
    assert rig.sessions.receives(a_call("other@1"), GROUP, TOPIC, ANY) == 3.0
    settings = subscription()
    if said is not None:
        settings.request_timeout.seconds = said["seconds"]
        settings.request_timeout.nanos = said.get("nanos", 0)
    await rig.open(settings)
    for group, topic in ((GROUP, TOPIC), (GROUP, "U"), (GROUP, "U"), ("h", TOPIC)):
        assert rig.sessions.receives(a_call(), group, topic, ANY) == timeout_s


async def test_receives_are_signs_of_life(rig: SessionRig) -> None:
    rig.sessions.start()
    rig.housekeeping.start()
    for _ in range(20):
        rig.sessions.receives(a_call(), GROUP, TOPIC, ANY)
        rig.clock.advance(20)
    assert members(rig) == ["c@1"]
    assert rig.released == []
    rig.clock.advance(131)
    assert members(rig) == []


async def test_a_receive_brings_a_lost_membership_back(rig: SessionRig) -> None:
    await rig.open(subscription())
    (peer,) = rig.consumers.members(GROUP)
    rig.consumers.unregister(peer, GROUP)
    rig.sessions.receives(a_call(), GROUP, TOPIC, ANY)
    assert members(rig) == ["c@1"]


async def test_a_receive_for_another_group_changes_nothing(rig: SessionRig) -> None:
    await rig.open(subscription())
    rig.sessions.receives(a_call(), "h", TOPIC, ANY)
    assert members(rig) == ["c@1"]
    assert members(rig, "h") == []


async def test_that_namespaces_are_not_looked_at_is_told_once(
    rig: SessionRig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await rig.open(subscription())
        assert not caplog.records
        for client_id in ("c@2", "c@3"):
            await rig.open(subscription(), a_call(client_id, namespace="another-tenant"))
    assert len(caplog.records) == 1
    assert "names the namespace 'another-tenant'" in caplog.text


# One way at a time


async def test_a_group_whose_members_pull_is_closed(
    rig: SessionRig, caplog: pytest.LogCaptureFixture
) -> None:
    old = old_member(rig)
    with caplog.at_level(logging.WARNING):
        stream = await rig.open(subscription())
        assert stream.took()[0].status.code == Code.OK, "it starts, and waits"
        for _ in range(3):
            with pytest.raises(RemoteProtocolError, match="has members that pull"):
                await rig.beat()
            with pytest.raises(RemoteProtocolError, match="has members that pull"):
                rig.sessions.receives(a_call(), GROUP, TOPIC, ANY)
    assert len(caplog.records) == 1
    assert "may not consume yet: group g has members" in caplog.text
    with pytest.raises(RemoteProtocolError, match="has members that pull"):
        rig.sessions.receives(a_call("d@1"), GROUP, TOPIC, ANY)
    assert members(rig) == ["old@1"]
    old.close("leaves")
    assert await rig.beat() == Code.OK
    assert members(rig) == ["c@1"]


async def test_an_account_says_nothing_for_another_one(rig: SessionRig) -> None:
    account = Account("one", b"secret", Path("x.yml"), AddressList())
    ours, theirs = (
        a_call(account=account),
        a_call(account=replace(account, access_key="two")),
    )
    stream = await rig.open(subscription(), ours)
    await rig.leave(theirs)
    with pytest.raises(RpcRefused):
        await rig.beat(theirs)
    other = await rig.open(subscription(group="h"), theirs)
    assert members(rig) == members(rig, "h") == ["c@1"]
    await rig.leave(theirs)
    assert members(rig) == ["c@1"]
    assert len(stream.took()) == len(other.took()) == 1


# Bounds


async def test_clients_are_bounded(rig: SessionRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLIENTS_MAX", 3)
    monkeypatch.setattr(limits, "CLIENTS_PER_HOST_MAX", 2)
    hosts = {"a": "192.0.2.1:1", "b": "192.0.2.1:2", "c": "192.0.2.1:3", "d": "192.0.2.2:1"}
    for name, peer in hosts.items():
        if name == "c":
            with pytest.raises(RpcRefused) as why:
                rig.sessions.receives(a_call(name, peer=peer), GROUP, TOPIC, ANY)
            assert why.value.code == Code.TOO_MANY_REQUESTS
        else:
            rig.sessions.receives(a_call(name, peer=peer), GROUP, TOPIC, ANY)
    with pytest.raises(RpcRefused):
        rig.sessions.receives(a_call("e", peer="192.0.2.3:1"), GROUP, TOPIC, ANY)
    assert len(rig.sessions) == 3
    await rig.leave(a_call("a"))
    rig.sessions.receives(a_call("c", peer="192.0.2.1:3"), GROUP, TOPIC, ANY)


async def test_metadata_is_not_kept(rig: SessionRig) -> None:
    """It may have 16 KiB, of each of many clients."""

    class Said(dict[str, str]):
        pass

    async def told() -> list[weakref.ref[Said]]:
        said = [Said(), Said()]
        rig.sessions.receives(a_call(metadata=said[0]), GROUP, TOPIC, ANY)
        await rig.beat(a_call(metadata=said[1]))
        return [weakref.ref(each) for each in said]

    kept = await told()
    gc.collect()
    assert len(rig.sessions) == 1
    assert [each() for each in kept] == [None, None]


async def test_what_clients_say_is_bounded(
    rig: SessionRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = subscription("T", "U")
    monkeypatch.setattr(limits, "ALL_SETTINGS_SIZE_MAX", 2 * settings.ByteSize())
    for name in ("a", "b"):
        await rig.open(settings, a_call(name))
    await rig.open(settings, a_call("c"))
    with pytest.raises(RpcRefused) as why:
        await rig.tasks[2]
    assert why.value.code == Code.TOO_MANY_REQUESTS
    await rig.open(settings, a_call("a"))
    await rig.leave(a_call("a"))
    await rig.leave(a_call("b"))
    await rig.open(settings, a_call("c"))
    assert members(rig) == ["c"]
