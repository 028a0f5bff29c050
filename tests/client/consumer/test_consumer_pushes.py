"""What brokers ask a member for: resets, its offsets, its state, one message to be handled now."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylarkmq.client import Consumer, MessageQueue
from skylarkmq.protocol.bodies.group import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    MessageQueueForC,
    ResetOffsetBody,
    ResetOffsetBodyForC,
)
from skylarkmq.protocol.bodies.text import MessageQueueBody, decode_body, encode_body
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.client.consumer.support import GROUP, Group
from tests.support.fake_queues import Stored, record
from tests.support.manual_clock import settle

QUEUE = MessageQueue("orders", "broker-a", 0)


def body_of(queue_id: int, topic: str = "orders") -> MessageQueueBody:
    return MessageQueueBody(broker_name="broker-a", queue_id=queue_id, topic=topic)


async def ask(it: Group, code: int, body: bytes = b"", **fields: str) -> RemotingCommand:
    """Push a request to the member and return its answer."""
    push = RemotingCommand.request(code, fields, body)
    push.opaque = 4242
    it.broker.requests.clear()
    it.broker.push(push)
    for _ in range(20):
        await settle()
    (answer,) = [each for each in it.broker.requests if each.opaque == 4242 and each.flag & 1]
    return answer


async def reset(it: Group, body: bytes, topic: str = "orders") -> None:
    fields = {"topic": topic, "group": GROUP, "timestamp": "0", "isForce": "true"}
    code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    it.broker.push(RemotingCommand.request(code, fields, body, oneway=True))
    await it.pass_time(0)


async def group_of(count: int, **settings: Any) -> tuple[Group, Consumer]:
    it = Group({"orders": 2})
    it.broker.add("orders", 0, *[b"%d" % n for n in range(count)])
    return it, await it.consumer(**settings)


async def test_a_reset_moves_the_queue_at_once_and_commits_the_new_offset() -> None:
    it, consumer = await group_of(10)
    messages = (await it.wait(consumer.getmany(10)))[QUEUE]
    assert len(messages) == 10
    rows = [(body_of(0), 3), (body_of(7), 1), (body_of(0, "other"), 1)]
    await reset(it, encode_body(ResetOffsetBody(offset_table=rows)))
    assert it.offset(0) == 3
    assert (await it.wait(consumer.getone())).body == b"3"
    await it.wait(consumer.commit())
    assert it.offset(0) == 4, "what was given before the reset counts no more"
    assert it.offset(7) is None
    await it.stop(consumer)


async def test_an_offset_that_an_old_pull_told_behind_the_reset_is_set_right() -> None:
    it, consumer = await group_of(10)
    await it.wait(consumer.getmany(10))
    await reset(it, encode_body(ResetOffsetBody(offset_table=[(body_of(0), 0)])))
    it.broker.offsets[GROUP, "orders", 0] = 10
    await it.pass_time(6)
    assert it.offset(0) == 0
    await it.stop(consumer)


async def test_a_reset_in_the_shape_for_c_is_understood_and_a_broken_one_harms_nothing() -> None:
    it, consumer = await group_of(10)
    row = MessageQueueForC(broker_name="broker-a", offset=8, queue_id=0, topic="orders")
    await reset(it, encode_body(ResetOffsetBodyForC(offset_table=[row])))
    assert it.offset(0) == 8
    await reset(it, b"no offsets")
    await reset(it, b"")
    assert (await it.wait(consumer.getone())).body == b"8"
    await it.stop(consumer)


async def test_a_member_tells_its_offsets() -> None:
    it, consumer = await group_of(10)
    await it.wait(consumer.getmany(4))
    await it.wait(consumer.commit())
    code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
    answer = await ask(it, code, topic="orders", group=GROUP)
    table = decode_body(GetConsumerStatusBody, answer.body).message_queue_table
    assert table == [(body_of(0), 4), (body_of(1), 0)]
    await it.stop(consumer)


async def test_running_info_has_what_the_tools_read() -> None:
    it, consumer = await group_of(10)

    async def handle(message: Any) -> None:
        if message.body == b"0":
            raise RuntimeError("on purpose")

    running = asyncio.create_task(consumer.run(handle, concurrency=3))
    await it.pass_time(20)
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    fields = {"consumerGroup": GROUP, "clientId": "any", "jstackEnable": "false"}
    answer = await ask(it, code, **fields)
    info = decode_body(ConsumerRunningInfo, answer.body)
    assert info.jstack is None
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert info.properties["PROP_CLIENT_VERSION"] == "V4_9_8"
    assert info.properties["PROP_CONSUMEORDERLY"] == "false"
    assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "3"
    assert info.properties["PROP_NAMESERVER_ADDR"] == it.cluster.namesrv
    assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) < it.clock.now_ms()
    queues = dict(info.mq_table)
    assert queues[body_of(0)].commit_offset == 10
    assert queues[body_of(0)].last_consume_timestamp <= it.clock.now_ms()
    assert not queues[body_of(0)].dropped
    status = info.status_table["orders"]
    assert (status.consume_failed_msgs, status.consume_ok_tps) == (1, 9 / 60)
    assert status.pull_tps == 10 / 60
    topics = [data.topic for data in info.subscription_set]
    assert topics == [f"%RETRY%{GROUP}", "orders"]
    fields["jstackEnable"] = "true"
    info = decode_body(ConsumerRunningInfo, (await ask(it, code, **fields)).body)
    assert info.jstack is not None
    assert "TASK skylarkmq-handler-0" in info.jstack
    await it.stop(consumer)
    await running


async def test_who_is_not_in_the_group_says_so() -> None:
    it, consumer = await group_of(0)
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    answer = await ask(it, code, consumerGroup="others", clientId="any")
    assert answer.code == 1
    assert answer.remark == "The Consumer Group <others> not exist in this consumer"
    await it.stop(consumer)


@pytest.mark.parametrize(
    ("body", "result", "remark"),
    [
        (b"fine", "CR_SUCCESS", None),
        (b"fail", "CR_THROW_EXCEPTION", "RuntimeError: on purpose"),
        (b"later", "CR_LATER", None),
        (b"dead", "CR_LATER", None),
    ],
)
async def test_one_message_is_handled_aside(body: bytes, result: str, remark: str | None) -> None:
    it, consumer = await group_of(1)
    seen: list[Any] = []

    async def handle(message: Any) -> None:
        seen.append(message)
        if message.body == b"fail":
            raise RuntimeError("on purpose")
        if message.body == b"later":
            await message.nack()
        if message.body == b"dead":
            await message.dead_letter("on purpose")

    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    fields = {"consumerGroup": GROUP, "clientId": "any", "brokerName": "broker-a"}
    stored = Stored(body, {"UNIQ_KEY": "ID7"})
    data = record(0, "orders", 1, 70, stored)
    answer = await ask(it, code, data, **fields)
    assert answer.code == 1
    assert "not in run()" in (answer.remark or "")
    running = asyncio.create_task(consumer.run(handle))
    await it.pass_time(1)
    seen.clear()
    answer = await ask(it, code, data, **fields)
    outcome = decode_body(ConsumeMessageDirectlyResult, answer.body)
    assert (outcome.consume_result, outcome.remark) == (result, remark)
    assert not outcome.order
    (message,) = seen
    assert (message.msg_id, message.queue) == ("ID7", MessageQueue("orders", "broker-a", 1))
    assert it.broker.of_code(RequestCode.CONSUMER_SEND_MSG_BACK) == []
    await it.pass_time(6)
    assert it.offset(1) in (None, 0), "no offset of the group moves"
    await it.stop(consumer)
    await running
