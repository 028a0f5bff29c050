"""Creating topics, and asking for all of them; deleting is in `test_topic_deletion.py`."""

from __future__ import annotations

import asyncio
import errno
import json
from typing import Any

import pytest

from skylarkmq.broker.processor.admin.topic import AdminTopicProcessor
from skylarkmq.broker.pulling.long_polling import PullRequestHoldService
from skylarkmq.broker.topics.deduplication import DeduplicationService
from skylarkmq.broker.topics.topic_deletion import TopicDeletion
from skylarkmq.protocol.bodies.route import TopicList
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.bodies.topic import TopicConfigSerializeWrapper
from skylarkmq.protocol.command import RemotingCommand
from tests.broker.group_rig import FakeConnection, GroupRig, ask, begin, request


class Rig(GroupRig):
    def __init__(self) -> None:
        super().__init__(broker_cluster_name="C1", broker_name="broker-a")
        holding = PullRequestHoldService(self.store, self.clock, long_polling=True)
        deletion = TopicDeletion(self.store, self.topics, self.offsets, holding, self.clock)
        self.deduplication = DeduplicationService(self.config, self.store, self.topics, self.clock)
        self.deduplication.load()
        self.processor = AdminTopicProcessor(self.context, deletion, self.deduplication)

    async def create(self, **changes: Any) -> RemotingCommand:
        return await ask(self, self.processor, FakeConnection(), creation(**changes))

    def file(self) -> dict[str, Any]:
        text = self.files.read_all(self.store.paths.config / "topics.json")
        table: dict[str, Any] = json.loads(text)["topicConfigTable"]
        return table


def creation(**changes: Any) -> RemotingCommand:
    fields = {
        "topic": "orders", "defaultTopic": "TBW102", "readQueueNums": 8, "writeQueueNums": 4,
        "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    }  # fmt: skip
    return request(17, {**fields, **changes})


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start()
    return rig


async def test_the_answer_comes_when_the_topic_is_on_the_disk(rig: Rig) -> None:
    waiting = begin(rig.processor, FakeConnection(), creation())
    await asyncio.sleep(0)
    assert not waiting.done()
    rig.workers.run_all()
    assert (await waiting).code == 0
    assert rig.file()["orders"] == {
        "order": False, "perm": 6, "readQueueNums": 8, "topicFilterType": "SINGLE_TAG",
        "topicName": "orders", "topicSysFlag": 0, "writeQueueNums": 4,
    }  # fmt: skip


async def test_a_topic_is_replaced_whole(rig: Rig) -> None:
    await rig.create()
    answer = await rig.create(
        readQueueNums=2, perm=4, topicFilterType="MULTI_TAG", topicSysFlag=1, order="true"
    )
    assert answer.code == 0
    assert rig.file()["orders"] == {
        "order": True, "perm": 4, "readQueueNums": 2, "topicFilterType": "MULTI_TAG",
        "topicName": "orders", "topicSysFlag": 1, "writeQueueNums": 4,
    }  # fmt: skip


async def test_retry_and_dead_letter_topics_may_be_changed(rig: Rig) -> None:
    assert (await rig.create(topic="%RETRY%cg")).code == 0
    assert (await rig.create(topic="%DLQ%cg", perm=2)).code == 0


@pytest.mark.parametrize(
    "name",
    [
        "TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "rmq_sys_wheel_timer", "C1", "broker-a",
        "C1_REPLY_TOPIC",
    ],
)  # fmt: skip
async def test_system_topics_are_refused(rig: Rig, name: str) -> None:
    before = rig.topics.table.get(name)
    answer = await rig.create(topic=name)
    assert (answer.code, answer.remark) == (
        1, f"The topic[{name}] is conflict with system topic.",
    )  # fmt: skip
    assert rig.topics.table.get(name) is before


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"topic": ""}, "blank"),
        ({"topic": ".."}, "illegal"),
        ({"topic": "a\n"}, "illegal"),
        ({"topic": "t" * 128}, "longer than 127"),
        ({"readQueueNums": 0}, "readQueueNums"),
        ({"writeQueueNums": -1}, "writeQueueNums"),
        ({"readQueueNums": 1025}, "1 to 1024"),
        ({"writeQueueNums": 2**31 - 1}, "1 to 1024"),
        ({"writeQueueNums": 2**31}, "32 bit"),
        ({"perm": 8}, "perm 8"),
        ({"perm": -1}, "perm -1"),
        ({"topicFilterType": "NO_TAG"}, "SINGLE_TAG, MULTI_TAG"),
    ],
)
async def test_what_can_be_no_topic_is_refused(rig: Rig, changes: dict[str, Any], why: str) -> None:
    count = len(rig.topics.table)
    answer = await rig.create(**changes)
    assert answer.code == 1
    assert why in (answer.remark or "")
    assert len(rig.topics.table) == count


async def test_a_table_that_can_not_be_written_is_told(rig: Rig) -> None:
    rig.files.fail("rename", error=errno.ENOSPC, path="topics.json")
    answer = await rig.create()
    assert answer.code == 14
    assert "could not be written" in (answer.remark or "")
    assert (await rig.create()).code == 0
    assert "orders" in rig.file()


async def test_all_topics_with_their_version(rig: Rig) -> None:
    await rig.create()
    answer = await ask(rig, rig.processor, FakeConnection(), request(21))
    body = decode_body(TopicConfigSerializeWrapper, answer.body)
    assert body.topic_config_table == rig.topics.table
    assert body.data_version == rig.topics.data_version


async def test_the_brokers_own_topics(rig: Rig) -> None:
    await rig.create()
    answer = await ask(rig, rig.processor, FakeConnection(), request(305))
    assert sorted(decode_body(TopicList, answer.body).topic_list) == [
        "BenchmarkTest", "C1", "C1_REPLY_TOPIC", "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC", "TBW102", "broker-a",
    ]  # fmt: skip


async def test_one_topic_alone_as_tools_of_rocketmq_5_ask(rig: Rig) -> None:
    await rig.create()
    answer = await ask(rig, rig.processor, FakeConnection(), request(351, {"topic": "orders"}))
    assert json.loads(answer.body) == {
        "order": False, "perm": 6, "readQueueNums": 8, "topicFilterType": "SINGLE_TAG",
        "topicName": "orders", "topicSysFlag": 0, "writeQueueNums": 4,
    }  # fmt: skip
    fields = {"topic": "nobody", "lo": "true"}
    answer = await ask(rig, rig.processor, FakeConnection(), request(351, fields))
    assert (answer.code, answer.remark) == (17, "No topic in this broker. topic: 'nobody'")
    assert (await ask(rig, rig.processor, FakeConnection(), request(351))).code == 1
