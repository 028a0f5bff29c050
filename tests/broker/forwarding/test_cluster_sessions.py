"""The life of a client of several brokers behind one endpoint."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.forwarding import cluster_sessions as limits
from skylarkmq.broker.grpc.calls import RpcRefused
from skylarkmq.broker.grpc.peer import LEAVES, GrpcPeer
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.broker.forwarding.cluster_session_rig import ClusterRig, at, from_client
from tests.broker.grpc.session_rig import (
    GROUP,
    TOPIC,
    SessionRig,
    Stream,
    publishing,
    subscription,
)
from tests.broker.grpc.test_peer import check_request
from tests.broker.grpc.test_sessions import old_member
from tests.support.manual_clock import settle

B, C = "broker-b", "broker-c"


@pytest.fixture
async def rig() -> AsyncIterator[ClusterRig]:
    rig = ClusterRig(B, C)
    rig.start()
    rig.other_brokers.places = {TOPIC: [at(B), at(C)], "U": [at(B)]}
    yield rig
    for task in rig.tasks:
        task.cancel()
    await asyncio.gather(*rig.tasks, return_exceptions=True)
    assert not any(rig.others.lines.values()), "the end of a client's stream ends those to brokers"


async def opened(rig: ClusterRig, settings: schema_pb2.Settings, **call: Any) -> Stream:
    return await rig.open(settings, from_client(**call))


def member_of(rig: SessionRig, group: str = GROUP) -> GrpcPeer:
    """The only client of a group."""
    (peer,) = rig.consumers.members(group)
    assert isinstance(peer, GrpcPeer)
    return peer


async def passed(rig: ClusterRig, *steps_s: float) -> None:
    for step_s in steps_s:
        await settle(20)
        rig.clock.advance(step_s)
    await settle(20)


def bodies(stream: Stream) -> list[str | None]:
    return [command.WhichOneof("command") for command in stream.took()]


# Settings


async def test_all_brokers_of_its_topics_know_a_client(rig: ClusterRig) -> None:
    stream = await opened(rig, subscription(TOPIC))
    for broker in (rig, rig[B], rig[C]):
        assert member_of(broker).client_id == "c@1"
        assert member_of(broker).remote_address == "192.0.2.5:4711"
    assert bodies(stream) == ["settings"], "one answer"
    assert rig.forwarder.answered == {(B, Code.OK): 1, (C, Code.OK): 1}


async def test_a_producer_is_known_by_the_topics_that_a_broker_has(rig: ClusterRig) -> None:
    await opened(rig, publishing("U"))
    assert rig[B].producers.client_count == 1
    assert not rig.others.opened[C]


async def test_the_answer_is_this_brokers_where_it_has_a_topic(rig: ClusterRig) -> None:
    rig.group(retry_max_times=4)
    rig[B].group(retry_max_times=7)
    rig.others.silent |= {C}
    stream = await opened(rig, subscription(TOPIC))
    (answer,) = stream.took()
    assert answer.settings.backoff_policy.max_attempts == 8, "another broker's"
    rig.topic(TOPIC)
    stream.says(settings=subscription(TOPIC))
    await settle(20)
    (answer,) = stream.took()
    assert answer.settings.backoff_policy.max_attempts == 5, "its own"


async def test_a_client_without_topics_is_this_brokers(rig: ClusterRig) -> None:
    stream = await opened(rig, publishing())
    assert bodies(stream) == ["settings"]
    assert not rig.others.opened


async def test_no_client_waits_for_brokers_that_do_not_answer(rig: ClusterRig) -> None:
    rig.others.silent |= {B}
    rig.others.down |= {C}
    stream = await opened(rig, subscription(TOPIC))
    assert bodies(stream) == []
    await passed(rig, 1.6)
    assert bodies(stream) == ["settings"]
    rig.other_brokers.is_known = False
    rig.other_brokers.way.clear()
    stream.says(settings=subscription(TOPIC))
    await passed(rig, 1.6, 1.6)
    assert bodies(stream) == ["settings"], "name servers are silent, too"


async def test_an_answer_is_that_to_the_newest_settings(rig: ClusterRig) -> None:
    stream = await opened(rig, subscription("U"))
    stream.took()
    (line,) = rig.others.lines[B]
    line.way.clear()
    stream.says(settings=subscription("U", kind=schema_pb2.SIMPLE_CONSUMER))
    await passed(rig, 1.6)
    assert bodies(stream) == ["settings"], "this broker's"
    stream.says(settings=subscription("U", expression="red"))
    await settle(20)
    line.way.set()
    await settle(40)
    (answer,) = stream.took()
    assert answer.settings.subscription.subscriptions[0].expression.expression == "red"


async def test_a_broker_that_is_known_to_be_away_is_not_waited_for(rig: ClusterRig) -> None:
    rig.others.down |= {B}
    stream = await opened(rig, subscription("U"))
    assert bodies(stream) == ["settings"]
    stream.says(settings=subscription("U"))
    await settle(20)
    assert bodies(stream) == ["settings"]


async def test_a_broker_that_refuses_the_client_refuses_its_settings(
    rig: ClusterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(call: Any, stream: Any) -> None:
        await stream.read()
        status = schema_pb2.Status(code=Code.FORBIDDEN, message="no right")
        await stream.write(schema_pb2.TelemetryCommand(status=status))

    for name in (B, C):
        monkeypatch.setattr(rig[name].rpcs, "telemetry", refuses)
    await opened(rig, subscription(TOPIC))
    (task,) = rig.tasks
    with pytest.raises(RpcRefused) as caught:
        await task
    assert (caught.value.code, caught.value.message) == (Code.FORBIDDEN, "no right")


async def test_new_settings_go_to_all_brokers(rig: ClusterRig) -> None:
    stream = await opened(rig, subscription("U"))
    assert rig.others.opened == {B: 1}
    stream.says(settings=subscription("U", TOPIC))
    await settle(20)
    assert rig.others.opened == {B: 1, C: 1}
    for name in (B, C):
        assert set(member_of(rig[name]).settings.subscriptions) == {"U", TOPIC}
    stream.says(settings=subscription("V"))
    await settle(20)
    assert not any(rig.others.lines.values()), "no broker has it"


async def test_the_newest_stream_of_a_client_counts(rig: ClusterRig) -> None:
    older = await opened(rig, subscription())
    newer = await opened(rig, subscription())
    assert [len(rig.others.lines[name]) for name in (B, C)] == [1, 1]
    older.took()
    newer.took()
    member_of(rig[B]).push(check_request())
    await settle(20)
    assert (bodies(older), len(bodies(newer))) == ([], 1)
    older.half_closes()
    await settle(20)
    assert [len(rig.others.lines[name]) for name in (B, C)] == [1, 1]
    newer.half_closes()
    await settle(20)
    assert not any(rig.others.lines.values())
    rpcs: Any = rig.rpcs
    assert rpcs._clients == {}


# What brokers ask


async def test_questions_about_transactions_come_from_all_brokers(rig: ClusterRig) -> None:
    rig.topic(TOPIC)
    stream = await opened(rig, publishing(TOPIC))
    stream.took()
    for broker in (rig, rig[B], rig[C]):
        (peer,) = broker.producers.clients(TOPIC)
        peer.push(check_request())
    await settle(20)
    asked = [
        command.recover_orphaned_transaction_command.transaction_id for command in stream.took()
    ]
    assert sorted(asked) == ["K@broker-a", f"K@{B}", f"K@{C}"]


def stacks_of(peer: GrpcPeer) -> asyncio.Task[RemotingCommand]:
    fields = {"consumerGroup": GROUP, "clientId": "c@1", "jstackEnable": "true"}
    command = RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, fields)
    return asyncio.ensure_future(peer.call(command, 5.0))


async def test_answers_go_to_the_broker_that_has_asked(rig: ClusterRig) -> None:
    stream = await opened(rig, subscription())
    stream.took()
    tasks = {
        name: stacks_of(member_of(broker))
        for name, broker in (("own", rig), (B, rig[B]), (C, rig[C]))
    }
    await settle(20)
    nonces = [each.print_thread_stack_trace_command.nonce for each in stream.took()]
    assert [nonce.partition("@")[2] for nonce in nonces] == ["", B, C]
    for nonce in [*reversed(nonces), f"7@{B}", "7@nobody", "", "@", f"x@{C}"]:
        text = f"stacks for {nonce.partition('@')[2] or 'own'}"
        answer = schema_pb2.ThreadStackTrace(nonce=nonce, thread_stack_trace=text)
        stream.says(thread_stack_trace=answer)
    stream.says(verify_message_result=schema_pb2.VerifyMessageResult(nonce=f"9@{B}"))
    stream.says(recover_orphaned_transaction_command={})
    await settle(40)
    for name, task in tasks.items():
        assert f"stacks for {name}" in task.result().body.decode()
    assert not rig.tasks[0].done()


async def test_a_message_is_verified_for_another_broker(rig: ClusterRig) -> None:
    stream = await opened(rig, subscription())
    stream.took()
    fields = {"consumerGroup": GROUP, "clientId": "c@1"}
    command = RemotingCommand.request(
        RequestCode.CONSUME_MESSAGE_DIRECTLY, fields, check_request().body
    )
    task = asyncio.ensure_future(member_of(rig[C]).call(command, 5.0))
    await settle(20)
    (asked,) = stream.took()
    question = asked.verify_message_command
    assert question.message.body == b"half"
    result = schema_pb2.VerifyMessageResult(nonce=question.nonce)
    stream.says(verify_message_result=result, status=schema_pb2.Status(code=Code.OK))
    await settle(20)
    assert b"CR_SUCCESS" in task.result().body


# Streams that break


async def test_a_stream_that_breaks_is_opened_again_with_the_newest_settings(
    rig: ClusterRig,
) -> None:
    stream = await opened(rig, subscription("U"))
    peer = member_of(rig[B])
    rig.others.cut(B)
    await settle(20)
    assert not rig.others.lines[B]
    peer.close("idle_timeout")
    stream.says(settings=subscription("U", "W"))
    await settle(20)
    await passed(rig, limits.FIRST_WAIT_S)
    assert rig.others.opened[B] == 2
    assert set(member_of(rig[B]).settings.subscriptions) == {"U", "W"}


async def test_what_a_broker_says_wrong_ends_its_stream_alone(rig: ClusterRig) -> None:
    stream = await opened(rig, subscription())
    stream.took()
    nothing = schema_pb2.TelemetryCommand()
    status = schema_pb2.TelemetryCommand(status=schema_pb2.Status(code=7))
    for command in (nothing, status, schema_pb2.TelemetryCommand(settings={})):
        rig.others.lines[B][0].back.put_nowait(command.SerializeToString())
    rig.others.lines[C][0].back.put_nowait(b"\xff\xff")
    await settle(20)
    assert [len(rig.others.lines[name]) for name in (B, C)] == [1, 0]
    await passed(rig, limits.FIRST_WAIT_S)
    assert rig.others.opened == {B: 1, C: 2}
    assert stream.took() == []


async def test_it_is_tried_more_and_more_seldom(rig: ClusterRig) -> None:
    await opened(rig, subscription("U"))
    assert rig.others.opened[B] == 1
    rig.others.down |= {B}
    rig.others.cut(B)
    times: list[float] = []
    rig.others.on_call = lambda: times.append(rig.clock.monotonic())
    await passed(rig, *[0.5] * 200)
    waits = [after - before for before, after in pairwise(times)]
    assert waits[:5] == [1.0, 2.0, 4.0, 8.0, limits.MOST_WAIT_S]
    assert max(waits) == limits.MOST_WAIT_S
    rig.others.down.clear()
    await passed(rig, limits.MOST_WAIT_S)
    assert rig.others.opened[B] == 2
    times.clear()
    rig.others.cut(B)
    await passed(rig, limits.FIRST_WAIT_S)
    assert len(times) == 1, "it was well in between"


async def test_a_broker_that_is_there_again_has_the_client_at_its_next_heartbeat(
    rig: ClusterRig,
) -> None:
    await opened(rig, subscription("U"))
    rig.others.down |= {B}
    rig.others.cut(B)
    await passed(rig, *[0.5] * 40)
    member_of(rig[B]).close("it has started again")
    rig.others.down.clear()
    assert await rig.beat(from_client()) == Code.OK
    await settle(20)
    assert member_of(rig[B]).client_id == "c@1"


async def test_a_client_that_a_broker_has_forgotten_stays_so_while_it_is_silent(
    rig: ClusterRig,
) -> None:
    await opened(rig, subscription("U"))
    member_of(rig[B]).close("idle_timeout")
    await passed(rig, *[1.0] * 14)
    assert not rig[B].consumers.members(GROUP)
    assert await rig.beat(from_client()) == Code.OK
    await settle(20)
    assert member_of(rig[B]).client_id == "c@1"


async def test_a_stream_follows_the_brokers_master(rig: ClusterRig) -> None:
    rig.others.rigs["replica"] = rig[B]
    await opened(rig, subscription("U"))
    rig.other_brokers.places["U"] = [at(B, "replica")]
    await rig.beat(from_client())
    await settle(20)
    assert not rig.others.lines[B]
    assert len(rig.others.lines["replica"]) == 1
    rig.others.down |= {"replica"}
    rig.others.cut("replica")
    rig.other_brokers.places["U"] = [at(B)]
    await passed(rig, limits.FIRST_WAIT_S)
    assert len(rig.others.lines[B]) == 1, "looked up before it is tried again"


async def test_a_broker_that_takes_nothing_is_left(rig: ClusterRig) -> None:
    stream = await opened(rig, subscription("U"))
    task = stacks_of(member_of(rig[B]))
    await settle(20)
    nonce = stream.took()[-1].print_thread_stack_trace_command.nonce
    rig.others.room.clear()
    stream.says(thread_stack_trace=schema_pb2.ThreadStackTrace(nonce=nonce))
    await passed(rig, limits.WRITE_LIMIT_S)
    assert rig.others.opened[B] == 2
    stream.says(settings=subscription("U"))
    await passed(rig, limits.WRITE_LIMIT_S, 1.0, 1.0)
    assert rig.others.opened[B] == 3
    assert bodies(stream) == ["settings"]
    task.cancel()


async def test_a_broker_that_takes_no_settings_is_tried_again(rig: ClusterRig) -> None:
    rig.others.room.clear()
    stream = await opened(rig, subscription("U"))
    assert rig.others.opened == {B: 1}
    await passed(rig, limits.WRITE_LIMIT_S, limits.FIRST_WAIT_S)
    assert rig.others.opened == {B: 2}
    rig.others.room.set()
    await settle(20)
    assert member_of(rig[B]).client_id == "c@1"
    assert bodies(stream) == ["settings"]


async def test_a_broker_is_not_told_again_of_a_client_that_has_left(rig: ClusterRig) -> None:
    stream = await opened(rig, subscription(TOPIC))
    rig.others.room.clear()
    stream.says(settings=subscription(TOPIC))  # which waits for room
    await settle(20)
    await rig.leave(from_client())
    await passed(rig, limits.WRITE_LIMIT_S)
    rig.others.room.set()
    await passed(rig, 1.0)
    assert rig.others.opened == {B: 1, C: 1}
    assert not rig[B].consumers.members(GROUP)


# Heartbeats


async def test_heartbeats_go_to_all_brokers(rig: ClusterRig) -> None:
    await opened(rig, subscription())
    before_s = member_of(rig[B]).last_s
    rig[B].clock.advance(30)
    assert await rig.beat(from_client()) == Code.OK
    assert rig.others.called == [("Heartbeat", B), ("Heartbeat", C)]
    assert member_of(rig[B]).last_s == before_s + 30


async def test_a_client_that_nobody_knows_is_told_so(rig: ClusterRig) -> None:
    with pytest.raises(RpcRefused) as caught:
        await rig.beat(from_client())
    assert caught.value.code == Code.UNRECOGNIZED_CLIENT_TYPE
    assert rig.others.called == []


async def test_a_broker_that_has_forgotten_the_client_gets_its_settings(rig: ClusterRig) -> None:
    stream = await opened(rig, subscription())
    stream.took()
    member_of(rig[B]).close(LEAVES)  # its stream stays
    assert await rig.beat(from_client()) == Code.OK
    await settle(20)
    assert member_of(rig[B]).client_id == "c@1"
    assert rig.others.opened[B] == 1
    assert bodies(stream) == [], "the client has not asked"


async def test_a_refusal_counts_more_than_others_consent(rig: ClusterRig) -> None:
    old_member(rig[C])
    stream = await opened(rig, subscription())
    assert bodies(stream) == ["settings"]
    assert await rig.beat(from_client()) == Code.FORBIDDEN
    rig.other_brokers.places[TOPIC] = [at(B)]
    assert await rig.beat(from_client()) == Code.OK


async def test_the_brokers_own_refusal_counts_and_others_hear_of_the_client(
    rig: ClusterRig,
) -> None:
    await opened(rig, subscription())
    member_of(rig).close("idle_timeout")
    old_member(rig)
    await opened(rig, subscription())
    with pytest.raises(RemoteProtocolError) as caught:
        await rig.beat(from_client())
    assert caught.value.response_code == ResponseCode.NO_PERMISSION
    assert rig.others.called == [("Heartbeat", B), ("Heartbeat", C)]


async def test_a_broker_that_does_not_answer_fails_no_heartbeat(rig: ClusterRig) -> None:
    await opened(rig, subscription())
    rig.others.down |= {B}
    rig.others.silent |= {C}
    task = asyncio.ensure_future(rig.beat(from_client()))
    await passed(rig, 1.0)
    assert not task.done()
    await passed(rig, 0.6)
    assert task.result() == Code.OK


async def test_silent_name_servers_hold_no_heartbeat_up(rig: ClusterRig) -> None:
    await opened(rig, subscription())
    rig.other_brokers.is_known = False
    rig.other_brokers.way.clear()
    task = asyncio.ensure_future(rig.beat(from_client()))
    await passed(rig, 1.6)
    assert task.result() == Code.OK
    assert rig.others.called == [("Heartbeat", B), ("Heartbeat", C)], "as it was"


# The end


async def test_who_leaves_leaves_all_brokers(rig: ClusterRig) -> None:
    await opened(rig, subscription())
    await rig.leave(from_client())
    assert rig.others.called == [("NotifyClientTermination", B), ("NotifyClientTermination", C)]
    for broker in (rig, rig[B], rig[C]):
        assert broker.released == [("c@1", GROUP)]
        assert not broker.consumers.members(GROUP)
    assert not any(rig.others.lines.values())
    rig.others.down |= {B}
    await opened(rig, subscription())
    await rig.leave(from_client())
    assert rig[C].released == [("c@1", GROUP)] * 2
    await rig.leave(from_client("c@2"))
    assert rig.others.called[3:] == [], "nobody knows it"


async def test_who_leaves_while_its_settings_are_given_stays_away(rig: ClusterRig) -> None:
    stream = await opened(rig, publishing())
    rig.other_brokers.is_known = False
    rig.other_brokers.way.clear()
    stream.says(settings=publishing("U"))
    await passed(rig, 0.7)
    task = asyncio.ensure_future(rig.leave(from_client()))
    rig.other_brokers.is_known = True
    await settle(20)
    rig.other_brokers.way.set()
    await settle(20)
    assert task.done() and rig.others.called == [("NotifyClientTermination", B)]
    assert not rig.others.opened


async def test_streams_end_with_the_clients_own(rig: ClusterRig) -> None:
    timers = rig.clock.pending_count
    stream = await opened(rig, subscription())
    rig.others.down |= {B}
    rig.others.cut(B)
    await settle(20)
    stream.half_closes()
    await settle(20)
    assert rig.tasks[0].done()
    await passed(rig, 60)
    assert rig.others.opened == {B: 1, C: 1}
    assert rig.clock.pending_count <= timers


async def test_a_client_that_is_silent_is_forgotten_by_all(rig: ClusterRig) -> None:
    await opened(rig, subscription())
    rig.clock.advance(121)
    rig.sessions.scan()
    await settle(20)
    assert rig.tasks[0].done()
    assert not any(rig.others.lines.values())


# Calls that were forwarded


async def test_a_call_that_was_forwarded_goes_no_further(rig: ClusterRig) -> None:
    call = from_client()
    call.metadata = {**call.metadata, "x-skylarkmq-client": call.peer}
    stream = await rig.open(subscription(), call)
    assert bodies(stream) == ["settings"]
    assert member_of(rig).client_id == "c@1"
    assert await rig.beat(call) == Code.OK
    await rig.leave(call)
    assert rig.others.called == [] and not rig.others.opened


async def test_who_leaves_by_another_endpoint_leaves_this_one(rig: ClusterRig) -> None:
    await opened(rig, subscription())
    call = from_client()
    call.metadata = {**call.metadata, "x-skylarkmq-client": call.peer}
    await rig.leave(call)
    await settle(20)
    assert not any(rig.others.lines.values())
    assert not rig.consumers.members(GROUP)
    assert rig.others.called == [], "the other endpoint tells them"


async def test_a_replica_that_follows_takes_none(rig: ClusterRig) -> None:
    rig.leads = False
    call = from_client()
    call.metadata = {**call.metadata, "x-skylarkmq-client": call.peer}
    await rig.open(subscription(), call)
    with pytest.raises(RemoteProtocolError, match="does not lead broker-a"):
        await rig.tasks[0]
    with pytest.raises(RemoteProtocolError, match="does not lead broker-a"):
        await rig.beat(call)
    with pytest.raises(RemoteProtocolError, match="does not lead broker-a"):
        await rig.leave(call)


async def test_its_clients_are_known_to_the_sets_master(rig: ClusterRig) -> None:
    rig.leads = False
    rig.topic(TOPIC)
    rig.others.rigs["master"] = rig[C]
    rig.other_brokers.places[TOPIC] = [at("broker-a", "master"), at(B)]
    stream = await opened(rig, subscription())
    assert bodies(stream) == ["settings"]
    assert rig.others.opened == {"master": 1, B: 1}
    rig.leads = True
    assert await rig.beat(from_client()) == Code.OK
    await settle(20)
    assert [len(rig.others.lines[each]) for each in ("master", B)] == [0, 1], "it leads by now"


# Limits


async def test_the_brokers_of_a_client_are_bounded(
    rig: ClusterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "BROKERS_MAX", 1)
    await opened(rig, subscription(TOPIC, "U"))
    assert rig.others.opened == {B: 1}


async def test_topics_are_looked_up_some_at_a_time(
    rig: ClusterRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TOPICS_AT_A_TIME", 3)
    rig.other_brokers.is_known = False
    under_way, most = 0, 0

    async def of(topic: str) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await settle(2)
        under_way -= 1
        return rig.other_brokers.places.get(topic, [])

    monkeypatch.setattr(rig.other_brokers, "of", of)
    await opened(rig, subscription(*(f"T{number}" for number in range(20)), "U"))
    await settle(40)
    assert most == 3
    assert rig.others.opened == {B: 1}
