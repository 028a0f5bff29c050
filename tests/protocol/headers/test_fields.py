"""The text of header fields, by the strict rule."""

from typing import Any

import msgspec
import pytest

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.fields import (
    JavaInt,
    JavaLong,
    decode_fields,
    encode_fields,
    java_boolean,
    java_int,
    java_long,
)


class Sample(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """A header with one field of every kind."""

    name: str
    queue_id: JavaInt
    queue_offset: JavaLong
    is_force: bool = False
    max_times: JavaInt | None = None
    note: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")


FIELDS = {"name": "n", "queueId": "3", "queueOffset": "-5"}

NOT_NUMBERS = [
    "",
    " ",
    "+",
    "-",
    "+-1",
    "--1",
    "1_000",
    " 1",
    "1 ",
    "1\n",
    "\n1",
    "1.0",
    "1e3",
    "0x10",
    "1L",
    "\u0661",
    "\uff11",
    "\u00b2",
    "\u096a",
    "1\x00",
    "None",
    "null",
    "true",
    "9" * 20,
    "0" * 20,
    "9" * 200_000,
]


@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_what_java_would_not_take_is_no_number(text: str) -> None:
    for read in (java_int, java_long):
        with pytest.raises(RemoteProtocolError) as caught:
            read(text, "Sample.queueId")
        assert caught.value.response_code == ResponseCode.SYSTEM_ERROR
        assert "Sample.queueId" in caught.value.remark
        assert len(caught.value.remark) < 1024
        assert caught.value.remark.isascii()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("-0", 0),
        ("+1", 1),
        ("-1", -1),
        ("007", 7),
        ("1024", 1024),
        ("1025", 1025),
        ("2147483647", 2**31 - 1),
        ("-2147483648", -(2**31)),
        ("0000000000000000001", 1),
    ],
)
def test_numbers(text: str, number: int) -> None:
    assert java_int(text, "x") == number
    assert java_long(text, "x") == number


@pytest.mark.parametrize("text", ["2147483648", "-2147483649", "9223372036854775807"])
def test_an_int_has_32_bits(text: str) -> None:
    assert java_long(text, "x") == int(text)
    with pytest.raises(RemoteProtocolError):
        java_int(text, "x")


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775809"])
def test_a_long_has_64_bits(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        java_long(text, "x")
    assert java_long("-9223372036854775808", "x") == -(2**63)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("TRUE", True),
        ("True", True),
        ("false", False),
        ("", False),
        ("1", False),
        ("yes", False),
        (" true", False),
        ("\uff54rue", False),
    ],
)
def test_booleans(text: str, value: bool) -> None:
    assert java_boolean(text, "x") is value


def test_a_header_there_and_back() -> None:
    header = decode_fields(Sample, {**FIELDS, "AccessKey": "extra"})
    assert header == Sample(name="n", queue_id=3, queue_offset=-5)
    assert encode_fields(header) == {**FIELDS, "isForce": "false"}
    full = Sample(
        name="", queue_id=-1, queue_offset=2**63 - 1, is_force=True, max_times=0, broker_name="b"
    )
    assert encode_fields(full) == {
        "name": "",
        "queueId": "-1",
        "queueOffset": "9223372036854775807",
        "isForce": "true",
        "maxTimes": "0",
        "bname": "b",
    }
    assert decode_fields(Sample, encode_fields(full)) == full


@pytest.mark.parametrize("name", FIELDS)
def test_a_missing_field_is_named(name: str) -> None:
    fields = {key: value for key, value in FIELDS.items() if key != name}
    with pytest.raises(RemoteProtocolError) as caught:
        decode_fields(Sample, fields)
    assert caught.value.response_code == ResponseCode.SYSTEM_ERROR
    assert caught.value.remark == f"the field Sample.{name} is missing"


@pytest.mark.parametrize("name", ["queueId", "queueOffset", "maxTimes"])
@pytest.mark.parametrize("text", NOT_NUMBERS)
def test_an_ill_typed_field_is_named(name: str, text: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_fields(Sample, {**FIELDS, name: text})
    assert f"Sample.{name}" in caught.value.remark


def test_a_type_that_no_text_has_is_noticed_at_once() -> None:
    class Wrong(msgspec.Struct):
        value: dict[str, Any]

    with pytest.raises(KeyError):
        encode_fields(Wrong({}))
