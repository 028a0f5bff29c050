"""Send frames from templates mean the same as those from the typed header, whatever the values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.client.errors import ProtocolError
from skylarkmq.client.wire.api_send import SendRequest, SendTemplate, stored_fields
from skylarkmq.protocol.command import decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder, RawFrame, SerializeType
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.send_answer import as_command, decode_stored

text = st.text(st.characters(codec="utf-8"), max_size=40)
int32 = st.integers(-(2**31), 2**31 - 1)


class RecordingConnection:
    """Takes what a template submits; stands for an open connection."""

    by_start = False

    def __init__(self, serialize_type: int) -> None:
        self.serialize_type = serialize_type
        self.frame = b""

    def take_opaque(self) -> int:
        return 0x7FFFFFFF

    def submit(self, opaque: int, head: bytes, body: bytes, *_: object) -> None:
        self.frame = head + body

    def start(self, command: RemotingCommand, *_: object) -> int:
        command.opaque = self.take_opaque()
        command.serialize_type = self.serialize_type
        self.frame = encode_command(command)
        return command.opaque


@given(
    group=text, topic=text, broker=text, properties=text, body=st.binary(max_size=50),
    queue_id=int32, sys_flag=int32, flag=int32, born=st.integers(0, 2**62),
    kind=st.sampled_from([SerializeType.JSON, SerializeType.MSGPACK]),
)  # fmt: skip
def test_templates_mean_what_the_typed_header_means(
    group: str, topic: str, broker: str, properties: str, body: bytes, queue_id: int,
    sys_flag: int, flag: int, born: int, kind: SerializeType,
) -> None:  # fmt: skip
    template = SendTemplate(group, MessageQueue(topic, broker, queue_id), 4)
    request = SendRequest(topic, body, properties, "ID", born, flag=flag, sys_flag=sys_flag)
    connection: Any = RecordingConnection(kind)
    opaque = template.start(connection, request, object())  # type: ignore[arg-type]
    (frame,) = FrameDecoder().feed(connection.frame)
    expected = template.command(request)
    expected.opaque = opaque
    expected.serialize_type = kind
    (expected_frame,) = FrameDecoder().feed(encode_command(expected))
    assert decode_command(frame) == decode_command(expected_frame)


@pytest.mark.parametrize("kind", list(SerializeType))
def test_rare_fields_take_the_typed_road(kind: SerializeType) -> None:
    template = SendTemplate("g", MessageQueue("%RETRY%g", "b", 0), 4)
    request = SendRequest("%RETRY%g", b"x", "", "ID", 1, reconsume_times=3, max_reconsume_times=16)
    connection: Any = RecordingConnection(kind)
    template.start(connection, request, object())  # type: ignore[arg-type]
    (frame,) = FrameDecoder().feed(connection.frame)
    fields = decode_command(frame).ext_fields
    assert (fields["j"], fields["l"]) == ("3", "16")


def test_answers_say_where_the_message_is() -> None:
    fields = {"msgId": "M", "queueId": "3", "queueOffset": "9", "MSG_REGION": "R"}
    got = stored_fields(RemotingCommand(0, ext_fields=fields))
    assert (got.msg_id, got.queue_id, got.queue_offset) == ("M", 3, 9)
    assert (got.transaction_id, got.region_id, got.trace_on) == (None, "R", "true")
    with pytest.raises(ProtocolError, match="queueOffset"):
        stored_fields(RemotingCommand(0, ext_fields={"msgId": "M", "queueId": "1"}))


@pytest.mark.parametrize("kind", [SerializeType.JSON, SerializeType.MSGPACK])
def test_the_quick_road_reads_what_the_general_road_reads(kind: SerializeType) -> None:
    request = RemotingCommand.request(310, opaque=77, serialize_type=kind)
    fields = {
        "msgId": "M", "queueId": "3", "queueOffset": str(2**62), "transactionId": "T",
        "MSG_REGION": "R", "TRACE_ON": "false",
    }  # fmt: skip
    frame_bytes = encode_command(request.reply(10, "late", fields))
    (frame,) = FrameDecoder().feed(frame_bytes)
    quick = decode_stored(frame)
    assert quick is not None
    assert (quick.opaque, quick.code, quick.remark) == (77, 10, "late")
    assert quick.fields == stored_fields(decode_command(frame))
    assert as_command(quick).ext_fields == fields


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":0,"flag":1,"opaque":1,"extFields":{"msgId":"M","queueId":"x","queueOffset":"1"}}',
        b'{"code":0,"flag":1,"opaque":1,"extFields":{"msgId":"M","queueId":"1"}}',
        b'{"code":0,"flag":0,"opaque":1,"extFields":{"msgId":"M","queueId":"1","queueOffset":"1"}}',
        b'{"code":0,"flag":1,"opaque":1,"remark":"msgId"}',
        b"[" * 5000 + b"msgId",
    ],
)
def test_the_quick_road_leaves_everything_else_alone(header: bytes) -> None:
    assert decode_stored(RawFrame(0, header, b"")) is None
    assert decode_stored(RawFrame(1, header, b"")) is None
