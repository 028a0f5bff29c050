"""Binary headers: the golden ones byte for byte, every length that lies, the two answers."""

import struct
from collections.abc import Callable

import pytest

from skylarkmq.protocol import header_rocketmq
from skylarkmq.protocol.codes import LanguageCode
from skylarkmq.protocol.command import RESPONSE_FLAG, RemotingCommand
from skylarkmq.protocol.errors import LocalProtocolError
from skylarkmq.protocol.frame import SerializeType
from skylarkmq.protocol.header_rocketmq import (
    decode_header,
    decode_pull_fast,
    decode_send_v2_fast,
    encode_header,
)
from tests.protocol.message_vectors import FRAMES
from tests.protocol.support import (
    every_cut_and_flipped_bit_is_read_or_refused,
    only_frame,
    refused_header,
)

SEND = only_frame(bytes.fromhex(FRAMES["send_v2_rocketmq"]["hex"])).header
PULL = only_frame(bytes.fromhex(FRAMES["pull_request_rocketmq"]["hex"])).header
FIXED = struct.pack(">hBhii", 310, 0, 409, 3, 0)


def built(*, remark: bytes = b"", block: bytes = b"", behind: bytes = b"") -> bytes:
    sizes = struct.pack(">i", len(remark)) + remark + struct.pack(">i", len(block)) + block
    return FIXED + sizes + behind


def entry(key: bytes, value: bytes) -> bytes:
    return struct.pack(">h", len(key)) + key + struct.pack(">i", len(value)) + value


@pytest.mark.parametrize("header", [SEND, PULL])
def test_golden_headers_come_back_byte_for_byte(header: bytes) -> None:
    assert encode_header(decode_header(header)) == header


def test_the_smallest_header() -> None:
    command = decode_header(built())
    assert (command.code, command.version, command.opaque, command.flag) == (310, 409, 3, 0)
    assert (command.remark, command.ext_fields, command.body) == (None, {}, b"")
    assert command.serialize_type == SerializeType.ROCKETMQ
    assert encode_header(command) == built()


def test_numbers_are_signed() -> None:
    header = struct.pack(">hBhiiii", -1, 7, -2, -3, -4, 0, 0)
    command = decode_header(header)
    assert (command.code, command.version, command.opaque, command.flag) == (-1, -2, -3, -4)
    assert encode_header(command) == header


def test_an_unknown_language_is_other() -> None:
    header = struct.pack(">hBhiiii", 1, 200, 0, 0, 0, 0, 0)
    assert decode_header(header).language is LanguageCode.OTHER


def test_empty_text_means_null() -> None:
    block = entry(b"a", b"") + entry(b"", b"x") + entry(b"long", b"") + entry(b"b", b"1")
    assert decode_header(built(block=block)).ext_fields == {"b": "1"}
    assert decode_header(built(block=block + entry(b"", b""))).ext_fields == {"b": "1"}
    assert decode_header(built(block=entry(b"", b""))).ext_fields == {}
    command = RemotingCommand(1, remark="", ext_fields={"a": ""})
    assert decode_header(encode_header(command)).remark is None


def test_bytes_behind_the_block_are_ignored() -> None:
    command = decode_header(built(block=entry(b"a", b"1"), behind=b"\x00\x01more"))
    assert command.ext_fields == {"a": "1"}


def test_texts_in_utf8() -> None:
    command = RemotingCommand(
        1,
        remark="é\U0001f600",
        ext_fields={"ключ": "値", "é": "\x00", "k": "\U0001f600"},
        serialize_type=SerializeType.ROCKETMQ,
    )
    assert decode_header(encode_header(command)) == command


def test_the_last_of_equal_keys_counts() -> None:
    block = entry(b"a", b"1") + entry(b"a", b"2")
    assert decode_header(built(block=block)).ext_fields == {"a": "2"}


@pytest.mark.parametrize("size", [1, 2**31 - 1, -1, -(2**31), 1000, 5])
def test_a_remark_must_end_in_the_header(size: int) -> None:
    refused_header(decode_header, FIXED + struct.pack(">ii", size, 0))


@pytest.mark.parametrize("size", [1, 2**31 - 1, -1, -(2**31), 1000])
def test_the_block_must_end_in_the_header(size: int) -> None:
    refused_header(decode_header, FIXED + struct.pack(">ii", 0, size))


@pytest.mark.parametrize("key_size", [-1, -(2**15), 2**15 - 1, 0, 2, 3, 7])
def test_a_key_must_end_in_the_block(key_size: int) -> None:
    block = struct.pack(">h", key_size) + b"a" + struct.pack(">i", 1) + b"x"
    refused_header(decode_header, built(block=block))
    # Not even when the header goes on behind the block.
    refused_header(decode_header, built(block=block, behind=bytes(100_000)))


@pytest.mark.parametrize("key", [b"a", b"key"])
@pytest.mark.parametrize("value_size", [2, -1, -(2**31), 2**31 - 1, 100])
def test_a_value_must_end_in_the_block(key: bytes, value_size: int) -> None:
    block = struct.pack(">h", len(key)) + key + struct.pack(">i", value_size) + b"x"
    refused_header(decode_header, built(block=block))
    refused_header(decode_header, built(block=block, behind=bytes(1000)))


@pytest.mark.parametrize("size", range(1, 7))
def test_half_an_entry_is_refused(size: int) -> None:
    block = entry(b"a", b"1") + b"\x00\x01a\x00\x00\x00"[:size]
    refused_header(decode_header, built(block=block))
    refused_header(decode_header, built(block=block, behind=bytes(100)))


@pytest.mark.parametrize(
    "header",
    [
        built(remark=b"\xff"),
        built(block=entry(b"a", b"\xff")),
        built(block=entry(b"\x80", b"x")),
        built(block=entry(b"k\xff", b"x")),
        built(block=entry(b"k", b"\xed\xa0\x80")),
        built(block=entry(b"k", b"\xc0\x80")),
    ],
)
def test_text_that_is_not_utf8_is_refused(header: bytes) -> None:
    refused_header(decode_header, header)


def test_too_many_entries_are_refused() -> None:
    block = b"".join(entry(b"k%d" % number, b"v") for number in range(1024))
    assert len(decode_header(built(block=block)).ext_fields) == 1024
    refused_header(decode_header, built(block=block + entry(b"z", b"v")))
    refused_header(decode_header, built(block=entry(b"", b"") * 100_000))


@pytest.mark.parametrize("header", [SEND, PULL])
def test_every_cut_and_every_flipped_bit_is_read_or_refused(header: bytes) -> None:
    every_cut_and_flipped_bit_is_read_or_refused(decode_header, header)


@pytest.mark.parametrize(
    "command",
    [
        RemotingCommand(200050),
        RemotingCommand(1, version=2**15),
        RemotingCommand(1, opaque=2**31),
        RemotingCommand(1, flag=-(2**31) - 1),
        RemotingCommand(1, ext_fields={"k" * 2**15: "v"}),
        RemotingCommand(1, remark="\ud800"),
    ],
)
def test_what_does_not_fit_cannot_be_written(command: RemotingCommand) -> None:
    with pytest.raises(LocalProtocolError):
        encode_header(command)


def test_packed_keys_do_not_pile_up() -> None:
    for number in range(1000):
        encode_header(RemotingCommand(1, ext_fields={f"key-{number}": "v"}))
    assert header_rocketmq._key.cache_info().currsize <= 256


@pytest.mark.parametrize("region", ["DefaultRegion", "é"])
def test_the_send_answer_is_what_the_generic_encoder_writes(region: str) -> None:
    fields = {
        "msgId": "C000021400002A9F0000000000001000",
        "queueId": "3",
        "queueOffset": "9223372036854775807",
        "MSG_REGION": region,
        "TRACE_ON": "true",
    }
    expected = encode_header(RemotingCommand(0, opaque=-9, flag=1, ext_fields=fields))
    encode = header_rocketmq.send_response_encoder(
        header_rocketmq.send_response_parts(region, "true")
    )
    written = encode(-9, fields["msgId"].encode(), 3, 2**63 - 1)
    assert written == expected


@pytest.mark.parametrize("remark", [None, "FOUND"])
def test_the_pull_answer_is_what_the_generic_encoder_writes(remark: str | None) -> None:
    names = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")
    fields = dict(zip(names, ("1", "8", "-1", "9223372036854775807"), strict=True))
    expected = RemotingCommand(19, opaque=5, flag=1, remark=remark, ext_fields=fields)
    written = header_rocketmq.encode_pull_response(19, 5, remark, 1, 8, -1, 2**63 - 1)
    assert written == encode_header(expected)


def test_the_answer_to_a_pull_is_the_golden_one() -> None:
    golden = only_frame(bytes.fromhex(FRAMES["pull_response_rocketmq"]["hex"])).header
    written = header_rocketmq.encode_pull_response(0, 4, "FOUND", 0, 8, 0, 8)
    assert written[:2] + b"\x00" + written[3:] == golden
    assert written[2] == LanguageCode.PYTHON


@pytest.mark.parametrize(
    ("header", "decode"), [(SEND, decode_send_v2_fast), (PULL, decode_pull_fast)]
)
def test_an_answer_is_no_request_for_the_quick_ways(
    header: bytes, decode: Callable[[bytes], object]
) -> None:
    assert decode(header) is not None
    command = decode_header(header)
    command.flag |= RESPONSE_FLAG
    assert decode(encode_header(command)) is None
