"""A group is consumed in one way at a time: its members pull, or they pop."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.broker.controller import BrokerController
from skylarkmq.protocol.bodies.group import ConsumerData, SubscriptionData
from skylarkmq.protocol.codes import (
    POLLING_TIMEOUT,
    LanguageCode,
    RequestCode,
    ResponseCode,
)
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import RemoteProtocolError
from tests.broker.group_rig import FakeConnection
from tests.support.heartbeats import consumer_data, heartbeat, subscription
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields

GROUP, TOPIC = "cg", "T"
COMMIT, SUBSCRIPTION = 1, 4
REFUSED = ResponseCode.NO_PERMISSION


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[BrokerController]:
    async with live_broker(tmp_path) as controller:
        yield controller


@pytest.fixture
async def client(broker: BrokerController) -> AsyncIterator[RawClient]:
    """A connection to a broker whose topic has a message."""
    peer = await RawClient.open(broker.listen_address)
    await peer.call(RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC), b"0")
    yield peer
    await peer.close()


def consumer(group: str = GROUP, how: str = "CONSUME_PASSIVELY") -> ConsumerData:
    return ConsumerData(
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
        consume_type=how,
        group_name=group,
        message_model="CLUSTERING",
        subscription_data_set=[SubscriptionData(topic=TOPIC, sub_string="*")],
    )


def pop_member(broker: BrokerController, name: str = "new@1", group: str = GROUP) -> Any:
    """A client of RocketMQ 5 in a group."""
    peer: Any = FakeConnection(f"192.0.2.9:{name[-1]}")
    broker.parts.consumers.register(
        peer, name, LanguageCode.JAVA, 479, consumer(group), divides=False
    )
    return peer


async def beat(
    client: RawClient,
    *groups: str,
    how: str = "CONSUME_PASSIVELY",
    model: str = "CLUSTERING",
    client_id: str = "old@1",
) -> RemotingCommand:
    """A heartbeat of a member that pulls."""
    members = [
        consumer_data(group, subscription(TOPIC), consumeType=how, messageModel=model)
        for group in groups or (GROUP,)
    ]
    body = heartbeat(client_id, *members, producers=["pg"])
    return await client.call(RequestCode.HEART_BEAT, {}, body)


async def ask(client: RawClient, code: int, **fields: str) -> RemotingCommand:
    return await client.call(code, {"consumerGroup": GROUP, **fields})


async def commit(client: RawClient) -> RemotingCommand:
    return await ask(
        client, RequestCode.UPDATE_CONSUMER_OFFSET, topic=TOPIC, queueId="0", commitOffset="1"
    )


async def pull(client: RawClient, flags: int) -> RemotingCommand:
    fields = pull_fields(TOPIC, sysFlag=str(flags), subVersion="0", commitOffset="1")
    if not flags & SUBSCRIPTION:
        del fields["subscription"]
    return await client.call(RequestCode.PULL_MESSAGE, fields)


async def lock(client: RawClient) -> RemotingCommand:
    queue = {"topic": TOPIC, "brokerName": "b", "queueId": 0}
    body = {"consumerGroup": GROUP, "clientId": "old@1", "mqSet": [queue]}
    return await client.call(RequestCode.LOCK_BATCH_MQ, {}, json.dumps(body).encode())


async def test_who_pulls_is_refused_while_clients_pop(
    broker: BrokerController, client: RawClient
) -> None:
    peer = pop_member(broker)
    for answer in (
        await beat(client),
        await commit(client),
        await pull(client, 0),
        await pull(client, COMMIT | SUBSCRIPTION),
        await lock(client),
        await ask(client, RequestCode.GET_CONSUMER_LIST_BY_GROUP),
    ):
        assert answer.code == REFUSED
        assert "group cg has members that pop" in (answer.remark or "")
        assert "new@1" in (answer.remark or "")
    assert broker.parts.offsets.query(GROUP, TOPIC, 0) == -1
    peer.close("leaves")
    for answer in (await beat(client), await pull(client, 0), await commit(client)):
        assert answer.code == ResponseCode.SUCCESS


async def test_who_only_reads_goes_on(broker: BrokerController, client: RawClient) -> None:
    """As Spark, assigned reads and tools do."""
    pop_member(broker)
    for _ in range(3):
        assert (await pull(client, SUBSCRIPTION)).code == ResponseCode.SUCCESS
    assert (await pull(client, SUBSCRIPTION | COMMIT)).code == REFUSED
    assert broker.parts.offsets.query(GROUP, TOPIC, 0) == -1


async def test_what_was_pulled_plainly_before_is_looked_at_again(
    broker: BrokerController, client: RawClient
) -> None:
    """The fast path commits what rides on a pull without asking anybody."""
    for _ in range(3):  # the first opens the path
        assert (await pull(client, SUBSCRIPTION | COMMIT)).code == ResponseCode.SUCCESS
    broker.parts.offsets.remove_group(GROUP)
    pop_member(broker)
    assert (await pull(client, SUBSCRIPTION)).code == ResponseCode.SUCCESS
    assert (await pull(client, SUBSCRIPTION | COMMIT)).code == REFUSED
    assert broker.parts.offsets.query(GROUP, TOPIC, 0) == -1


async def test_a_client_that_pops_is_refused_while_members_pull(
    broker: BrokerController, client: RawClient
) -> None:
    assert (await beat(client)).code == ResponseCode.SUCCESS
    with pytest.raises(RemoteProtocolError, match="'old@1'") as why:
        pop_member(broker)
    assert why.value.response_code == REFUSED
    assert "has members that pull from its queues" in why.value.remark
    with pytest.raises(RemoteProtocolError, match="one way at a time"):
        broker.parts.consumers.check_mode(GROUP, pops=True)
    assert broker.parts.consumers.client_ids(GROUP) == ["old@1"]
    assert (await pull(client, COMMIT)).code == ResponseCode.SUCCESS


async def test_a_heartbeat_keeps_its_other_groups(
    broker: BrokerController, client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    pop_member(broker)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert (await beat(client, "one", GROUP, "two")).code == REFUSED
    told = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(told) == 1
    assert "group cg: group cg has members" in told[0]
    consumers = broker.parts.consumers
    assert consumers.client_ids("one") == consumers.client_ids("two") == ["old@1"]
    assert list(broker.parts.producers.groups) == ["pg"]


async def test_members_that_pop_are_in_no_list_of_those_who_divide(
    broker: BrokerController, client: RawClient
) -> None:
    consumers = broker.parts.consumers
    consumers.pops_by_setting = lambda group: group == GROUP
    assert (await beat(client)).code == ResponseCode.SUCCESS
    assert consumers.pops(GROUP)
    pop_member(broker)
    answer = await ask(client, RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    assert json.loads(answer.body) == {"consumerIdList": ["old@1"]}
    answer = await ask(client, RequestCode.GET_CONSUMER_CONNECTION_LIST)
    rows = json.loads(answer.body)["connectionSet"]
    assert [(row["clientId"], row["version"]) for row in rows] == [("old@1", 409), ("new@1", 479)]


async def test_a_setting_turns_the_members_that_can_do_both(
    broker: BrokerController, client: RawClient
) -> None:
    consumers = broker.parts.consumers
    assert (await beat(client)).code == ResponseCode.SUCCESS
    assert (await pull(client, 0)).code == ResponseCode.SUCCESS
    consumers.pops_by_setting = lambda group: True
    consumers.setting_changed(GROUP)
    assert consumers.pops(GROUP)
    refused = await pull(client, 0)
    assert refused.code == REFUSED
    assert "is set to have its members pop" in (refused.remark or "")
    assert "old@1" not in (refused.remark or ""), "it has done nothing of the kind"
    assert (await beat(client)).code == ResponseCode.SUCCESS
    pop_member(broker)
    consumers.pops_by_setting = lambda group: False
    consumers.setting_changed(GROUP)
    assert consumers.pops(GROUP), "one of them can do nothing else"
    assert (await beat(client)).code == REFUSED


ASSIGNMENT = {
    "topic": TOPIC,
    "consumerGroup": GROUP,
    "clientId": "old@1",
    "strategyName": "AVG",
    "messageModel": "CLUSTERING",
}


async def assigned(client: RawClient) -> set[str]:
    """In which ways a member that leaves the division to the broker is to consume."""
    body = json.dumps(ASSIGNMENT).encode()
    answer = await client.call(RequestCode.QUERY_ASSIGNMENT, {}, body)
    return {each["mode"] for each in json.loads(answer.body)["messageQueueAssignments"]}


async def pop(client: RawClient) -> RemotingCommand:
    fields = {
        "topic": TOPIC, "queueId": "-1", "maxMsgNums": "1", "invisibleTime": "60000",
        "pollTime": "0", "bornTime": "0", "initMode": "0",
    }  # fmt: skip
    return await ask(client, RequestCode.POP_MESSAGE, **fields)


async def set_mode(client: RawClient, mode: str) -> None:
    body = json.dumps({"topic": TOPIC, "consumerGroup": GROUP, "mode": mode}).encode()
    answer = await client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, body)
    assert answer.code == ResponseCode.SUCCESS


@pytest.fixture
async def other(broker: BrokerController) -> AsyncIterator[RawClient]:
    peer = await RawClient.open(broker.listen_address)
    yield peer
    await peer.close()


@pytest.mark.parametrize("asks_first", [True, False])
async def test_a_member_that_divides_the_queues_by_itself_pulls_whatever_is_set(
    broker: BrokerController, client: RawClient, other: RawClient, *, asks_first: bool
) -> None:
    """RocketMQ's Java clients that listen in order do."""
    await set_mode(client, "POP")
    assert (await beat(client)).code == ResponseCode.SUCCESS
    assert await assigned(client) == {"POP"}
    if asks_first:
        answer = await ask(client, RequestCode.GET_CONSUMER_LIST_BY_GROUP)
        assert json.loads(answer.body) == {"consumerIdList": ["old@1"]}
    locked = json.loads((await lock(client)).body)
    assert [queue["queueId"] for queue in locked["lockOKMQSet"]] == [0]
    for answer in (await pull(client, 0), await commit(client), await beat(client)):
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert await assigned(other) == {"PULL"}, "all members consume in one way"
    refused = await pop(other)
    assert refused.code == REFUSED and "old@1" in (refused.remark or "")
    await set_mode(client, "PULL")
    await set_mode(client, "POP")
    assert (await pull(client, 0)).code == ResponseCode.SUCCESS, "it can do nothing else"
    broker.parts.consumers.unregister(*broker.parts.consumers.members(GROUP), GROUP)
    assert await assigned(other) == {"POP"}
    assert (await pop(other)).code == POLLING_TIMEOUT, "it is allowed, and all is consumed"


async def test_a_member_that_divides_by_itself_waits_for_those_who_pop(
    broker: BrokerController, client: RawClient, other: RawClient
) -> None:
    await set_mode(client, "POP")
    assert (await beat(client)).code == ResponseCode.SUCCESS
    assert (await beat(other, client_id="pops@1")).code == ResponseCode.SUCCESS
    assert (await pop(other)).code == ResponseCode.SUCCESS
    assert (await ask(client, RequestCode.GET_CONSUMER_LIST_BY_GROUP)).code == 0
    for answer in (await lock(client), await pull(client, 0), await commit(client)):
        assert answer.code == REFUSED
        assert "pops@1" in (answer.remark or ""), "and not itself"
    assert await assigned(other) == {"POP"}
    (popping,) = [
        member
        for member, info in broker.parts.consumers.clients(GROUP).items()
        if info.client_id == "pops@1"
    ]
    broker.parts.consumers.unregister(popping, GROUP)
    assert json.loads((await lock(client)).body)["lockOKMQSet"]
    assert (await pull(client, 0)).code == ResponseCode.SUCCESS


async def test_who_is_no_member_decides_nothing(client: RawClient, other: RawClient) -> None:
    await set_mode(client, "POP")
    assert (await beat(client)).code == ResponseCode.SUCCESS
    assert (await ask(other, RequestCode.GET_CONSUMER_LIST_BY_GROUP)).code == 0
    assert (await lock(other)).code == REFUSED
    assert await assigned(client) == {"POP"}


@pytest.mark.parametrize(
    ("how", "model"), [("CONSUME_ACTIVELY", "CLUSTERING"), ("CONSUME_PASSIVELY", "BROADCASTING")]
)
async def test_some_members_say_in_their_heartbeat_that_they_cannot_pop(
    client: RawClient, how: str, model: str
) -> None:
    await set_mode(client, "POP")
    assert (await beat(client, how=how, model=model)).code == ResponseCode.SUCCESS
    assert await assigned(client) == {"PULL"}
    assert (await pull(client, COMMIT)).code != REFUSED


async def test_a_reset_of_a_group_that_pops_is_the_brokers(
    broker: BrokerController, client: RawClient
) -> None:
    for _ in range(3):
        await client.call(RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC), b"1")
    broker.parts.groups.find(GROUP)
    broker.parts.offsets.keep("x", GROUP, TOPIC, 0, 1)
    peer = pop_member(broker)
    peer.pushes.clear()
    fields = {"topic": TOPIC, "group": GROUP, "timestamp": "-1", "isForce": "true", "queueId": "0"}
    answer = await client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    assert answer.code == ResponseCode.SUCCESS
    assert broker.parts.offsets.query(GROUP, TOPIC, 0) == 4
    assert peer.pushes == []


async def test_a_client_of_our_own_says_that_it_pops(
    broker: BrokerController, client: RawClient
) -> None:
    assert (await beat(client, how="CONSUME_POP")).code == ResponseCode.SUCCESS
    assert broker.parts.consumers.pops(GROUP)
    assert (await commit(client)).code == REFUSED
