"""Administration of groups: what is acknowledged is on the disk, what is asked is told as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.delay.delay_offsets import DelayOffsetTable
from skylarkmq.broker.groups.subscription_group import GROUPS_FILE
from skylarkmq.broker.processor.admin.group import AdminGroupProcessor
from skylarkmq.common.table_file import TableWriter
from skylarkmq.protocol import lenient_json
from skylarkmq.protocol.bodies.group import (
    ConsumerData,
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from skylarkmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from tests.broker.group_rig import FakeConnection, GroupRig, ask, request


class Rig(GroupRig):
    """The processor over real tables."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.stats = BrokerStats()
        writer = TableWriter(self.files, self.workers.tables)
        self.delays = DelayOffsetTable(self.files, writer, self.clock, self.store)
        self.processor = AdminGroupProcessor(self.context, self.delays, self.stats)

    async def ask(self, code: int, fields: dict[str, Any] | None = None, body: bytes = b"") -> Any:
        return await ask(self, self.processor, FakeConnection(), request(code, fields, body))

    async def table(self, code: int, fields: dict[str, Any] | None = None) -> Any:
        answer = await self.ask(code, fields)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return lenient_json.loads(answer.body)

    def join(
        self,
        group: str,
        *topics: str,
        name: str = "192.0.2.1:1",
        consume_type: str = "CONSUME_PASSIVELY",
    ) -> FakeConnection:
        peer: Any = FakeConnection(name)
        data = ConsumerData(
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            consume_type=consume_type,
            group_name=group,
            message_model="CLUSTERING",
            subscription_data_set=[SubscriptionData(topic=t, sub_string="*") for t in topics],
        )
        self.consumers.register(peer, f"client@{name}", LanguageCode.JAVA, 409, data)
        return peer


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start()
    return rig


async def test_a_group_is_on_the_disk_when_its_update_is_acknowledged(rig: Rig) -> None:
    body = b'{"groupName":"g","consumeEnable":false,"retryMaxTimes":3,"brokerId":0,"attributes":{}}'
    answer = await rig.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SUCCESS
    stored = json.loads(rig.files.read_all(rig.store.paths.config / GROUPS_FILE))
    assert stored["subscriptionGroupTable"]["g"]["consumeEnable"] is False
    table = await rig.table(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    assert table["subscriptionGroupTable"]["g"]["retryMaxTimes"] == 3
    assert table["dataVersion"]["counter"] == rig.groups.data_version.counter


@pytest.mark.parametrize(
    "body",
    [
        b'{"groupName":"../g"}',
        b'{"groupName":""}',
        b'{"groupName":"g","retryQueueNums":-1}',
        b'{"groupName":"g","retryQueueNums":100000}',
        b'{"groupName":"g","brokerId":-1}',
        b'{"groupName":"g","groupRetryPolicy":{"type":"NEVER"}}',
        b'{"groupName":"g","groupRetryPolicy":{"customizedRetryPolicy":{"next":[]}}}',
        b'{"groupName":"g","groupRetryPolicy":{"customizedRetryPolicy":{"next":[-1]}}}',
        b'{"groupName":"g","groupRetryPolicy":{"customizedRetryPolicy":{"next":[43200001]}}}',
        b'{"groupName":"g","groupRetryPolicy":{"exponentialRetryPolicy":{"initial":0}}}',
        b'{"groupName":"g","groupRetryPolicy":{"exponentialRetryPolicy":{"max":1}}}',
        b'{"groupName":"g","groupRetryPolicy":{"exponentialRetryPolicy":{"multiplier":0}}}',
        b'{"groupName":"g","attributes":{"+priority.factor":"101"}}',
        b'{"groupName":"g","attributes":{"+lite.bind.topic":"T"}}',
        b"{}",
        b"[]",
        b"",
    ],
)
async def test_what_can_be_no_group_is_refused(rig: Rig, body: bytes) -> None:
    before = dict(rig.groups.table)
    answer = await rig.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark
    assert rig.groups.table == before


async def test_what_a_group_has_of_rocketmq_5_is_kept(rig: Rig) -> None:
    policy = '"groupRetryPolicy":{"exponentialRetryPolicy":{"initial":7},"type":"EXPONENTIAL"}'
    body = f'{{"groupName":"g","consumeMessageOrderly":true,{policy}}}'.encode()
    await rig.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    again = GroupRig(rig.files)
    again.groups.load()
    group = again.groups.table["g"]
    assert group.is_orderly
    assert group.retry_policy.waits == ExponentialRetryPolicy(initial=7)
    body = b'{"groupName":"g","groupRetryPolicy":null}'  # as of a client that knows of none
    await rig.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    group = rig.groups.table["g"]
    assert not group.is_orderly
    assert group.retry_policy.waits == CustomizedRetryPolicy()


async def test_a_deleted_group_is_gone_and_its_offsets_when_asked_to(rig: Rig) -> None:
    rig.topic("T")
    for group in ("g", "h"):
        rig.groups.update(SubscriptionGroupConfig(group_name=group))
        rig.offsets.keep("x", group, "T", 0, 5)
    answer = await rig.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"})
    assert answer.code == ResponseCode.SUCCESS
    assert "g" not in rig.groups.table
    assert rig.offsets.query("g", "T", 0) == 5
    fields = {"groupName": "h", "removeOffset": "true"}
    await rig.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)
    assert rig.offsets.query("h", "T", 0) == -1
    again = GroupRig(rig.files)
    again.groups.load()
    again.store.max_offset = lambda topic, queue_id: 5
    again.offsets.load()
    assert not {"g", "h"} & again.groups.table.keys()
    assert again.offsets.query("h", "T", 0) == -1
    assert again.offsets.query("g", "T", 0) == 5


async def test_unknown_and_built_in_groups_at_a_delete(rig: Rig) -> None:
    answer = await rig.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "nobody"})
    assert answer.code == ResponseCode.SUCCESS
    answer = await rig.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "TOOLS_CONSUMER"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "TOOLS_CONSUMER" in rig.groups.table


async def test_members_of_a_consumer_group(rig: Rig) -> None:
    answer = await rig.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
    assert answer.code == ResponseCode.CONSUMER_NOT_ONLINE
    rig.join("g", "T", "U")
    body = await rig.table(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
    assert body["connectionSet"] == [
        {
            "clientAddr": "192.0.2.1:1",
            "clientId": "client@192.0.2.1:1",
            "language": "JAVA",
            "version": 409,
        }
    ]
    assert body["consumeType"] == "CONSUME_PASSIVELY"
    assert body["messageModel"] == "CLUSTERING"
    assert body["consumeFromWhere"] == "CONSUME_FROM_LAST_OFFSET"
    assert set(body["subscriptionTable"]) == {"T", "U"}


async def test_it_is_said_of_a_group_that_its_members_pop(rig: Rig) -> None:
    rig.join("pulls", "T")
    rig.join("pops", "T", consume_type="CONSUME_POP")
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    assert "pops" not in await rig.table(code, {"consumerGroup": "pulls"})
    assert (await rig.table(code, {"consumerGroup": "pops"}))["pops"] is True


async def test_members_that_differ_are_named_with_what_differs(rig: Rig) -> None:
    fields = {"consumerGroup": "g"}
    a = rig.join("g", "T", "U", name="192.0.2.1:1")
    rig.join("g", "T", "U", name="192.0.2.2:1")
    body = await rig.table(RequestCode.GET_CONSUMER_CONNECTION_LIST, fields)
    assert "differingMembers" not in body
    b = rig.join("g", "T", "V", name="192.0.2.3:1")
    body = await rig.table(RequestCode.GET_CONSUMER_CONNECTION_LIST, fields)
    assert body["differingMembers"] == [
        {"clientId": "client@192.0.2.1:1", "subscriptions": {"U": "*"}},
        {"clientId": "client@192.0.2.3:1", "subscriptions": {"V": "*"}},
    ]
    b.close("peer")
    body = await rig.table(RequestCode.GET_CONSUMER_CONNECTION_LIST, fields)
    assert "differingMembers" not in body
    assert not a.closed


async def test_offsets_of_all_groups_and_levels(rig: Rig) -> None:
    rig.offsets.keep("x", "g", "T", 2, 5)
    rig.offsets.keep("x", "h", "T", 0, 7)
    rig.delays.set(3, 11)
    body = await rig.table(RequestCode.GET_ALL_CONSUMER_OFFSET)
    assert body["offsetTable"] == {"T@g": {"2": 5}, "T@h": {"0": 7}}
    body = await rig.table(RequestCode.GET_ALL_DELAY_OFFSET)
    assert body["offsetTable"] == {"3": 11}


async def test_clients_of_a_producer_group(rig: Rig) -> None:
    answer = await rig.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    peer: Any = FakeConnection("192.0.2.7:9")
    rig.producers.register(peer, "c", LanguageCode.GO, 401, "p")
    body = await rig.table(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})
    assert [each["clientId"] for each in body["connectionSet"]] == ["c"]
    rig.clock.advance(2.5)
    table = await rig.table(RequestCode.GET_ALL_PRODUCER_INFO)
    (info,) = table["data"]["p"]
    assert info["remoteIP"] == "/192.0.2.7:9"
    assert (info["language"], info["version"]) == ("GO", 401)
    assert info["lastUpdateTimestamp"] == rig.clock.now_ms() - 2500


async def test_who_consumes_a_topic(rig: Rig) -> None:
    rig.topic("T")
    rig.join("online", "T")
    rig.join("elsewhere", "U")
    rig.offsets.keep("x", "offline", "T", 0, 1)
    body = await rig.table(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "T"})
    assert body["groupList"] == ["offline", "online"]
    body = await rig.table(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "none"})
    assert body["groupList"] == []


async def test_one_group_alone_as_tools_of_rocketmq_5_ask(rig: Rig) -> None:
    rig.groups.find("g")
    answer = await rig.ask(352, {"group": "g"})
    body = json.loads(answer.body)
    assert (body["groupName"], body["retryMaxTimes"], body["consumeEnable"]) == ("g", 16, True)
    answer = await rig.ask(352, {"group": "never"})
    assert (answer.code, answer.remark) == (26, "No group in this broker. group: 'never'")
    assert "never" not in rig.groups.table
