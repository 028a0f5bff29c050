"""Answers of pulls: one write, the same content in each codec, what is counted."""

from __future__ import annotations

import pytest

from skylarkmq.broker.processor.pull import PullAnswers
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.command import RemotingCommand, decode_command
from skylarkmq.protocol.frame import FrameDecoder, SerializeType
from skylarkmq.protocol.headers.pull import PullMessageRequestHeader
from skylarkmq.remoting.connection import CODEC_FIELD
from skylarkmq.store.results import GetMessageResult, GetMessageStatus
from tests.support.fake_transport import Owner, Transport, connect

CODECS = [SerializeType.JSON, SerializeType.ROCKETMQ, SerializeType.MSGPACK]
HEADER = PullMessageRequestHeader(
    consumer_group="g",
    topic="T",
    queue_id=0,
    queue_offset=5,
    max_msg_nums=32,
    sys_flag=0,
    commit_offset=0,
    suspend_timeout_millis=0,
    sub_version=0,
)
FOUND = GetMessageResult(
    GetMessageStatus.FOUND, 9, 1, 2**40, [memoryview(b"one"), memoryview(b"and two")], 3, 10
)
NOTHING = GetMessageResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, 5, 0, 5)


class Rig:
    """The answers of one connection."""

    def __init__(self) -> None:
        self.owner = Owner()
        self.answers = PullAnswers(self.owner.stats)
        self.connection, self.transport = connect(self.owner, Transport())

    def send(
        self, request: RemotingCommand, code: ResponseCode, result: GetMessageResult
    ) -> RemotingCommand | None:
        self.connection._in_read = True
        self.answers.send(self.connection, request, HEADER, code, result)
        self.connection.write_out()
        if not self.transport.writes:
            return None
        (frame,) = FrameDecoder().feed(self.transport.writes.pop())
        return decode_command(frame)


def request(kind: int = SerializeType.JSON, **more: object) -> RemotingCommand:
    fields = {CODEC_FIELD: "msgpack.1"} if more.pop("codec", False) else {}
    oneway = bool(more.pop("oneway", False))
    return RemotingCommand.request(11, fields, opaque=77, serialize_type=kind, oneway=oneway)


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize("codec", [False, True])
def test_the_content_is_the_same_in_each_codec(kind: int, codec: bool) -> None:
    answer = Rig().send(request(kind, codec=codec), ResponseCode.SUCCESS, FOUND)
    assert answer is not None
    assert (answer.code, answer.opaque, answer.remark) == (0, 77, "FOUND")
    assert (answer.is_response, answer.serialize_type) == (True, kind)
    assert answer.body == b"oneand two"
    fields = dict(answer.ext_fields)
    echoed = fields.pop(CODEC_FIELD, None)
    assert echoed == ("msgpack.1" if codec and kind == SerializeType.JSON else None)
    assert fields == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "9",
        "minOffset": "1",
        "maxOffset": str(2**40),
    }


@pytest.mark.parametrize("kind", CODECS)
@pytest.mark.parametrize("status", list(GetMessageStatus))
def test_every_status_is_a_remark(kind: int, status: GetMessageStatus) -> None:
    result = GetMessageResult(status, 5, 0, 5)
    answer = Rig().send(request(kind), ResponseCode.PULL_NOT_FOUND, result)
    assert answer is not None
    assert (answer.code, answer.remark, answer.body) == (19, status.value, b"")


def test_what_is_counted() -> None:
    rig = Rig()
    rig.send(request(), ResponseCode.SUCCESS, FOUND)
    rig.send(request(), ResponseCode.PULL_NOT_FOUND, NOTHING)
    stats = rig.owner.stats
    out = stats.topics_out["T", "g"]
    assert (out.count, out.bytes) == (3, 10)
    assert (stats.pull_results["found"], stats.pull_results["no_new"]) == (1, 1)
    assert stats.frames_out[0].count == 2
    assert stats.frames_out[0].bytes > 10


def test_one_way_and_lost_peers_get_nothing_and_count_no_messages() -> None:
    rig = Rig()
    assert rig.send(request(oneway=True), ResponseCode.SUCCESS, FOUND) is None
    rig.connection.connection_lost(None)
    assert rig.send(request(), ResponseCode.SUCCESS, FOUND) is None
    assert rig.owner.stats.topics_out == {}
