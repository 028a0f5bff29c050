"""Questions about open transactions, over the telemetry streams of the topic's producers."""

from __future__ import annotations

import asyncio
from typing import Any

from skylarkmq.broker.grpc.calls import Call
from skylarkmq.broker.grpc.sessions import Sessions
from skylarkmq.broker.grpc.telemetry import SessionRpcs
from skylarkmq.protocol.v5 import schema_pb2
from skylarkmq.protocol.v5.codes import Code
from tests.broker.grpc.sending_rig import ID, TOPIC, TRANSACTION_ID, SendingRig, half, sending_rig
from tests.broker.grpc.session_rig import Stream, publishing
from tests.support.manual_clock import settle

BODY_MAX = 4 << 20
OK = (Code.OK, "OK")


class Client:
    """A producer whose stream is open."""

    def __init__(self, rig: SendingRig, sessions: Sessions, client_id: str, *topics: str) -> None:
        self.stream = Stream()
        rpcs = SessionRpcs(sessions, rig.groups, rig.clock, rig.clock, BODY_MAX)
        call = Call(client_id, language="JAVA", peer="192.0.2.5:4711")
        self.task = asyncio.ensure_future(rpcs.telemetry(call, self.stream))
        self.stream.says(settings=publishing(*topics))

    def asked(self) -> list[schema_pb2.RecoverOrphanedTransactionCommand]:
        """What it was asked about since the last look."""
        return [
            command.recover_orphaned_transaction_command
            for command in self.stream.took()
            if command.HasField("recover_orphaned_transaction_command")
        ]

    async def leave(self) -> None:
        self.stream.half_closes()
        await self.task


async def rig_with_sessions(**config: Any) -> tuple[SendingRig, Sessions]:
    values = {"transaction_check_interval": 2000, "transaction_time_out": 1000}
    rig = await sending_rig(**values | config)
    rig.add_topic()
    return rig, Sessions(
        rig.consumers, rig.producers, rig.clock, rig.clock, BODY_MAX, rig.config.broker_name
    )


async def test_the_question_brings_the_whole_message_and_its_answer_ends_it() -> None:
    rig, sessions = await rig_with_sessions()
    client = Client(rig, sessions, "producer@1", TOPIC, "others")
    other = Client(rig, sessions, "other@1", "others")
    sent = half(b"paid", tag="red", keys=["k1"], properties={"n": "1"}, message_group="g")
    await rig.send_one(sent)
    await rig.advance(3)
    (question,) = client.asked()
    assert (question.transaction_id, other.asked()) == (TRANSACTION_ID, [])
    message, system = question.message, question.message.system_properties
    assert (message.topic.name, message.body, dict(message.user_properties)) == (
        TOPIC,
        b"paid",
        {"n": "1"},
    )
    assert (system.message_id, system.tag, [*system.keys]) == (ID, "red", ["k1"])
    assert (system.message_type, system.message_group) == (schema_pb2.TRANSACTION, "g")
    assert system.body_digest.checksum and system.born_timestamp.seconds
    code = await rig.end_key(question.transaction_id, source=schema_pb2.SOURCE_SERVER_CHECK)
    assert code == OK
    await rig.advance(4)
    assert client.asked() == []
    assert [found.body for found in rig.all_seen()] == [b"paid"]
    for one in (client, other):
        await one.leave()


async def test_producers_of_a_topic_are_asked_in_turn() -> None:
    rig, sessions = await rig_with_sessions()
    clients = [Client(rig, sessions, f"producer@{number}", TOPIC) for number in range(3)]
    await settle()
    await rig.send_one(half())
    await rig.advance(12)
    assert [len(client.asked()) for client in clients] == [2, 2, 2]
    for client in clients:
        await client.leave()


async def test_a_question_that_nobody_can_hear_is_not_counted() -> None:
    """Its producer may take minutes until it opens its stream again."""
    rig, sessions = await rig_with_sessions(transaction_check_max=2)
    client = Client(rig, sessions, "producer@1", TOPIC)
    await settle()
    await rig.send_one(half())
    await client.leave()
    await rig.advance(20)
    assert (rig.given_up(), rig.ledger.pending_count) == ([], 1)
    again = Client(rig, sessions, "producer@1", TOPIC)
    await rig.advance(3)
    assert [question.transaction_id for question in again.asked()] == [TRANSACTION_ID]
    assert await rig.end_key() == OK
    await again.leave()


async def test_the_time_before_the_first_question_is_the_messages_own() -> None:
    rig, sessions = await rig_with_sessions()
    client = Client(rig, sessions, "producer@1", TOPIC)
    await settle()
    await rig.send_one(half(recovery_s=10))
    await rig.advance(9)
    assert client.asked() == []
    await rig.advance(2)
    (question,) = client.asked()
    assert question.message.user_properties == {}
    await client.leave()
