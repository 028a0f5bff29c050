"""Our own codec, with the msgpack package as the other opinion."""

from typing import Any

import msgpack
import pytest

from skylarkmq.protocol import header_msgpack
from skylarkmq.protocol.codes import LanguageCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import LocalProtocolError
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.header_msgpack import decode_header, encode_header
from tests.protocol.message_vectors import FRAMES
from tests.protocol.support import every_cut_and_flipped_bit_is_read_or_refused, refused_header

SEND_FIELDS: dict[str, str] = FRAMES["send_v2_json"]["decoded"]["extFields"]
PULL_FIELDS: dict[str, str] = FRAMES["pull_request_rocketmq"]["decoded"]["extFields"]
SEND = encode_header(RemotingCommand(310, opaque=3, ext_fields=SEND_FIELDS))


def packed(*elements: Any) -> bytes:
    data: bytes = msgpack.packb(elements)
    return data


def with_fields(fields: Any) -> bytes:
    return packed(310, 3, 409, 7, 0, None, fields)


def test_a_header_is_one_array() -> None:
    command = RemotingCommand(310, LanguageCode.PYTHON, 409, 7, 2, "why", {"b": "T", "e": "0"})
    data = encode_header(command)
    assert msgpack.unpackb(data) == [310, 3, 409, 7, 2, "why", {"b": "T", "e": "0"}]
    command.serialize_type = SerializeType.MSGPACK
    assert decode_header(data) == command


def test_no_remark_and_no_fields_are_nil() -> None:
    data = encode_header(RemotingCommand(0))
    assert msgpack.unpackb(data)[5:] == [None, None]
    assert decode_header(data).ext_fields == {}


def test_fields_of_every_allowed_type_mean_their_json_text() -> None:
    fields = {
        "text": "x",
        "bin": "KEYS\x01k\x02é".encode(),
        "zero": 0,
        "negative": -(2**63),
        "huge": 2**64 - 1,
        "yes": True,
        "no": False,
    }
    assert decode_header(with_fields(fields)).ext_fields == {
        "text": "x",
        "bin": "KEYS\x01k\x02é",
        "zero": "0",
        "negative": "-9223372036854775808",
        "huge": "18446744073709551615",
        "yes": "true",
        "no": "false",
    }


def test_elements_behind_the_seven_are_ignored() -> None:
    command = decode_header(packed(1, 3, 409, 7, 0, None, {"a": "b"}, "later", [1, {"x": None}]))
    assert command.ext_fields == {"a": "b"}


def test_an_unknown_language_is_other() -> None:
    assert decode_header(packed(1, 99, 0, 0, 0, None, None)).language is LanguageCode.OTHER


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        None,
        [],
        ["x"],
        {},
        {"a": "b"},
        msgpack.ExtType(5, b"x"),
        msgpack.Timestamp(1, 2),
        b"\xff",
        b"\xed\xa0\x80",
    ],
)
def test_a_field_of_another_type_is_refused(value: Any) -> None:
    refused_header(decode_header, with_fields({"a": value}))


@pytest.mark.parametrize("fields", [1, "x", [], {1: "x"}, {b"a": "x"}, {None: "x"}])
def test_fields_that_are_no_map_of_text_are_refused(fields: Any) -> None:
    refused_header(decode_header, with_fields(fields))


@pytest.mark.parametrize("position", range(5))
@pytest.mark.parametrize("value", ["1", 1.0, True, None, [1], 2**31, -(2**31) - 1, b"1"])
def test_a_fixed_element_of_another_type_is_refused(position: int, value: Any) -> None:
    if position == 1 and isinstance(value, int) and not isinstance(value, bool):
        return  # any number may stand for a language
    elements: list[Any] = [1, 3, 409, 7, 0, None, None]
    elements[position] = value
    refused_header(decode_header, packed(*elements))


@pytest.mark.parametrize("value", [1, True, b"x", ["x"]])
def test_a_remark_of_another_type_is_refused(value: Any) -> None:
    refused_header(decode_header, packed(1, 3, 409, 7, 0, value, None))


@pytest.mark.parametrize("count", range(7))
def test_fewer_than_seven_elements_are_refused(count: int) -> None:
    refused_header(decode_header, packed(*[1, 3, 409, 7, 0, None, None][:count]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xc0",
        b"{}",
        SEND + b"\x00",
        SEND + SEND,
        packed(1, 3, 409, 7, 0, "x", None).replace(b"\xa1x", b"\xa1\xff"),
        with_fields({"a": "x"}).replace(b"\xa1x", b"\xa1\xff"),
        with_fields({"a": "x"}).replace(b"\xa1a", b"\xa1\xff"),
        packed(1, 3, 409, 7, 0, None)[:-1] + b"\xdf\xff\xff\xff\xff",
        b"\x97\x01\x03\x00\x00\x00\xc0\xdf\xff\xff\xff\xff",
        b"\x97\x01\x03\x00\x00\x00\xc0\x81\xdb\xff\xff\xff\xff",
        b"\x97\x01\x03\x00\x00\x00\xc0\x81\xa1a\xc6\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff\x01\x03\x00\x00\x00\xc0\xc0",
    ],
)
def test_what_is_no_such_array_is_refused(data: bytes) -> None:
    refused_header(decode_header, data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x91" * 1_000_000,
        b"\x81\xa1a" * 500_000,
        b"\x97\x01\x03\x00\x00\x00\xc0\x81\xa1a" + b"\x91" * 1_000_000,
        b"\x98\x01\x03\x00\x00\x00\xc0\xc0" + b"\x91" * 1_000_000,
    ],
)
def test_a_million_nested_arrays_go_nowhere(data: bytes) -> None:
    refused_header(decode_header, data)


def test_too_many_fields_are_refused() -> None:
    many: dict[str, Any] = {f"k{number}": "v" for number in range(1024)}
    assert len(decode_header(with_fields(many)).ext_fields) == 1024
    refused_header(decode_header, with_fields({**many, "more": "v"}))
    refused_header(decode_header, with_fields({**many, "more": 1}))


def test_every_cut_and_every_flipped_bit_is_read_or_refused() -> None:
    every_cut_and_flipped_bit_is_read_or_refused(decode_header, SEND)


@pytest.mark.parametrize(
    "command",
    [
        RemotingCommand(1, remark="\ud800"),
        RemotingCommand(1, ext_fields={"a": "\udc00"}),
        RemotingCommand(2**64),
    ],
)
def test_what_does_not_fit_cannot_be_written(command: RemotingCommand) -> None:
    with pytest.raises(LocalProtocolError):
        encode_header(command)


def test_sends_take_the_quick_road() -> None:
    send = header_msgpack.decode_send_v2_fast(SEND)
    assert send is not None
    assert (send.code, send.opaque, send.language) == (310, 3, 3)
    assert send.ext_fields.properties == SEND_FIELDS["i"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x91" * 1_000_000,
        with_fields({**SEND_FIELDS, "e": 0.5}),
        with_fields({**SEND_FIELDS, "i": b"\xff"}),
        with_fields({**SEND_FIELDS, "l": None}),
        with_fields({**SEND_FIELDS, "AccessKey": "x"}),
        packed(310, 3, 409, 7, 0, "remark", SEND_FIELDS),
        packed(10, 3, 409, 7, 0, None, SEND_FIELDS),
        packed(310, 3, 409, 2**31, 0, None, SEND_FIELDS),
        packed(310, 3, 409, 7, 1, None, SEND_FIELDS),
        packed(310, 3, 409, 7, 0, None, None),
    ],
)
def test_anything_out_of_the_way_leaves_the_quick_road(data: bytes) -> None:
    assert header_msgpack.decode_send_v2_fast(data) is None


def test_numbers_of_a_send_may_be_numbers() -> None:
    command = header_msgpack.decode_send_v2_fast(
        with_fields({**SEND_FIELDS, "e": 7, "g": 2**40, "i": b"a\x01b", "k": True, "m": False})
    )
    assert command is not None
    fields = command.ext_fields
    assert (fields.queue_id, fields.born_timestamp) == ("7", str(2**40))
    assert (fields.properties, fields.unit_mode, fields.batch) == ("a\x01b", "true", "false")


def test_the_send_answer_means_what_the_generic_one_means() -> None:
    fields = {
        "msgId": "C000021400002A9F0000000000001000",
        "queueId": "3",
        "queueOffset": "9223372036854775807",
        "MSG_REGION": "é",
        "TRACE_ON": "true",
    }
    expected = RemotingCommand(0, opaque=-9, flag=1, ext_fields=fields)
    encode = header_msgpack.send_response_encoder(header_msgpack.send_response_parts("é", "true"))
    written = encode(-9, fields["msgId"].encode(), 3, 2**63 - 1)
    assert decode_header(written) == decode_header(encode_header(expected))


@pytest.mark.parametrize("remark", [None, "FOUND"])
def test_the_pull_answer_means_what_the_generic_one_means(remark: str | None) -> None:
    names = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")
    fields = dict(zip(names, ("1", "8", "-1", "9223372036854775807"), strict=True))
    expected = RemotingCommand(19, opaque=5, flag=1, remark=remark, ext_fields=fields)
    written = header_msgpack.encode_pull_response(19, 5, remark, 1, 8, -1, 2**63 - 1)
    assert decode_header(written) == decode_header(encode_header(expected))
