"""Offsets and members of a group."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skylarkmq.broker.processor.consumer_manage import ConsumerManageProcessor
from skylarkmq.protocol.bodies.group import ConsumerData
from skylarkmq.protocol.codes import LanguageCode
from skylarkmq.protocol.command import RemotingCommand
from tests.broker.group_rig import FakeConnection, GroupRig, ask, request


class Rig(GroupRig):
    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.processor = ConsumerManageProcessor(self.context)
        self.peer = FakeConnection()

    async def ask(self, code: int, **fields: Any) -> RemotingCommand:
        return await ask(self, self.processor, self.peer, request(code, fields))

    async def commit(self, **fields: Any) -> int:
        values = {"consumerGroup": "cg", "topic": "T", "queueId": 0, "commitOffset": 5, **fields}
        return (await self.ask(15, **values)).code

    async def query(self, **fields: Any) -> tuple[int, str | None]:
        answer = await self.ask(14, **{"consumerGroup": "cg", "topic": "T", "queueId": 0, **fields})
        return answer.code, answer.ext_fields.get("offset")


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start()
    rig.topic("T")
    rig.groups.find("cg")
    return rig


async def test_a_committed_offset_is_found_again(rig: Rig) -> None:
    for _ in range(7):
        rig.put("T", 0)
    assert await rig.commit(commitOffset=7) == 0
    assert await rig.query() == (0, "7")
    assert await rig.commit(commitOffset=3) == 0, "a smaller one is taken too"
    assert await rig.query() == (0, "3")
    assert await rig.query(queueId=1) == (0, "0")


async def test_an_offset_above_the_end_is_refused(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """The group would pass over what is stored up to there. The log tells LINES_MAX a second."""
    rig.put("T", 0)
    assert await rig.commit(commitOffset=1) == 0
    for _ in range(100):
        assert await rig.commit(commitOffset=2) == 1
    assert await rig.commit(queueId=1, commitOffset=1) == 1
    assert await rig.query() == (0, "1")
    told = [each for each in caplog.records if "above the end of queue 0 of T, 1" in each.message]
    assert {(each.name, each.msg) for each in told} == {(told[0].name, told[0].msg)}


async def test_a_new_group_gets_its_offsets_from_an_administrator(rig: Rig) -> None:
    """As `mqadmin cloneGroupOffset` gives them."""
    rig.put("T", 0)
    values = {"consumerGroup": "fresh", "topic": "T", "queueId": 0, "commitOffset": 1}
    stray = request(15, values)
    stray.flag |= 2  # one-way: a member of a group that was deleted
    assert (await ask(rig, rig.processor, rig.peer, stray)).code == 26
    assert "fresh" not in rig.groups.table
    assert await rig.commit(consumerGroup="fresh", commitOffset=1) == 0
    assert await rig.query(consumerGroup="fresh") == (0, "1")
    file = rig.store.paths.config / "subscriptionGroup.json"
    assert b'"fresh"' in rig.files.read_all(file)


async def test_groups_are_not_made_where_that_is_switched_off() -> None:
    rig = Rig(auto_create_subscription_group=False)
    rig.start()
    rig.topic("T")
    assert await rig.commit(consumerGroup="fresh", commitOffset=0) == 26


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "unknown"}, 17),
        ({"consumerGroup": "CID_RMQ_SYS_TRANS"}, 16),
        ({"queueId": 4}, 1),
        ({"queueId": -1}, 1),
        ({"commitOffset": -1}, 1),
        ({"consumerGroup": "a b"}, 1),
        ({"consumerGroup": "g" * 121}, 1),
        ({"topic": "../T"}, 1),
        ({"commitOffset": 1 << 63}, 1),
        ({"queueId": "1_0"}, 1),
    ],
)
async def test_offsets_of_unknown_names_are_refused_and_not_kept(
    rig: Rig, fields: dict[str, Any], code: int
) -> None:
    groups = len(rig.groups.table)
    assert await rig.commit(**fields) == code
    assert rig.offsets.table == {}
    assert len(rig.groups.table) == groups


async def test_a_new_group_starts_at_zero_on_a_young_queue(rig: Rig) -> None:
    rig.put("T", 0)
    assert await rig.query() == (0, "0")


async def test_a_new_group_chooses_itself_on_an_old_queue(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put("T", 0)
    monkeypatch.setattr(rig.store, "is_in_memory", lambda physical_offset: False)
    answer = await rig.ask(14, consumerGroup="cg", topic="T", queueId=0)
    assert (answer.code, answer.ext_fields) == (22, {})
    assert answer.remark == "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


async def test_a_new_group_chooses_itself_where_the_first_message_is_gone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put("T", 0)
    monkeypatch.setattr(rig.store, "min_offset", lambda topic, queue_id: 1)
    assert (await rig.query())[0] == 22


async def test_queries_of_unknown_names_answer_zero_and_allocate_nothing(rig: Rig) -> None:
    groups, topics, queues = (
        len(rig.groups.table),
        len(rig.topics.table),
        len(rig.store.queues.queues),
    )
    assert await rig.query(consumerGroup="unknown", topic="unknown", queueId=99) == (0, "0")
    assert (await rig.query(consumerGroup="not a group"))[0] == 1
    assert (await rig.query(topic="not/a/topic"))[0] == 1
    assert (len(rig.groups.table), len(rig.topics.table)) == (groups, topics)
    assert len(rig.store.queues.queues) == queues
    assert rig.offsets.table == {}


async def test_38_lists_each_client_once(rig: Rig) -> None:
    data = ConsumerData(group_name="cg", consume_type="", message_model="", consume_from_where="")
    for name, client_id in (("a", "one"), ("b", "two"), ("c", "one")):
        peer: Any = FakeConnection(name)
        rig.consumers.register(peer, client_id, LanguageCode.JAVA, 409, data)
    answer = await rig.ask(38, consumerGroup="cg")
    assert answer.code == 0
    assert json.loads(answer.body) == {"consumerIdList": ["one", "two"]}


async def test_38_answers_1_when_there_is_none(rig: Rig) -> None:
    answer = await rig.ask(38, consumerGroup="nobody")
    assert (answer.code, answer.remark) == (1, "no consumer for this group, nobody")
    assert (await rig.ask(38, consumerGroup="not a group")).code == 1
    assert (await rig.ask(38)).code == 1
    assert "nobody" not in rig.groups.table


async def test_a_client_may_ask_for_no_zero_on_a_young_queue(rig: Rig) -> None:
    rig.put("T", 0)
    fields = {"consumerGroup": "cg", "topic": "T", "queueId": 0}
    assert (await rig.ask(14, setZeroIfNotFound="false", **fields)).code == 22
    assert (await rig.ask(14, setZeroIfNotFound="true", **fields)).code == 0
