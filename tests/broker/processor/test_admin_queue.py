"""Units of a queue, with what a group wants of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skylarkmq.broker.filter.consumer_filter import ConsumerFilterManager
from skylarkmq.broker.processor import query
from skylarkmq.broker.processor.query import QueryConsumeQueueProcessor
from skylarkmq.protocol.bodies.group import ConsumerData, SubscriptionData
from skylarkmq.protocol.bodies.text import decode_body
from skylarkmq.protocol.bodies.topic import QueryConsumeQueueResponseBody
from skylarkmq.protocol.codes import LanguageCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.tags_code import tags_code
from tests.broker.group_rig import FakeConnection, GroupRig, ask, request


class Rig(GroupRig):
    def __init__(self, **changes: Any) -> None:
        super().__init__(enable_property_filter=True, **changes)
        self.filters = ConsumerFilterManager(self.config, self.clock)
        self.processor = QueryConsumeQueueProcessor(self.context, self.filters)

    async def query(self, **changes: Any) -> RemotingCommand:
        fields = {"topic": "T", "queueId": 0, "index": 0, "count": 10, **changes}
        return await ask(self, self.processor, FakeConnection(), request(321, fields))

    async def body(self, **changes: Any) -> QueryConsumeQueueResponseBody:
        return decode_body(QueryConsumeQueueResponseBody, (await self.query(**changes)).body)

    def subscribe(self, **changes: Any) -> None:
        data = SubscriptionData(topic="T", **changes)
        self.filters.register("cg", [data])
        consumer = ConsumerData(
            consume_from_where="CONSUME_FROM_LAST_OFFSET", consume_type="CONSUME_PASSIVELY",
            group_name="cg", message_model="CLUSTERING", subscription_data_set=[data],
        )  # fmt: skip
        connection: Any = FakeConnection()
        self.consumers.register(connection, "c1", LanguageCode.JAVA, 409, consumer)


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start()
    for tag in ("red", "green", "red"):
        rig.put("T", 0, b"body", properties=b"TAGS\x01" + tag.encode(), tags_code=tags_code(tag))
    return rig


async def test_units_from_an_index_on(rig: Rig) -> None:
    body = await rig.body(index=1)
    assert (body.min_queue_index, body.max_queue_index) == (0, 3)
    assert body.subscription_data is None
    assert body.queue_data is not None
    assert [unit.tags_code for unit in body.queue_data] == [tags_code("green"), tags_code("red")]
    assert body.queue_data[0].physic_offset == body.queue_data[0].physic_size - 2
    assert not any(unit.eval for unit in body.queue_data)


async def test_an_answer_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "UNITS_MAX", 2)
    assert len((await rig.body(count=2**31 - 1)).queue_data or []) == 2
    assert (await rig.body(count=-1)).queue_data == []


@pytest.mark.parametrize("index", [3, -1, 2**62])
async def test_an_index_outside_of_the_queue(rig: Rig, index: int) -> None:
    answer = await rig.query(index=index)
    assert (answer.code, answer.remark) == (0, f"Index {index} of 0@T is not exist!")


@pytest.mark.parametrize("changes", [{"topic": "U"}, {"queueId": 1}, {"queueId": -1}])
async def test_unknown_queues_are_refused_and_not_made(rig: Rig, changes: dict[str, Any]) -> None:
    answer = await rig.query(**changes)
    assert answer.code == 1
    assert "is not exist" in (answer.remark or "")
    assert list(rig.store.queues.queues) == [("T", 0)]


async def test_what_a_group_wants_of_them(rig: Rig) -> None:
    body = await rig.body(consumerGroup="cg")
    assert body.filter_data == "cg@T is not online!"
    rig.subscribe(sub_string="red", code_set=[tags_code("red")], tags_set=["red"], sub_version=1)
    body = await rig.body(consumerGroup="cg")
    assert [unit.eval for unit in body.queue_data or []] == [True, False, True]
    assert body.subscription_data is not None
    assert body.subscription_data.sub_string == "red"


async def test_units_on_the_disk_and_in_memory_come_together(rig: Rig) -> None:
    rig.store.queues.flusher.write_now()
    rig.put("T", 0, b"body")
    assert len((await rig.body()).queue_data or []) == 4


async def test_an_expression_is_shown_and_asked_of_no_unit(rig: Rig) -> None:
    rig.subscribe(sub_string="a > 1", expression_type="SQL92", sub_version=2)
    body = await rig.body(consumerGroup="cg")
    assert body.filter_data is not None
    assert json.loads(body.filter_data)["expression"] == "a > 1"
    assert [unit.eval for unit in body.queue_data or []] == [True, True, True]
