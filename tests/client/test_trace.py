"""What the trace topic is told: of whom, when, in which portions; and that it harms nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from skylarkmq.client import Message, Producer, RouteNotFound, TransactionState
from skylarkmq.client.instance import services_of
from skylarkmq.client.producer import trace
from skylarkmq.client.producer.trace_records import (
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    TraceContextCode,
    TraceMessageType,
    TraceRecord,
    decode_traces,
)
from skylarkmq.protocol.codes import RequestCode
from skylarkmq.protocol.compression import decompress
from skylarkmq.protocol.remoting_command import RemotingCommand
from tests.client.consumer.support import GROUP, Group
from tests.client.support import Setting
from tests.support.fake_cluster import FakeBroker
from tests.support.manual_clock import advance_async, settle

TOPIC = "RMQ_SYS_TRACE_TOPIC"
TOPICS = {"orders": 1, TOPIC: 1}


def told(broker: FakeBroker, topic: str = TOPIC) -> list[list[TraceRecord]]:
    """The records of each trace message."""
    (queue,) = broker.topics[topic].queues
    return [decode_traces(decompress(each.body, each.sys_flag, 1 << 20)) for each in queue]


def tracer_of(producer: Producer) -> Any:
    tracer = producer._parts_now.tracer
    assert tracer is not None
    return tracer


async def commits(half: object) -> TransactionState:
    return TransactionState.COMMIT


async def test_what_a_producer_does() -> None:
    async with Setting(group="P", trace=True, check=commits) as setting:
        broker = setting.cluster.broker(topics={**TOPICS, "DefaultCluster_REPLY_TOPIC": 1})
        producer = setting.producer
        sent = await producer.send(Message("orders", b"one", tags="A", keys=["k1", "k2"]))
        delayed = await producer.send(Message("orders", b"two", delay_level=3))
        batch = await producer.send_batch([Message("orders", b"3"), Message("orders", b"four")])
        async with producer.transaction(Message("orders", b"half", keys="k3")) as transaction:
            pass
        await producer.send_oneway(Message("orders", b"gone"))
        assert told(broker) == []
        await advance_async(setting.clock, trace.WAIT_S)

        (records,) = told(broker)
        now_ms = setting.clock.now_ms() - round(trace.WAIT_S * 1000)
        assert records[0] == PubTrace(
            timestamp_ms=now_ms,
            region_id="DefaultRegion",
            group="P",
            topic="orders",
            msg_id=sent.msg_id,
            tags="A",
            keys="k1 k2",
            store_host="broker-a:10911",
            body_size=3,
            cost_ms=0,
            message_type=TraceMessageType.NORMAL,
            offset_msg_id=sent.offset_msg_id,
            success=True,
        )
        pubs = [record for record in records if isinstance(record, PubTrace)]
        half = transaction.result
        assert [(pub.msg_id, pub.offset_msg_id) for pub in pubs] == [
            (result.msg_id, result.offset_msg_id) for result in (sent, delayed, *batch, half)
        ]
        assert [pub.message_type for pub in pubs] == [0, 3, 0, 0, 1]
        assert [pub.body_size for pub in pubs] == [3, 3, 1, 4, 4]
        (end,) = [record for record in records if isinstance(record, EndTransactionTrace)]
        assert (end.msg_id, end.state, end.from_check) == (half.msg_id, "COMMIT_MESSAGE", False)
        assert (end.keys, end.store_host, end.message_type) == ("k3", "broker-a:10911", 2)

        (message,) = broker.topics[TOPIC].queues[0]
        ids = [result.msg_id for result in (sent, delayed, *batch, half)]
        assert set(message.properties["KEYS"].split()) == {*ids, "k1", "k2", "k3"}
        (request,) = [each for each in broker.requests if each.ext_fields.get("b") == TOPIC]
        assert request.ext_fields["a"].startswith("_INNER_TRACE_PRODUCER-P-PRODUCE-")


async def test_what_is_not_told() -> None:
    async with Setting(group="P", trace=True) as setting:
        broker = setting.cluster.broker(topics=TOPICS)
        act = broker.respond
        verdict = "false"

        def untraced(request: RemotingCommand, stream: Any) -> Any:
            answer: Any = act(request, stream)
            if request.code == RequestCode.SEND_MESSAGE_V2:
                answer.ext_fields["TRACE_ON"] = verdict
            return answer

        broker.respond = untraced  # type: ignore[method-assign]
        assert not (await setting.producer.send(Message("orders", b"private"))).trace_on
        verdict = "true"
        await setting.producer.send(Message(TOPIC, b"a record of somebody's own"))
        broker.refuse(RequestCode.SEND_MESSAGE_V2, 13)
        outcome = await asyncio.gather(
            setting.producer.send(Message("orders", b"refused")), return_exceptions=True
        )
        assert isinstance(outcome[0], Exception)
        async with Producer(client=setting.client, group="Q") as other:
            await other.send(Message("orders", b"somebody else's"))
        await advance_async(setting.clock, 5)
        assert [each.body for each in broker.topics[TOPIC].queues[0]] == [
            b"a record of somebody's own"
        ]


async def test_producers_of_one_group_tell_once_and_the_last_one_tells_the_rest() -> None:
    async with Setting(group="P", trace="MY_TRACE") as setting:
        broker = setting.cluster.broker(topics={"orders": 1, "MY_TRACE": 1})
        second = Producer(client=setting.client, group="P", trace="MY_TRACE")
        await second.start()
        assert tracer_of(second) is tracer_of(setting.producer)
        await second.send(Message("orders", b"x"))
        await second.stop()
        assert told(broker, "MY_TRACE") == []
        await setting.producer.stop()
        assert [len(records) for records in told(broker, "MY_TRACE")] == [1]
        assert not services_of(setting.client).hooks


async def test_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "KEYS_SIZE", 400)
    async with Setting(group="P", trace=True) as setting:
        broker = setting.cluster.broker(topics=TOPICS)
        for number in range(25):
            await setting.producer.send(Message("orders", b"x" * number))
        await settle(20)
        assert [len(records) for records in told(broker)] == [12, 12]
        monkeypatch.setattr(trace, "KEYS_SIZE", 24_000)
        monkeypatch.setattr(trace, "BATCH_SIZE", 1000)
        for _ in range(10):
            await setting.producer.send(Message("orders", b"x"))
        await advance_async(setting.clock, 1)
        counts = [len(records) for records in told(broker)]
        assert sum(counts) == 35
        assert max(counts[2:]) < 8
        sizes = [
            len(decompress(e.body, e.sys_flag, 1 << 20)) for e in broker.topics[TOPIC].queues[0]
        ]
        assert max(sizes[3:]) <= 1000


async def test_a_trace_topic_that_takes_nothing_harms_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trace, "BATCH_SIZE", 300)
    async with Setting(group="P", trace=True) as setting:
        setting.cluster.broker(topics={"orders": 1})
        for _ in range(100):
            await setting.producer.send(Message("orders", b"x"))
        with pytest.raises(RouteNotFound):
            await setting.producer.send(Message("missing", b"x"))
        await advance_async(setting.clock, 10)
        assert tracer_of(setting.producer).dropped_count == 100
        assert setting.producer.in_flight_count == 0
    lines = [each for each in caplog.messages if "trace records dropped" in each]
    assert 1 <= len(lines) <= 8


async def test_what_a_consumer_does() -> None:
    it = Group({"orders": 1, TOPIC: 1})
    it.broker.add("orders", 0, b"good", KEYS="k")
    it.broker.add("orders", 0, b"bad", MSG_REGION="R9")
    it.broker.add("orders", 0, b"private", TRACE_ON="false")
    consumer = await it.consumer(trace=True)
    seen: list[bytes] = []

    async def handle(message: Any) -> None:
        if message.topic == "orders":
            seen.append(message.body)
        if message.body == b"bad":
            raise RuntimeError

    running = asyncio.create_task(consumer.run(handle, concurrency=1))
    await it.pass_time(1)
    assert seen[:3] == [b"good", b"bad", b"private"]
    await it.stop(consumer)
    await running

    records = [record for records in told(it.broker) for record in records]
    good = [record for record in records if getattr(record, "keys", "") == "k"]
    before, after = good
    assert isinstance(before, SubBeforeTrace)
    assert isinstance(after, SubAfterTrace)
    assert (before.group, before.retry_times, before.region_id) == (GROUP, 0, "")
    assert (after.request_id, after.group) == (before.request_id, GROUP)
    assert (after.success, after.context_code) == (True, TraceContextCode.SUCCESS)
    failed = [record for record in records if isinstance(record, SubAfterTrace)][1]
    assert (failed.success, failed.context_code) == (False, TraceContextCode.EXCEPTION)
    begun = [record for record in records if isinstance(record, SubBeforeTrace)][1]
    assert begun.region_id == "R9"
    assert len([record for record in records if record.msg_id == "U2"]) == 0
