"""JSON headers: Java's own, wider ones, hostile ones; fast paths and templates."""

import json
from typing import Any

import pytest

from skylarkmq.protocol import header_json
from skylarkmq.protocol.codes import LanguageCode
from skylarkmq.protocol.command import RemotingCommand
from skylarkmq.protocol.errors import LocalProtocolError
from skylarkmq.protocol.header_json import decode_header, encode_header
from tests.protocol.message_vectors import FRAMES
from tests.protocol.support import (
    every_cut_and_flipped_bit_is_read_or_refused,
    only_frame,
    refused_header,
)

SEND = only_frame(bytes.fromhex(FRAMES["send_v2_json"]["hex"])).header
SEND_FIELDS: dict[str, str] = FRAMES["send_v2_json"]["decoded"]["extFields"]
PULL_FIELDS: dict[str, str] = FRAMES["pull_request_rocketmq"]["decoded"]["extFields"]
PULL = encode_header(RemotingCommand(11, LanguageCode.JAVA, 409, 4, ext_fields=PULL_FIELDS))


def header(**members: Any) -> bytes:
    return json.dumps({"code": 1, **members}).encode()


def test_written_as_java_writes_it() -> None:
    command = RemotingCommand(
        17, LanguageCode.JAVA, 409, 2, 1, 'no "route"/é\x01', {"topic": "T", "x": ""}
    )
    assert encode_header(command) == (
        b'{"code":17,"extFields":{"topic":"T","x":""},"flag":1,"language":"JAVA","opaque":2,'
        b'"remark":"no \\"route\\"/\xc3\xa9\\u0001","serializeTypeCurrentRPC":"JSON","version":409}'
    )


def test_nulls_are_left_out() -> None:
    assert encode_header(RemotingCommand(0, opaque=0, version=0)) == (
        b'{"code":0,"flag":0,"language":"PYTHON","opaque":0,'
        b'"serializeTypeCurrentRPC":"JSON","version":0}'
    )


def test_missing_fields_have_javas_defaults() -> None:
    command = decode_header(b"{}")
    assert (command.code, command.version, command.opaque, command.flag) == (0, 0, 0, 0)
    assert (command.language, command.remark, command.ext_fields) == (LanguageCode.JAVA, None, {})


def test_unknown_fields_are_skipped() -> None:
    data = b' {"x":[1,{"y":null}],"code":5,"z":"w","extFields":{"a":"b"}} '
    assert decode_header(data).code == 5
    assert decode_header(data).ext_fields == {"a": "b"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("0", "0"),
        ("-17", "-17"),
        ("9223372036854775807", "9223372036854775807"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("true", "true"),
        ("false", "false"),
        ("1.0", "1.0"),
        ("0.50", "0.50"),
        ("1e5", "1E+5"),
        ("-1.5E-9", "-1.5E-9"),
    ],
)
def test_scalars_in_ext_fields_become_the_text_that_java_sees(value: str, text: str) -> None:
    data = b'{"extFields":{"a":%s,"b":"x"}}' % value.encode()
    assert decode_header(data).ext_fields == {"a": text, "b": "x"}


def test_nulls_in_ext_fields_are_absent() -> None:
    assert decode_header(b'{"extFields":{"a":null,"b":"x"}}').ext_fields == {"b": "x"}
    assert decode_header(b'{"extFields":null,"remark":null}').ext_fields == {}


def test_the_last_of_equal_keys_counts() -> None:
    data = b'{"code":1,"extFields":{"a":"1","a":"2"},"code":2}'
    assert decode_header(data).code == 2
    assert decode_header(data).ext_fields == {"a": "2"}


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ('"JAVA"', LanguageCode.JAVA),
        ('"CPP"', LanguageCode.CPP),
        ('"NODE_JS"', LanguageCode.NODE_JS),
        ('"COBOL"', LanguageCode.OTHER),
        ('""', LanguageCode.OTHER),
        ("1", LanguageCode.CPP),
        ("99", LanguageCode.OTHER),
        ("-1", LanguageCode.OTHER),
        ("null", LanguageCode.OTHER),
    ],
)
def test_languages_by_name_or_number(language: str, code: LanguageCode) -> None:
    assert decode_header(b'{"language":%s}' % language.encode()).language is code


def test_characters_of_every_plane() -> None:
    command = decode_header(rb'{"remark":"\u00e9\ud83d\ude00\u0000/\/\b"}')
    assert command.remark == "é\U0001f600\x00//\b"
    command = RemotingCommand(1, remark="é\U0001f600\x00\x7f\u2028", ext_fields={"ключ": "値"})
    assert decode_header(encode_header(command)) == command


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"{",
        b"[]",
        b"[1]",
        b"null",
        b"1",
        b'"text"',
        b"NaN",
        b'{"code":NaN}',
        b'{"code":Infinity}',
        b"\xef\xbb\xbf{}",
        b"{}x",
        b"{}{}",
        b"{}\x00",
        b"{'code':1}",
        b"{code:1}",
        b'{"code":01}',
        b'{"code":+1}',
        b'{"code":1,}',
        b'{"code":1 "flag":0}',
        b'{"remark":"\xff"}',
        b'{"remark":"\xc0\x80"}',
        b'{"remark":"\xed\xa0\x80"}',
        b'{"extFields":{"\xff":"x"}}',
        rb'{"remark":"\ud800"}',
        rb'{"remark":"\ud800x"}',
        rb'{"remark":"\udc00\ud800"}',
        rb'{"extFields":{"a":"\udfff"}}',
        rb'{"extFields":{"\ud800":"a"}}',
        rb'{"remark":"\u12"}',
        rb'{"remark":"\q"}',
        b'{"remark":"\x01"}',
        b'{"remark":"unfinished}',
    ],
)
def test_what_is_not_json_is_refused(data: bytes) -> None:
    refused_header(decode_header, data)


WRONG: list[Any] = ["x", 1.5, True, [1], {"a": 1}, 2**31, -(2**31) - 1, 2**63, 2**70]


@pytest.mark.parametrize("name", ["code", "flag", "opaque", "version"])
@pytest.mark.parametrize("value", [*WRONG, None, "1"])
def test_numbers_of_another_type_are_refused(name: str, value: Any) -> None:
    refused_header(decode_header, header(**{name: value}))


@pytest.mark.parametrize("value", [1, 1.5, True, [1], {"a": 1}])
def test_a_remark_of_another_type_is_refused(value: Any) -> None:
    refused_header(decode_header, header(remark=value))


@pytest.mark.parametrize("value", [1.5, True, [1], {"a": 1}])
def test_a_language_of_another_type_is_refused(value: Any) -> None:
    refused_header(decode_header, header(language=value))


@pytest.mark.parametrize("value", [1, "x", True, [], [["a", "b"]], {"a": {}}, {"a": ["b"]}])
def test_ext_fields_of_another_shape_are_refused(value: Any) -> None:
    refused_header(decode_header, header(extFields=value))


@pytest.mark.parametrize("name", [b"code", b"opaque", b"unknown"])
def test_a_number_of_200_000_digits_is_bounded(name: bytes) -> None:
    data = b'{"%s":%s}' % (name, b"9" * 200_000)
    if name == b"unknown":
        assert decode_header(data).code == 0
    else:
        refused_header(decode_header, data)


@pytest.mark.parametrize("digits", [b"9" * 200_000, b"0." + b"1" * 200_000, b"1e99999999999999999"])
def test_a_huge_number_in_ext_fields_is_refused(digits: bytes) -> None:
    refused_header(decode_header, b'{"extFields":{"a":%s}}' % digits)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
        b'{"unknown":' + b"[" * 1_000_000,
        b'{"unknown":' + b"[" * 500_000 + b"]" * 500_000 + b"}",
        b'{"extFields":' + b'{"a":' * 1_000_000,
        b'{"extFields":{"a":' + b"[" * 1_000_000,
        b'{"remark":' + b"[" * 1_000_000,
    ],
)
def test_a_million_brackets_go_nowhere(data: bytes) -> None:
    """Refused by their depth: some of them are legal JSON in a field that nobody reads."""
    refused_header(decode_header, data)


def test_too_many_ext_fields_are_refused() -> None:
    many = {f"k{number}": "v" for number in range(1025)}
    refused_header(decode_header, header(extFields=many))
    refused_header(decode_header, header(extFields={f"k{n}": n for n in range(50_000)}))
    del many["k0"]
    assert decode_header(header(extFields=many)).ext_fields == many


def test_every_cut_and_every_flipped_bit_is_read_or_refused() -> None:
    every_cut_and_flipped_bit_is_read_or_refused(decode_header, SEND)


def test_a_send_as_java_writes_it_takes_the_quick_road() -> None:
    command = header_json.decode_send_v2_fast(SEND)
    assert command is not None
    assert (command.code, command.opaque, command.flag, command.version) == (310, 3, 0, 409)
    assert command.language == "JAVA"
    assert command.ext_fields.topic == SEND_FIELDS["b"]
    assert command.ext_fields.properties == SEND_FIELDS["i"]
    assert command.ext_fields.max_reconsume_times is None
    assert command.ext_fields.broker_name == "broker-a"
    assert SEND.startswith(b'{"code":310,')


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"code":310', b'"code":10'),
        (b'"code":310', b'"code":311'),
        (b'"code":310', b'"code":"310"'),
        (b'"version":409', b'"version":409,"code":10'),
        (b'"b":"TopicTest",', b""),
        (b'"e":"0"', b'"e":0'),
        (b'"e":"0"', b'"e":null'),
        (b'"k":"false"', b'"k":false'),
        (b'"n":"broker-a"', b'"n":"broker-a","AccessKey":"rocketmq"'),
        (b'"n":"broker-a"', b'"n":"broker-a","skylarkmq.codec":"msgpack.1"'),
        (b'"version":409', b'"version":409,"remark":"x"'),
        (b'"version":409', b'"version":409,"other":1'),
        (b'"language":"JAVA"', b'"language":1'),
        (b'"flag":0', b'"flag":1'),
        (b'"flag":0', b'"flag":3'),
        (b'"opaque":3', b'"opaque":4294967296'),
        (b'"extFields":', b'"extFields":null,"extFields2":'),
        (b'"a":"pg_test"', b'"a":"\xff"'),
    ],
)
def test_anything_out_of_the_way_leaves_the_quick_road(old: bytes, new: bytes) -> None:
    assert old in SEND
    assert header_json.decode_send_v2_fast(SEND.replace(old, new)) is None


def test_hostile_bytes_leave_the_quick_road() -> None:
    for data in (b"", b"[" * 1_000_000, b'{"code":310,"extFields":' + b'{"a":' * 100_000):
        assert header_json.decode_send_v2_fast(data) is None


@pytest.mark.parametrize("region", ["DefaultRegion", "", 'a"b\\c%d%s', "é\U0001f600\x01\n"])
@pytest.mark.parametrize(
    ("opaque", "msg_id", "queue_id", "queue_offset"),
    [
        (3, "C000021400002A9F0000000000001000", 0, 7),
        (-(2**31), "", -1, -1),
        (2**31 - 1, "AB,CD", 2**31 - 1, 2**63 - 1),
    ],
)
def test_the_send_template_says_what_the_generic_encoder_says(
    region: str, opaque: int, msg_id: str, queue_id: int, queue_offset: int
) -> None:
    fields = {
        "queueId": str(queue_id),
        "TRACE_ON": "true",
        "MSG_REGION": region,
        "msgId": msg_id,
        "queueOffset": str(queue_offset),
    }
    expected = RemotingCommand(0, opaque=opaque, flag=1, ext_fields=fields)
    encode = header_json.send_response_encoder(header_json.send_response_parts(region, "true"))
    written = encode(opaque, msg_id.encode(), queue_id, queue_offset)
    assert decode_header(written) == expected
    assert json.loads(written) == json.loads(encode_header(expected))
    if region.isascii() and region.isprintable():
        assert written == encode_header(expected)


@pytest.mark.parametrize("remark", ["FOUND", "OFFSET_OVERFLOW_ONE", None, "", '"%d"\\é\x00'])
@pytest.mark.parametrize("numbers", [(0, 0, 0, 0), (1, 8, 2**63 - 1, -1)])
def test_the_pull_template_says_what_the_generic_encoder_says(
    remark: str | None, numbers: tuple[int, int, int, int]
) -> None:
    names = ("suggestWhichBrokerId", "nextBeginOffset", "minOffset", "maxOffset")
    fields = dict(zip(names, map(str, numbers), strict=True))
    expected = RemotingCommand(19, opaque=-5, flag=1, remark=remark, ext_fields=fields)
    written = header_json.encode_pull_response(19, -5, remark, *numbers)
    assert decode_header(written) == expected
    assert json.loads(written) == json.loads(encode_header(expected))
    if remark is None or remark.isalpha():
        assert written == encode_header(expected)


def test_the_answer_to_a_send_is_the_golden_one() -> None:
    vector = FRAMES["send_response_json"]
    encode = header_json.send_response_encoder(
        header_json.send_response_parts("DefaultRegion", "true")
    )
    written = encode(3, b"C000021400002A9F0000000000001000", 0, 7)
    assert decode_header(written).ext_fields == vector["decoded"]["extFields"]
    golden = only_frame(bytes.fromhex(vector["hex"])).header
    assert written.replace(b"PYTHON", b"JAVA") == golden


def test_templates_of_many_remarks_do_not_pile_up() -> None:
    for number in range(1000):
        header_json.encode_pull_response(0, 1, f"remark-{number}", 0, 0, 0, 0)
    kept = header_json._pull_template.cache_info()
    assert kept.currsize == kept.maxsize == 64


def test_only_text_can_be_written() -> None:
    command = RemotingCommand(1)
    command.ext_fields["a"] = "\ud800"
    with pytest.raises(LocalProtocolError):
        encode_header(command)
