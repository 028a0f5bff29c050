"""Send frames from templates mean the same as those from the typed header, whatever the values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylarkmq.client.errors import ProtocolError
from skylarkmq.client.wire.api_send import SendRequest, SendTemplate, stored_answer
from skylarkmq.protocol.command import decode_command, encode_command
from skylarkmq.protocol.frame import FrameDecoder, SerializeType
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.send_answer import as_command, read_stored

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
    answer = RemotingCommand(10, opaque=8, ext_fields=fields)
    assert stored_answer(answer) == (8, 10, "M", 3, 9, None, "R", "true")
    with pytest.raises(ProtocolError, match="queueOffset"):
        stored_answer(RemotingCommand(0, ext_fields={"msgId": "M", "queueId": "1"}))


@pytest.mark.parametrize("kind", [SerializeType.JSON, SerializeType.MSGPACK])
def test_the_quick_road_reads_what_the_general_road_reads(kind: SerializeType) -> None:
    request = RemotingCommand.request(310, opaque=77, serialize_type=kind)
    fields = {
        "msgId": "M", "queueId": "3", "queueOffset": str(2**59), "transactionId": "T",
        "MSG_REGION": "R", "TRACE_ON": "false",
    }  # fmt: skip
    (frame,) = FrameDecoder().feed(encode_command(request.reply(10, None, fields)))
    (quick,) = read_stored([frame])
    assert quick == stored_answer(decode_command(frame))
    assert quick is not None
    assert quick == (77, 10, "M", 3, 2**59, "T", "R", "false")
    assert as_command(quick).ext_fields == fields
