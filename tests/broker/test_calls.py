"""Over the wire: replies, moved groups, and what is asked of clients through a whole broker."""

from __future__ import annotations

from pathlib import Path

from skylarkmq.protocol import lenient_json
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.command import RemotingCommand, encode_command
from tests.support.live_broker import live_broker
from tests.support.raw_client import RawClient, pull_fields, send_fields

ASKING = "10.0.0.1@asking"
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"


def beat(client_id: str, *, producer: bool) -> bytes:
    """A heartbeat of a producer, or of a consumer of T."""
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": "cg",
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [
            {"topic": "T", "subString": "*", "subVersion": 1, "expressionType": "TAG"}
        ],
        "unitMode": False,
    }
    body = {
        "clientID": client_id,
        "producerDataSet": [{"groupName": "pg"}] if producer else [],
        "consumerDataSet": [] if producer else [consumer],
    }
    return lenient_json.dumps(body)


def answer(client: RawClient, push: RemotingCommand, code: int = 0, body: bytes = b"") -> None:
    client.writer.write(encode_command(push.reply(code, None, {}, body)))


async def test_a_reply_goes_to_who_asked_and_its_sender_hears_of_it(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        asking, replying = [await RawClient.open(broker.listen_address) for _ in range(2)]
        assert (
            await asking.call(RequestCode.HEART_BEAT, body=beat(ASKING, producer=True))
        ).code == 0
        properties = f"MSG_TYPE\x01reply\x02CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01{ASKING}"
        fields = send_fields(REPLY_TOPIC, 0, properties)
        opaque = replying.send(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"pong")
        push = await asking.push()
        assert (push.code, push.body) == (326, b"pong")
        assert "CORRELATION_ID\x01c\x02" in push.ext_fields["properties"]
        answer(asking, push)
        told = await replying.answer(opaque)
        assert (told.code, told.remark) == (0, None)
        found = await replying.call(11, pull_fields(REPLY_TOPIC))
        assert found.code == 0, "it is stored too"
        assert b"pong" in (found.body or b"")
        await asking.close()
        opaque = replying.send(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"late")
        assert (await replying.answer(opaque)).code == ResponseCode.SYSTEM_ERROR
        await replying.close()


async def test_groups_are_moved_and_members_asked(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        member, admin = [await RawClient.open(broker.listen_address) for _ in range(2)]
        for _ in range(3):
            sent = await admin.call(310, send_fields("T", 0), b"hello")
            assert sent.code == 0, sent.remark
        assert (
            await member.call(RequestCode.HEART_BEAT, body=beat("c1", producer=False))
        ).code == 0
        assert (await member.push()).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        for queue_id in range(4):
            place = {"consumerGroup": "cg", "topic": "T", "queueId": str(queue_id)}
            await member.call(15, {**place, "commitOffset": "0"})
        move = {"topic": "T", "group": "cg", "timestamp": "-1", "isForce": "true"}
        moved = await admin.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, move)
        assert moved.code == 0, moved.remark
        push = await member.push()
        assert push.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        assert lenient_json.loads(push.body) == lenient_json.loads(moved.body)

        asked = {"consumerGroup": "cg", "clientId": "c1", "msgId": sent.ext_fields["msgId"]}
        opaque = admin.send(RequestCode.CONSUME_MESSAGE_DIRECTLY, asked)
        push = await member.push()
        assert b"hello" in push.body
        answer(member, push, 0, b'{"consumeResult":"CR_SUCCESS"}')
        told = await admin.answer(opaque)
        assert (told.code, told.body) == (0, b'{"consumeResult":"CR_SUCCESS"}')

        await member.close()
        refused = await admin.call(RequestCode.GET_CONSUMER_RUNNING_INFO, asked)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        refused = await admin.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, move)
        assert refused.code == ResponseCode.CONSUMER_NOT_ONLINE
        moved = await admin.call(
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {**move, "offset": "1", "queueId": "0"}
        )
        assert moved.code == 0, moved.remark
        place = {"consumerGroup": "cg", "topic": "T", "queueId": "0"}
        assert (await admin.call(14, place)).ext_fields["offset"] == "1"
        await admin.close()
