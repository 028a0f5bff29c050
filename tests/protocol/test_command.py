"""Commands over all three codecs, against the golden frames and against lies."""

from typing import Any

import pytest

from skylarkmq.protocol.codes import LanguageCode
from skylarkmq.protocol.command import (
    HEADER_SIZE_MAX,
    RemotingCommand,
    decode_command,
    encode_command,
)
from skylarkmq.protocol.errors import LocalProtocolError
from skylarkmq.protocol.frame import BadFrameError, RawFrame, SerializeType
from tests.protocol.message_vectors import FRAMES
from tests.protocol.support import decodes_to, frames_of, only_frame

FRAME_VECTORS = {name: item for name, item in FRAMES.items() if item["kind"] == "frame"}


def expected_command(vector: dict[str, Any]) -> RemotingCommand:
    """Return what the vector's `decoded` part says; the body stays as it is in the frame."""
    decoded = vector["decoded"]
    frame = only_frame(bytes.fromhex(vector["hex"]))
    return RemotingCommand(
        decoded["code"],
        language=LanguageCode.JAVA,
        version=409,
        opaque=decoded["opaque"],
        flag=decoded.get("flag", 0),
        remark=decoded.get("remark"),
        ext_fields=decoded.get("extFields"),
        body=frame.body,
        serialize_type=frame.serialize_type,
    )


def test_the_vectors_are_there() -> None:
    assert len(FRAME_VECTORS) == 13


@pytest.mark.parametrize("name", FRAME_VECTORS)
def test_golden_frames_are_read_however_they_arrive(name: str) -> None:
    vector = FRAME_VECTORS[name]
    decodes_to(bytes.fromhex(vector["hex"]), expected_command(vector))


@pytest.mark.parametrize("name", FRAME_VECTORS)
def test_golden_frames_are_written(name: str) -> None:
    """Binary frames byte for byte, JSON frames by content: Java's order of extFields is a hash."""
    data = bytes.fromhex(FRAME_VECTORS[name]["hex"])
    command = expected_command(FRAME_VECTORS[name])
    written = encode_command(command)
    if command.serialize_type == SerializeType.ROCKETMQ:
        assert written == data
    decodes_to(written, command)


@pytest.mark.parametrize("serialize_type", list(SerializeType))
@pytest.mark.parametrize("name", FRAME_VECTORS)
def test_every_codec_carries_every_vector(name: str, serialize_type: SerializeType) -> None:
    command = expected_command(FRAME_VECTORS[name])
    command.serialize_type = serialize_type
    decodes_to(encode_command(command), command)


@pytest.mark.parametrize("name", FRAME_VECTORS)
def test_a_cut_frame_is_no_frame(name: str) -> None:
    data = bytes.fromhex(FRAME_VECTORS[name]["hex"])
    frames_of(data)
    frame = only_frame(data)
    for size in range(len(frame.header)):
        with pytest.raises(BadFrameError):
            decode_command(frame._replace(header=frame.header[:size]))


@pytest.mark.parametrize("serialize_type", [2, 3, 0x4C, 255])
def test_an_unknown_codec_is_a_bad_header(serialize_type: int) -> None:
    with pytest.raises(BadFrameError) as caught:
        decode_command(RawFrame(serialize_type, b"{}", b""))
    assert caught.value.kind == "bad_header"
    with pytest.raises(LocalProtocolError):
        encode_command(RemotingCommand(1, serialize_type=serialize_type))


@pytest.mark.parametrize("serialize_type", list(SerializeType))
def test_a_header_over_the_limit_is_refused(serialize_type: SerializeType) -> None:
    command = RemotingCommand(1, ext_fields={"i": "x" * (HEADER_SIZE_MAX - 300)})
    command.serialize_type = serialize_type
    decodes_to_itself = only_frame(encode_command(command))
    assert decode_command(decodes_to_itself) == command
    command.ext_fields["i"] += "x" * 300
    with pytest.raises(BadFrameError):
        decode_command(only_frame(encode_command(command)))


@pytest.mark.parametrize("serialize_type", list(SerializeType))
def test_what_utf8_cannot_carry_is_our_own_fault(serialize_type: SerializeType) -> None:
    for command in (
        RemotingCommand(1, remark="\udc80", serialize_type=serialize_type),
        RemotingCommand(1, ext_fields={"a": "\ud800"}, serialize_type=serialize_type),
    ):
        with pytest.raises(LocalProtocolError):
            encode_command(command)


def test_requests() -> None:
    command = RemotingCommand.request(310, {"a": "g"}, b"body", opaque=7)
    assert (command.is_response, command.is_oneway) == (False, False)
    assert (command.language, command.version) == (LanguageCode.PYTHON, 409)
    oneway = RemotingCommand.request(15, oneway=True)
    assert (oneway.is_oneway, oneway.flag, oneway.ext_fields) == (True, 2, {})


def test_a_reply_goes_back_the_way_its_request_came() -> None:
    request = RemotingCommand.request(11, opaque=9, serialize_type=SerializeType.ROCKETMQ)
    reply = request.reply(19, "OFFSET_OVERFLOW_ONE", {"minOffset": "0"}, b"records")
    assert reply.is_response
    assert (reply.code, reply.opaque, reply.serialize_type) == (19, 9, SerializeType.ROCKETMQ)
    assert (reply.remark, reply.body) == ("OFFSET_OVERFLOW_ONE", b"records")
    assert reply.ext_fields == {"minOffset": "0"}


def test_ext_fields_are_not_shared() -> None:
    fields = {"a": "1"}
    RemotingCommand.request(1, fields).ext_fields["b"] = "2"
    RemotingCommand(1).reply(0, None, fields).ext_fields["b"] = "2"
    assert fields == {"a": "1"}
    RemotingCommand(1).ext_fields["x"] = "y"
    assert RemotingCommand(1).ext_fields == {}


def test_equality_and_appearance() -> None:
    assert RemotingCommand(1, body=b"x") == RemotingCommand(1, body=b"x")
    assert RemotingCommand(1) != RemotingCommand(2)
    assert RemotingCommand(1) != "RemotingCommand"
    assert "secret" not in repr(RemotingCommand(1, ext_fields={"k": "secret"}, body=b"secret"))
