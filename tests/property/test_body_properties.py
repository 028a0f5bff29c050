"""Header fields and bodies under random input: what is written is read, and nothing but the
protocol's errors comes out.

Hypothesis prints the failing example and how to reproduce it.
"""

import contextlib
import json
import string
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from skylarkmq.protocol import lenient_json
from skylarkmq.protocol.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    ConsumerRunningInfo,
    HeartbeatData,
    LockBatchRequestBody,
    ResetOffsetBody,
    SubscriptionGroupWrapper,
)
from skylarkmq.protocol.bodies.route import (
    RegisterBrokerBody,
    TopicRouteData,
    decode_compressed_registration,
)
from skylarkmq.protocol.bodies.text import decode_body, encode_body
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.headers.fields import decode_fields, encode_fields, java_int, java_long
from skylarkmq.protocol.headers.pull import PullMessageRequestHeader
from skylarkmq.protocol.headers.send import (
    SendMessageRequestHeader,
    decode_send_header,
    encode_send_header_v2,
)
from skylarkmq.protocol.lenient_json import freeze
from tests.support.amounts import examples

# The time of an example says nothing on a busy machine.
CALM = examples(40, 200)

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
BODIES = (
    HeartbeatData,
    LockBatchRequestBody,
    ConsumerOffsetSerializeWrapper,
    ConsumerRunningInfo,
    ResetOffsetBody,
    RegisterBrokerBody,
    SubscriptionGroupWrapper,
    TopicRouteData,
)


@CALM
@given(st.text("0123456789+-_ .eE\n\u0661\uff11", max_size=22))
@example("0" * 19)
@example("9223372036854775807")
def test_numbers_by_the_strict_rule(text: str) -> None:
    digits = text[1:] if text[:1] in ("+", "-") else text
    sound = 1 <= len(digits) <= 19 and all(digit in string.digits for digit in digits)
    for read, bits in ((java_int, 31), (java_long, 63)):
        wanted = sound and -(1 << bits) <= int(text) < 1 << bits
        try:
            assert read(text, "x") == int(text)
        except RemoteProtocolError:
            assert not wanted
        else:
            assert wanted


PULL_TEXTS = {field.encode_name: "1" for field in msgspec.structs.fields(PullMessageRequestHeader)}
SENDS = st.builds(
    SendMessageRequestHeader,
    producer_group=TEXTS,
    topic=TEXTS,
    default_topic=TEXTS,
    default_topic_queue_nums=INT32,
    queue_id=INT32,
    sys_flag=INT32,
    born_timestamp=INT64,
    flag=INT32,
    properties=TEXTS,
    reconsume_times=INT32,
    unit_mode=st.booleans(),
    max_reconsume_times=st.none() | INT32,
    batch=st.booleans(),
    broker_name=st.none() | TEXTS,
)


@CALM
@given(SENDS)
def test_a_send_header_survives_both_sets_of_names(header: SendMessageRequestHeader) -> None:
    assert decode_send_header(10, encode_fields(header)) == header
    assert decode_send_header(310, encode_send_header_v2(header)) == header


@CALM
@given(st.dictionaries(st.sampled_from(list(PULL_TEXTS)), TEXTS))
def test_random_fields_give_a_header_or_the_protocols_error(changed: dict[str, str]) -> None:
    with contextlib.suppress(RemoteProtocolError):
        header = decode_fields(PullMessageRequestHeader, {**PULL_TEXTS, **changed})
        assert decode_fields(PullMessageRequestHeader, encode_fields(header)) == header


SCALARS = st.none() | st.booleans() | INT64 | TEXTS
KEYS = TEXTS | st.dictionaries(TEXTS, SCALARS, min_size=1, max_size=3).map(freeze)
VALUES_OF_JSON = st.recursive(
    SCALARS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
).filter(lambda value: "$ref" not in repr(value))


@CALM
@given(VALUES_OF_JSON)
def test_the_dialect_survives(value: Any) -> None:
    assert lenient_json.loads(lenient_json.dumps(value)) == value


@CALM
@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner)))
def test_the_tolerant_reader_reads_json_as_the_json_module_does(value: Any) -> None:
    text = json.dumps(value)
    if "$ref" not in text:
        assert lenient_json.loads(text) == json.loads(text)


@CALM
@given(st.text("{}[]\",:'\\u0d8ref$.@-1eE tn/\n", max_size=40))
@example('{"a":{"$ref":"$.a"}}')
def test_random_text_gives_a_value_or_the_protocols_error(text: str) -> None:
    with contextlib.suppress(RemoteProtocolError):
        lenient_json.loads(text)
    for cls in BODIES:
        with contextlib.suppress(RemoteProtocolError):
            decode_body(cls, text.encode())


WIRE_NAMES = sorted(
    {field.encode_name for cls in BODIES for field in msgspec.structs.fields(cls)}
    | {"$ref", "groupName", "subscriptionDataSet", "topic", "codeSet", "subVersion", "consumeType"}
)
SHAPES = st.recursive(
    SCALARS | st.sampled_from(["$", "@", "..", "$.consumerDataSet[0]", "$.mqSet"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(WIRE_NAMES), inner, max_size=4)
    ),
    max_leaves=20,
)


@CALM
@given(SHAPES, st.sampled_from(BODIES))
def test_random_shapes_give_a_body_or_the_protocols_error(
    value: Any, cls: type[msgspec.Struct]
) -> None:
    with contextlib.suppress(RemoteProtocolError):
        body = decode_body(cls, json.dumps(value).encode())
        assert decode_body(cls, encode_body(body)) == body


@CALM
@given(st.binary(max_size=60))
def test_random_bytes_are_no_registration(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode_compressed_registration(data)
