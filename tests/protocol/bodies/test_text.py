"""Typed bodies: standard JSON out; standard JSON, fastjson's dialect and nothing worse in."""

import msgspec
import pytest

from skylarkmq.protocol.bodies import group, route, text, topic
from skylarkmq.protocol.bodies.group import LockBatchRequestBody
from skylarkmq.protocol.bodies.text import MessageQueueBody, decode_body, encode_body
from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError

MODULES = (group, route, text, topic)
BODIES = sorted(
    {
        item
        for module in MODULES
        for item in vars(module).values()
        if isinstance(item, type)
        and issubclass(item, msgspec.Struct)
        and item not in (msgspec.Struct, text.Body)
    },
    key=lambda cls: cls.__name__,
)
QUEUE = b'{"brokerName":"b","queueId":3,"topic":"T"}'
LOCK = b'{"clientId":"c","consumerGroup":"g","mqSet":[%s]}' % QUEUE


def refused(cls: type[msgspec.Struct], data: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_body(cls, data)
    assert caught.value.response_code == ResponseCode.SYSTEM_ERROR
    assert len(caught.value.remark) < 1024


@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
def test_fields_stand_in_javas_order(cls: type[msgspec.Struct]) -> None:
    names = [field.encode_name for field in msgspec.structs.fields(cls)]
    assert names == sorted(names)


@pytest.mark.parametrize(
    "data",
    [
        LOCK,
        LOCK + b"  ",
        LOCK.replace(b'"', b"'"),
        LOCK.replace(b'"queueId"', b"queueId"),
        LOCK.replace(b'"clientId"', b'"onlyThisBroker":null,"clientId"'),
        b"\xef\xbb\xbf" + LOCK,
    ],
)
def test_one_body_in_several_dialects(data: bytes) -> None:
    body = decode_body(LockBatchRequestBody, data)
    assert body == LockBatchRequestBody(
        client_id="c",
        consumer_group="g",
        mq_set=[MessageQueueBody(topic="T", broker_name="b", queue_id=3)],
    )
    assert encode_body(body) == LOCK


def test_null_means_missing() -> None:
    data = b'{"clientId":"c","consumerGroup":"g","mqSet":null}'
    assert decode_body(LockBatchRequestBody, data).mq_set == []
    refused(LockBatchRequestBody, b'{"clientId":null,"consumerGroup":"g"}')


def test_a_reference_is_followed_even_where_a_default_would_do() -> None:
    data = b'{"table":{"$ref":"$.other"},"other":{"a":"b"}}'
    assert decode_body(route.KVTable, data).table == {"a": "b"}


@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"[]",
        b"[1]",
        b"1",
        b'"text"',
        b"NaN",
        b"\xff",
        b"[" * 1_000_000,
        b'{"a":' * 1_000_000,
        b'{"$ref":"$"}',
        b"{" + b"9" * 200_000 + b":1}",
        LOCK[:-1],
    ],
    ids=range(13),
)
def test_what_is_no_body_is_refused(cls: type[msgspec.Struct], data: bytes) -> None:
    refused(cls, data)


WRONG = [b"1", b'"x"', b"true", b"[]", b"{}", b"[[1]]", b'{"a":[]}', b"1.5", b'[{"$ref":"$"}]']


@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.__name__)
def test_members_of_another_type_give_the_protocols_error_or_a_body(
    cls: type[msgspec.Struct],
) -> None:
    names = [field.encode_name for field in msgspec.structs.fields(cls)]
    outcomes = 0
    for wrong in WRONG:
        for name in names:
            data = b'{"%s":%s}' % (name.encode(), wrong)
            try:
                assert isinstance(decode_body(cls, data), cls)
            except RemoteProtocolError as error:
                assert error.response_code == ResponseCode.SYSTEM_ERROR
                assert len(error.remark) < 1024
            outcomes += 1
    assert outcomes == len(WRONG) * len(names)


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**63, 1.5, True, "1e3", "3"])
def test_numbers_that_are_no_int_are_refused(number: object) -> None:
    text = f'"{number}"' if isinstance(number, str) else str(number).lower()
    refused(MessageQueueBody, QUEUE.replace(b"3", text.encode()))
    assert decode_body(MessageQueueBody, QUEUE).queue_id == 3


def test_the_tolerant_reader_is_bounded_and_can_be_let_go() -> None:
    table = ",".join(f"{number}:1" for number in range(60_000))
    data = f'{{"offsetTable":{{{table}}}}}'.encode()
    refused(group.DelayOffsetSerializeWrapper, data)
    body = decode_body(group.DelayOffsetSerializeWrapper, data, node_count_max=100_000)
    assert len(body.offset_table) == 60_000


def test_what_utf8_cannot_carry_is_our_own_fault() -> None:
    with pytest.raises(LocalProtocolError):
        encode_body(route.KVTable(table={"a": "\ud800"}))
    queue = MessageQueueBody(topic="\ud800", broker_name="b", queue_id=0)
    with pytest.raises(LocalProtocolError):
        encode_body(group.ResetOffsetBody(offset_table=[(queue, 1)]))
