"""What the broker tells and asks clients over their telemetry streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="the extra `grpc` is not installed")

from skylarkmq.broker.base.stats import BrokerStats
from skylarkmq.broker.groups.client_calls import ClientCalls
from skylarkmq.broker.grpc.peer import CALLS_MAX
from skylarkmq.broker.processor.admin.client_call import ClientCallProcessor
from skylarkmq.broker.processor.admin.group import AdminGroupProcessor
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.message_id import offset_message_id
from skylarkmq.protocol.record import encode_record
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from skylarkmq.remoting.errors import ConnectionFailed
from tests.broker.group_rig import FakeConnection, ask, begin, request
from tests.broker.grpc.session_rig import (
    BROKER,
    GROUP,
    TOPIC,
    SessionRig,
    Stream,
    a_call,
    publishing,
    subscription,
)
from tests.support.manual_clock import settle

ADMIN = FakeConnection("192.0.2.9:1")


class Rig(SessionRig):
    def __init__(self) -> None:
        super().__init__()
        self.client_calls = ClientCalls(lambda group: True)
        self.admin = ClientCallProcessor(self.context, self.client_calls)

    def asks(self, code: int, **fields: Any) -> Any:
        """A task that an administrator has asked for."""
        values = {"consumerGroup": GROUP, "clientId": "c@1", **fields}
        return begin(self.admin, ADMIN, request(code, values))


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    rig.start()
    rig.topic(TOPIC)
    return rig


def check_request(topic: str = TOPIC, properties: bytes = b"") -> RemotingCommand:
    """The question about a half message, as the check service asks it."""
    host = HostAddress("192.0.2.7", 10911).pack()
    body = encode_record(
        queue_id=0, flag=0, queue_offset=3, physical_offset=99, sys_flag=0, born_timestamp=1,
        born_host=host, store_timestamp=2, store_host=host, reconsume_times=0,
        prepared_transaction_offset=0, body=b"half", topic=topic.encode(),
        properties=b"UNIQ_KEY\x01K\x02" + properties,
    )  # fmt: skip
    fields = {"tranStateTableOffset": "3", "commitLogOffset": "99", "transactionId": "K"}
    return RemotingCommand.request(RequestCode.CHECK_TRANSACTION_STATE, fields, body, oneway=True)


async def test_a_producer_is_asked_how_its_transaction_ended(rig: Rig) -> None:
    stream = await rig.open(publishing(TOPIC))
    stream.took()
    (peer,) = rig.producers.clients(TOPIC)
    assert not peer.closed
    assert not peer.paused_since_s
    peer.push(check_request())
    await settle(20)
    (command,) = stream.took()
    question = command.recover_orphaned_transaction_command
    assert question.transaction_id == f"K@{BROKER}"
    assert question.message.topic.name == TOPIC
    assert question.message.body == b"half"


async def test_the_newest_stream_is_the_one_that_counts(rig: Rig) -> None:
    first = await rig.open(publishing(TOPIC))
    second = await rig.open(publishing(TOPIC))
    first.half_closes()
    await settle(20)
    second.took()
    (peer,) = rig.producers.clients(TOPIC)
    peer.push(check_request())
    await settle(20)
    assert len(first.took()) == 1
    assert len(second.took()) == 1


async def test_a_client_without_a_stream_waits_for_a_later_round(rig: Rig) -> None:
    stream = await rig.open(publishing(TOPIC))
    stream.half_closes()
    await settle(20)
    (peer,) = rig.producers.clients(TOPIC)
    assert not peer.closed
    assert peer.paused_since_s == rig.clock.monotonic()
    peer.push(check_request())
    again = await rig.open(publishing(TOPIC))
    assert not peer.paused_since_s
    assert [command.WhichOneof("command") for command in again.took()] == ["settings"]


async def test_a_client_that_does_not_read_is_bounded(rig: Rig) -> None:
    stream = await rig.open(publishing(TOPIC))
    stream.room.clear()
    (peer,) = rig.producers.clients(TOPIC)
    for _ in range(1000):
        peer.push(check_request())
    assert peer.paused_since_s == rig.clock.monotonic()
    stream.room.set()
    await settle(600)
    assert not peer.paused_since_s
    assert 200 < len(stream.took()) < 300


async def test_what_has_no_counterpart_is_dropped(rig: Rig) -> None:
    stream = await rig.open(subscription())
    stream.took()
    (peer,) = rig.consumers.members(GROUP)
    for code in (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, RequestCode.RESET_CONSUMER_CLIENT_OFFSET):
        peer.push(RemotingCommand.request(code, {}, oneway=True))
    await settle(20)
    assert stream.took() == []
    asked = RemotingCommand.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
    assert (await peer.call(asked, 5.0)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_an_administrator_sees_what_a_client_does(rig: Rig) -> None:
    stream = await rig.open(subscription())
    stream.took()
    task = rig.asks(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
    await settle(20)
    (command,) = stream.took()
    nonce = command.print_thread_stack_trace_command.nonce
    stream.says(
        thread_stack_trace=schema_pb2.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: …")
    )
    await settle(20)
    info = json.loads(task.result().body)
    assert info["jstack"] == "main: …"
    assert info["properties"]["PROP_CLIENT_VERSION"] == "JAVA 5.0.8"
    assert info["subscriptionSet"][0]["topic"] == TOPIC


async def test_without_stacks_the_broker_knows_enough(rig: Rig) -> None:
    stream = await rig.open(subscription(kind=schema_pb2.SIMPLE_CONSUMER))
    stream.half_closes()
    await settle(20)
    rig.clock.advance(5)
    answer = await ask(
        rig,
        rig.admin,
        ADMIN,
        request(
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            {"consumerGroup": GROUP, "clientId": "c@1", "jstackEnable": "false"},
        ),
    )
    properties = json.loads(answer.body)["properties"]
    assert properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
    assert int(properties["PROP_CONSUMER_START_TIMESTAMP"]) == rig.clock.now_ms() - 5000


async def consumed(rig: Rig, stream: Stream, code: int, message: str = "") -> dict[str, Any]:
    """What an administrator hears of a message that a client consumed."""
    rig.put(TOPIC, 0)
    unit = rig.store.queue_units(TOPIC, 0, 0, 1)[0]
    host = HostAddress("192.0.2.7", 10911).pack()
    task = rig.asks(
        RequestCode.CONSUME_MESSAGE_DIRECTLY, msgId=offset_message_id(host, unit.commit_offset)
    )
    for _ in range(5):
        await settle(20)
        rig.workers.run_all()
    (command,) = stream.took()
    assert command.verify_message_command.message.topic.name == TOPIC
    rig.clock.advance(1.5)
    result = schema_pb2.VerifyMessageResult(nonce=command.verify_message_command.nonce)
    stream.says(status=schema_pb2.Status(code=code, message=message), verify_message_result=result)
    await settle(20)
    answer = task.result()
    assert answer.code == ResponseCode.SUCCESS
    body: dict[str, Any] = json.loads(answer.body)
    return body


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (Code.OK, "CR_SUCCESS"),
        (Code.FAILED_TO_CONSUME_MESSAGE, "CR_LATER"),
        (Code.MESSAGE_CORRUPTED, "CR_RETURN_NULL"),
        (Code.UNSPECIFIED, "CR_SUCCESS"),
    ],
)
async def test_a_client_consumes_one_message(rig: Rig, code: int, result: str) -> None:
    stream = await rig.open(subscription())
    stream.took()
    body = await consumed(rig, stream, code, "why")
    assert body["consumeResult"] == result
    assert body["remark"] == "why"
    assert body["spentTimeMills"] == 1500


async def test_a_message_for_another_try_has_the_topic_that_the_client_knows(rig: Rig) -> None:
    stream = await rig.open(subscription())
    stream.took()
    (peer,) = rig.consumers.members(GROUP)
    body = check_request(f"%RETRY%{GROUP}", b"RETRY_TOPIC\x01T\x02").body
    asked = RemotingCommand.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, {}, body)
    task = asyncio.ensure_future(peer.call(asked, 5.0))
    await settle(20)
    (command,) = stream.took()
    assert command.verify_message_command.message.topic.name == TOPIC
    task.cancel()


async def test_a_client_that_does_not_answer_is_answered_for(rig: Rig) -> None:
    stream = await rig.open(subscription())
    timers = rig.clock.pending_count
    task = rig.asks(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
    await settle(20)
    rig.clock.advance(11)
    await settle(20)
    assert task.result().code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert len(stream.took()) == 2
    assert rig.clock.pending_count <= timers


async def test_a_client_without_a_stream_cannot_be_asked(rig: Rig) -> None:
    stream = await rig.open(subscription())
    stream.half_closes()
    await settle(20)
    task = rig.asks(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
    await settle(20)
    assert "has no stream open" in task.result().remark


async def test_questions_end_with_the_client(rig: Rig) -> None:
    await rig.open(subscription())
    timers = rig.clock.pending_count
    task = rig.asks(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
    await settle(20)
    await rig.leave()
    await settle(20)
    assert task.result().code == ResponseCode.SYSTEM_ERROR
    assert rig.clock.pending_count == timers


async def test_questions_are_bounded(rig: Rig) -> None:
    await rig.open(subscription())
    tasks = [
        rig.asks(RequestCode.GET_CONSUMER_RUNNING_INFO, jstackEnable="true")
        for _ in range(CALLS_MAX + 1)
    ]
    await settle(20)
    assert sum(task.done() for task in tasks) == 1
    (peer,) = rig.consumers.members(GROUP)
    asked = RemotingCommand.request(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        {"consumerGroup": GROUP, "clientId": "c@1", "jstackEnable": "true"},
    )
    with pytest.raises(ConnectionFailed, match="unanswered"):
        await peer.call(asked, 5.0)
    await rig.leave()
    await settle(20)


async def test_administrators_see_the_clients(rig: Rig) -> None:
    await rig.open(subscription())
    await rig.open(publishing(TOPIC), a_call("p@1", language="PYTHON", peer="192.0.2.6:5"))
    offsets: Any = None
    admin = AdminGroupProcessor(rig.context, offsets, BrokerStats())
    fields = {"consumerGroup": GROUP}
    answer = await ask(rig, admin, ADMIN, request(RequestCode.GET_CONSUMER_CONNECTION_LIST, fields))
    body = json.loads(answer.body)
    assert body["connectionSet"] == [
        {"clientAddr": "192.0.2.5:4711", "clientId": "c@1", "language": "JAVA", "version": 479}
    ]
    assert (body["consumeType"], body["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert list(body["subscriptionTable"]) == [TOPIC]
    fields = {"producerGroup": TOPIC}
    answer = await ask(rig, admin, ADMIN, request(RequestCode.GET_PRODUCER_CONNECTION_LIST, fields))
    (row,) = json.loads(answer.body)["connectionSet"]
    assert (row["clientId"], row["language"], row["version"]) == ("p@1", "PYTHON", 479)
