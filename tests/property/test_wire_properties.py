"""The wire under random input: what is written is read, the quick roads agree with the generic
one, and nothing but the protocol's errors comes out. Fields and bodies: test_body_properties.py.

Hypothesis prints the failing example and how to reproduce it.
"""

import contextlib
import json
import re
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skylarkmq.protocol import header_json, header_msgpack, header_rocketmq
from skylarkmq.protocol.codes import LanguageCode
from skylarkmq.protocol.command import RemotingCommand, decode_command, encode_command
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.frame import (
    BadFrameError,
    FrameDecoder,
    RawFrame,
    SerializeType,
    encode_frame,
)
from skylarkmq.protocol.headers.fields import decode_fields
from skylarkmq.protocol.headers.pull import PullMessageRequestHeader, decode_pull_header
from tests.support.amounts import examples

# The time of an example says nothing on a busy machine.
CALM = examples(40, 200)

INT16 = st.integers(-(1 << 15), (1 << 15) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
FULL_TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
FIELDS = st.dictionaries(FULL_TEXTS, FULL_TEXTS, max_size=8)
CODECS = st.sampled_from(list(SerializeType))
LANGUAGES = st.sampled_from(list(LanguageCode))
COMMANDS = st.builds(
    RemotingCommand,
    INT16,
    LANGUAGES,
    INT16,
    INT32,
    INT32,
    st.none() | FULL_TEXTS,
    FIELDS,
    st.binary(max_size=50),
    CODECS,
)
SEND_TEXTS = {letter: "1" for letter in "abcdefghijklmn"}
PULL_TEXTS = {
    field.encode_name: "1" for field in msgspec.structs.fields(PullMessageRequestHeader)
} | {"ReqT": "0"}
# Values of one field, mostly as they should be: what a client or an attacker may put there.
VALUES = st.one_of(
    st.sampled_from(["0", "-1", "", "true", "1.0", " 1", "\u0661", "null"]),
    TEXTS,
    st.none(),
    st.booleans(),
    INT64,
    st.floats(allow_nan=False, allow_infinity=False),
    st.just([1]),
    st.just({"a": "b"}),
)


@CALM
@given(COMMANDS)
def test_a_command_survives_every_codec(command: RemotingCommand) -> None:
    (frame,) = FrameDecoder().feed(encode_command(command))
    assert decode_command(frame) == command


@CALM
@given(st.lists(COMMANDS, max_size=5), st.lists(st.integers(0, 400), max_size=8))
def test_cuts_do_not_matter(commands: list[RemotingCommand], cuts: list[int]) -> None:
    data = b"".join(encode_command(command) for command in commands)
    decoder = FrameDecoder()
    frames: list[RawFrame] = []
    start = 0
    for cut in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        frames += decoder.feed(data[start:cut])
        start = cut
    assert [decode_command(frame) for frame in frames] == commands
    assert decoder.buffered_size == 0


@CALM
@given(st.binary(max_size=60), st.lists(st.integers(1, 9), max_size=20))
@example(b"\x00\x00\x00\x04\x00\x00\x00\x00\xff", [3, 1, 9])
def test_random_bytes_give_frames_or_the_protocols_error(data: bytes, sizes: list[int]) -> None:
    """In one piece or in several, the same frames come out before the same kind of end."""

    def outcome(pieces: list[bytes]) -> tuple[list[RawFrame], str]:
        decoder = FrameDecoder(max_frame_size=1000)
        frames: list[RawFrame] = []
        for piece in pieces:
            try:
                frames += decoder.feed(piece)
            except BadFrameError as error:
                return frames + error.frames, error.kind
        return frames, f"waits with {decoder.buffered_size}"

    pieces: list[bytes] = []
    rest = data
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    assert outcome([*pieces, rest]) == outcome([data])


@CALM
@given(CODECS, st.binary(max_size=80))
def test_random_headers_give_a_command_or_the_protocols_error(
    codec: SerializeType, header: bytes
) -> None:
    with contextlib.suppress(BadFrameError):
        decode_command(RawFrame(codec, header, b""))


@CALM
@given(COMMANDS, st.data())
def test_damaged_headers_give_a_command_or_the_protocols_error(
    command: RemotingCommand, data: st.DataObject
) -> None:
    (frame,) = FrameDecoder().feed(encode_command(command))
    header = bytearray(frame.header)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(header) - 1))
        header[position] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadFrameError):
        damaged = decode_command(frame._replace(header=bytes(header)))
        assert all(isinstance(text, str) for text in damaged.ext_fields.values())


def plain(fields: Any) -> dict[str, str]:
    """Return the fields of a quick road the way in which the generic road holds them."""
    infos = msgspec.structs.fields(type(fields))
    texts: dict[str, str | None] = {info.encode_name: getattr(fields, info.name) for info in infos}
    return {name: text for name, text in texts.items() if text is not None}


@st.composite
def fields_near(draw: st.DrawFn, texts: dict[str, str]) -> dict[str, Any]:
    """Fields of a hot request, with up to four of them changed, missing or added."""
    fields: dict[str, Any] = dict(texts)
    names = [*texts, "AccessKey", "skylarkmq.codec"]
    for name in draw(st.lists(st.sampled_from(names), max_size=4, unique=True)):
        if draw(st.booleans()):
            fields[name] = draw(VALUES)
        else:
            fields.pop(name, None)
    return fields


@st.composite
def json_headers(draw: st.DrawFn, code: int, texts: dict[str, str]) -> bytes:
    """A JSON header like a hot request's, members changed, doubled, missing or added."""
    members: list[tuple[str, Any]] = [
        ("code", code),
        ("extFields", draw(fields_near(texts))),
        ("flag", 0),
        ("language", "JAVA"),
        ("opaque", draw(INT32)),
        ("serializeTypeCurrentRPC", "JSON"),
        ("version", 409),
    ]
    changes = st.tuples(
        st.sampled_from([name for name, _ in members] + ["remark", "other"]),
        st.one_of(VALUES, st.just(10), st.just(320), st.just("GO"), fields_near(texts)),
    )
    members += draw(st.lists(changes, max_size=2))
    if draw(st.booleans()):
        members.pop(draw(st.integers(0, len(members) - 1)))
    ascii_only = draw(st.booleans())
    texts_of = [
        f"{json.dumps(name)}:{json.dumps(value, ensure_ascii=ascii_only)}"
        for name, value in members
    ]
    return ("{" + ",".join(texts_of) + "}").encode()


def agrees(fast: Any, generic: RemotingCommand) -> None:
    assert fast.code == generic.code
    assert fast.opaque == generic.opaque
    assert fast.flag == generic.flag
    assert fast.version == generic.version
    assert plain(fast.ext_fields) == generic.ext_fields
    assert generic.remark is None


@examples(60, 600)
@given(json_headers(310, SEND_TEXTS))
def test_the_quick_road_of_json_sends_agrees(header: bytes) -> None:
    fast = header_json.decode_send_v2_fast(header)
    if fast is not None:
        generic = header_json.decode_header(header)
        agrees(fast, generic)
        assert LanguageCode.__members__.get(fast.language, LanguageCode.OTHER) is generic.language


@examples(60, 600)
@given(fields_near(PULL_TEXTS))
def test_the_header_of_a_pull_is_the_generic_one(fields: dict[str, Any]) -> None:
    texts = {name: value for name, value in fields.items() if isinstance(value, str)}
    try:
        generic = decode_fields(PullMessageRequestHeader, texts)
    except RemoteProtocolError as error:
        with pytest.raises(RemoteProtocolError, match=re.escape(error.remark)):
            decode_pull_header(texts)
    else:
        assert decode_pull_header(texts) == generic


@CALM
@given(fields_near(SEND_TEXTS), INT32, st.none() | TEXTS)
def test_the_quick_road_of_msgpack_sends_agrees(
    send: dict[str, Any], opaque: int, remark: str | None
) -> None:
    header: bytes = msgpack.packb([310, 3, 409, opaque, 0, remark, send, "behind"])
    fast = header_msgpack.decode_send_v2_fast(header)
    if fast is not None:
        agrees(fast, header_msgpack.decode_header(header))


@CALM
@given(fields_near(SEND_TEXTS), INT32, st.none() | TEXTS, st.binary(max_size=8))
def test_the_quick_road_of_rocketmq_sends_agrees(
    fields: dict[str, Any], opaque: int, remark: str | None, behind: bytes
) -> None:
    texts = {name: value for name, value in fields.items() if isinstance(value, str)}
    command = RemotingCommand(310, opaque=opaque, remark=remark, ext_fields=texts)
    header = header_rocketmq.encode_header(command) + behind
    fast = header_rocketmq.decode_send_v2_fast(header)
    if fast is not None:
        generic = header_rocketmq.decode_header(header)
        assert (fast.code, fast.opaque, fast.flag) == (310, opaque, generic.flag)
        assert plain(fast.ext_fields) == generic.ext_fields


@examples(60, 600)
@given(fields_near(SEND_TEXTS), st.data())
def test_the_quick_road_of_damaged_rocketmq_sends_agrees(
    fields: dict[str, Any], data: st.DataObject
) -> None:
    texts = {name: value for name, value in fields.items() if isinstance(value, str)}
    header = bytearray(header_rocketmq.encode_header(RemotingCommand(310, ext_fields=texts)))
    for _ in range(data.draw(st.integers(1, 2))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    fast = header_rocketmq.decode_send_v2_fast(bytes(header))
    if fast is not None:
        generic = header_rocketmq.decode_header(bytes(header))
        assert plain(fast.ext_fields) == generic.ext_fields
        assert (fast.code, fast.opaque, fast.flag) == (generic.code, generic.opaque, generic.flag)


@CALM
@given(st.dictionaries(st.sampled_from("abcdefghijklmn"), TEXTS), INT32)
def test_a_plain_send_takes_the_quick_road(changed: dict[str, str], opaque: int) -> None:
    """Against a quick road that is so careful that nobody takes it."""
    command = RemotingCommand(310, opaque=opaque, ext_fields={**SEND_TEXTS, **changed})
    fast = header_json.decode_send_v2_fast(header_json.encode_header(command))
    assert fast is not None
    agrees(fast, command)
    header = header_msgpack.encode_header(command)
    other = header_msgpack.decode_send_v2_fast(header)
    assert other is not None or header.count(header_msgpack.NIL) > 1
    if other is not None:
        agrees(other, command)
    header = header_rocketmq.encode_header(command)
    fast_binary = header_rocketmq.decode_send_v2_fast(header)
    if all(command.ext_fields.get(letter) for letter in "abcdefgh"):
        assert fast_binary is not None
        assert plain(fast_binary.ext_fields) == header_rocketmq.decode_header(header).ext_fields


@CALM
@given(INT32, st.text("0123456789ABCDEF,", max_size=70), INT32, INT64, TEXTS)
def test_send_answers_say_what_the_generic_encoders_say(
    opaque: int, msg_id: str, queue_id: int, queue_offset: int, region: str
) -> None:
    fields = {
        "msgId": msg_id,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "MSG_REGION": region,
        "TRACE_ON": "true",
    }
    command = RemotingCommand(0, opaque=opaque, flag=1, ext_fields=fields)
    for codec in (header_json, header_rocketmq, header_msgpack):
        encode = codec.send_response_encoder(codec.send_response_parts(region, "true"))
        written = encode(opaque, msg_id.encode(), queue_id, queue_offset)
        assert codec.decode_header(written) == codec.decode_header(codec.encode_header(command))


@CALM
@given(INT16, INT32, st.none() | TEXTS, INT64, INT64, INT64, INT64)
def test_pull_answers_say_what_the_generic_encoders_say(
    code: int, opaque: int, remark: str | None, suggest: int, following: int, least: int, most: int
) -> None:
    fields = {
        "suggestWhichBrokerId": str(suggest),
        "nextBeginOffset": str(following),
        "minOffset": str(least),
        "maxOffset": str(most),
    }
    command = RemotingCommand(code, opaque=opaque, flag=1, remark=remark, ext_fields=fields)
    for codec in (header_json, header_rocketmq, header_msgpack):
        written = codec.encode_pull_response(code, opaque, remark, suggest, following, least, most)
        assert codec.decode_header(written) == codec.decode_header(codec.encode_header(command))


@CALM
@given(COMMANDS)
def test_the_msgpack_package_reads_what_we_write(command: RemotingCommand) -> None:
    data = header_msgpack.encode_header(command)
    fields = command.ext_fields or None
    assert msgpack.unpackb(data) == [
        command.code,
        command.language,
        command.version,
        command.opaque,
        command.flag,
        command.remark,
        fields,
    ]


@CALM
@given(CODECS, st.binary(max_size=40), st.binary(max_size=40))
def test_a_frame_survives(codec: SerializeType, header: bytes, body: bytes) -> None:
    data = encode_frame(codec, header, body)
    assert FrameDecoder().feed(data) == [RawFrame(codec, header, body)]
