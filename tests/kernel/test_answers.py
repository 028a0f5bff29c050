"""Answers to sends: the kernel, its twin and the general road read the same."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from skylarkmq import kernel
from skylarkmq.client.wire.api_send import stored_answer
from skylarkmq.protocol import header_json, header_msgpack
from skylarkmq.protocol.command import decode_command, encode_command
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.frame import FrameDecoder, RawFrame, SerializeType
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting import send_answer
from skylarkmq.remoting.errors import ProtocolError
from skylarkmq.remoting.send_answer import StoredAnswer

JSON, MSGPACK = int(SerializeType.JSON), int(SerializeType.MSGPACK)
MSG_ID = "C000021400002A9F0000000000001000"
PLAIN = {
    "msgId": MSG_ID, "queueId": "3", "queueOffset": "17", "MSG_REGION": "R", "TRACE_ON": "true",
}  # fmt: skip
INT_ENDS = (0, 1, 127, 128, 255, 256, 65_535, 65_536, 2**31 - 1)
LONG_ENDS = (*INT_ENDS, 2**31, 2**32 - 1, 2**32, 10**18 - 1, 10**18, 2**63 - 1)
opaques = st.sampled_from(INT_ENDS) | st.integers(0, 2**31 - 1)
texts = st.sampled_from(["", "true", "false", "null", "a,b", '"', "\\", "\u20ac"]) | st.text(
    st.characters(codec="utf-8"), max_size=40
)
numbers = (
    st.sampled_from(LONG_ENDS).map(str)
    | st.integers(-(2**64), 2**64).map(str)
    | st.sampled_from(["", "-1", "+1", "007", "1.0", "x", " 1"])
)
ROADS = tuple(
    {id(road): road for road in (send_answer.read_stored, kernel.twins["read_stored"])}.values()
)


def read(frames: list[RawFrame]) -> list[StoredAnswer | None]:
    """What the roads make of frames; where several read one, they agree."""
    found: list[StoredAnswer | None] = [None] * len(frames)
    for road in ROADS:
        answers = road(frames)
        assert len(answers) == len(frames)
        for place, answer in enumerate(answers):
            if answer is not None:
                assert found[place] in (None, answer)
                found[place] = answer
    return found


def general(frame: RawFrame) -> StoredAnswer | None:
    """What the general road makes of it."""
    try:
        command = decode_command(frame)
        return stored_answer(command) if command.flag & 1 else None
    except (ProtocolError, RemoteProtocolError):
        return None


def frame_of(kind: int, header: bytes) -> RawFrame:
    return RawFrame(kind, header, b"")


@given(
    kind=st.sampled_from(list(SerializeType)), opaque=opaques, code=st.sampled_from([0, 10, 12, 2]),
    remark=st.none() | texts,
    fields=st.fixed_dictionaries(
        {"msgId": texts, "queueId": numbers, "queueOffset": numbers},
        optional={
            "transactionId": texts, "MSG_REGION": texts, "TRACE_ON": texts, "other": texts,
        },
    ),
)  # fmt: skip
def test_what_is_read_is_what_the_general_road_reads(
    kind: SerializeType, opaque: int, code: int, remark: str | None, fields: dict[str, str]
) -> None:
    request = RemotingCommand.request(310, opaque=opaque, serialize_type=kind)
    (frame,) = FrameDecoder().feed(encode_command(request.reply(code, remark, fields)))
    (answer,) = read([frame])
    assert answer is None or answer == general(frame)


@given(
    st.lists(
        st.tuples(
            opaques, st.integers(0, 65_535), st.sampled_from(LONG_ENDS), st.booleans(),
            st.sampled_from(["DefaultRegion", "", "R"]),
        ),
        max_size=6,
    )
)  # fmt: skip
@pytest.mark.parametrize("codec", [header_json, header_msgpack])
def test_what_our_broker_writes_is_read_by_every_road(
    codec: Any, rows: list[tuple[int, int, int, bool, str]]
) -> None:
    kind = JSON if codec is header_json else MSGPACK
    frames: list[RawFrame] = []
    for opaque, queue_id, queue_offset, trace, region in rows:
        parts = codec.send_response_parts(region, str(trace).lower())
        encode = codec.send_response_encoder(parts)
        header = encode(opaque, MSG_ID.encode(), queue_id, queue_offset % 10**18)
        frames.append(frame_of(kind, header))
    expected = [
        (opaque, 0, MSG_ID, queue_id, queue_offset % 10**18, None, region, str(trace).lower())
        for opaque, queue_id, queue_offset, trace, region in rows
    ]
    for road in ROADS:
        assert road(frames) == expected


def test_what_neighbours_have_in_common_is_told_apart_when_it_came_as_numbers() -> None:
    frames = [
        frame_of(
            MSGPACK,
            msgspec.msgpack.encode([0, 0, 409, 1, 1, None, {**PLAIN, "MSG_REGION": region}]),
        )
        for region in (5, 7, 7, "7", 5)
    ]
    for answer, frame in zip(read(frames), frames, strict=True):
        assert answer is None or answer == general(frame)


@given(
    fields=st.dictionaries(
        st.sampled_from([*PLAIN, "transactionId", "other"]),
        texts | st.integers(-(2**63), 2**64 - 1) | st.sampled_from(LONG_ENDS) | st.booleans()
        | st.none() | st.binary(max_size=9),
    ),
    front=st.tuples(
        st.sampled_from([0, 10, 2**31, "0"]), st.just(0), st.sampled_from([409, 2**31, None]),
        opaques | st.sampled_from([-1, 2**31, 2**32]), st.sampled_from([0, 1, 3, 2**31]),
        st.none() | texts,
    ),
    more=st.lists(st.none(), max_size=1),
    plain=st.booleans(),
)  # fmt: skip
@example({"queueOffset": 2**31}, (0, 0, 409, 2**31 - 1, 1, None), [], True)
@example({"queueOffset": 2**63 - 1}, (0, 0, 409, 1, 1, None), [], True)
@example({"queueId": 2**31}, (0, 0, 409, 1, 1, None), [], True)
def test_any_msgpack_array_is_read_as_the_general_road_reads_it(
    fields: dict[str, Any], front: tuple[Any, ...], more: list[None], plain: bool
) -> None:
    wire = {**PLAIN, **fields} if plain else fields
    frame = frame_of(MSGPACK, msgspec.msgpack.encode([*front, wire, *more]))
    (answer,) = read([frame])
    assert answer is None or answer == general(frame)


@pytest.mark.parametrize("kind", [SerializeType.JSON, SerializeType.MSGPACK])
@given(data=st.data())
def test_damaged_answers_are_read_as_the_general_road_reads_them(
    kind: SerializeType, data: st.DataObject
) -> None:
    request = RemotingCommand.request(310, opaque=77, serialize_type=kind)
    (frame,) = FrameDecoder().feed(encode_command(request.reply(0, None, PLAIN)))
    header = bytearray(frame.header)
    for _ in range(data.draw(st.integers(0, 3))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    damaged = frame_of(kind, bytes(header[: data.draw(st.integers(0, len(header)))]))
    (answer,) = read([damaged])
    assert answer is None or answer == general(damaged)


@pytest.mark.parametrize(
    "header",
    [
        b'{"code":0,"flag":1,"opaque":1,"extFields":{"msgId":"M","queueId":"x","queueOffset":"1"}}',
        b'{"code":0,"flag":1,"opaque":1,"extFields":{"msgId":"M","queueId":"1"}}',
        b'{"code":0,"flag":0,"opaque":1,"extFields":{"msgId":"M","queueId":"1","queueOffset":"1"}}',
        b'{"code":0,"flag":1,"extFields":{"msgId":"M","queueId":"1","queueOffset":"1"}}',
        b'{"code":0,"opaque":1,"extFields":{"msgId":"M","queueId":"1","queueOffset":"1"}}',
        b'{"code":0,"flag":1,"opaque":1,"remark":"msgId"}',
        b"[" * 5000 + b"msgId",
        b"msgId",
        b"",
    ],
)
def test_everything_else_is_left_alone(header: bytes) -> None:
    frames = [frame_of(kind, header) for kind in (JSON, 1, MSGPACK, 255)]
    assert read(frames) == [None] * 4
