"""The form of a stored message in JSON: what it says, and what is read back of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skylarkmq.client.message_json import FIELDS, encoded_body, message_to_send
from skylarkmq.client.message_view import stored_message
from skylarkmq.client.namespace import Namespace
from skylarkmq.protocol.flags import MessageSysFlag
from skylarkmq.protocol.host_address import HostAddress
from skylarkmq.protocol.message import Message, MessageExt

HOST = HostAddress("192.0.2.7", 10911)
PROPERTIES = {
    "UNIQ_KEY": "0A01", "KEYS": "k1 k2", "TAGS": "A", "__SHARDINGKEY": "u", "WAIT": "true",
    "DELAY": "3", "color": "blue=green",
}  # fmt: skip
BODIES = [
    b"", b"hello", "Grüße\n".encode(), b"\xff\xfe", b" {", b"[no json", b"null", b"12",
    b'{"id":7,"price":1.5,"name":"\xc3\xbc"}', b"[1,2,[3]]", b'{"a":0.30000000000000004}',
    b'{"a":1,"a":2}', b'[0.1234567890123456789]', b"[NaN]", b"[1e400]", b'["\\ud800"]',
    b"[" * 100_000, b'{"big":123456789012345678901234567890}',
]  # fmt: skip


def row_of(body: bytes, *, topic: str = "orders", sys_flag: int = 0, **more: str) -> dict[str, Any]:
    record = MessageExt(
        topic, 3, 7, 41, 4096, sys_flag, 1_700_000_000_001, HOST, 1_700_000_000_002, HOST, 1, 0,
        body, {**PROPERTIES, **more}, 99, 200,
    )  # fmt: skip
    row: dict[str, Any] = stored_message(record, "broker-a", Namespace("shop")).to_json()
    return row


def test_a_message_has_this_form() -> None:
    row = row_of(b"hello", topic="%DLQ%shop%billing", RETRY_TOPIC="shop%orders")
    assert list(row) == [*FIELDS, "body", "body_encoding"]
    assert row == {
        "msg_id": "0A01", "offset_msg_id": "C000020700002A9F0000000000001000",
        "topic": "%DLQ%billing", "origin_topic": "orders",
        "broker": "broker-a", "queue_id": 3, "queue_offset": 41, "commit_log_offset": 4096,
        "tags": "A", "keys": "k1 k2", "priority": None,
        "properties": {**PROPERTIES, "RETRY_TOPIC": "shop%orders"},
        "flag": 7, "sys_flag": 0,
        "born_at": "2023-11-14T22:13:20.001+00:00", "born_host": "192.0.2.7:10911",
        "stored_at": "2023-11-14T22:13:20.002+00:00", "store_host": "192.0.2.7:10911",
        "reconsume_times": 1, "size": 200, "body_crc": 99,
        "body": "hello", "body_encoding": "text",
    }  # fmt: skip


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:12]))
def test_every_body_is_printed_and_read_back(body: bytes) -> None:
    printed = json.dumps(row_of(body), ensure_ascii=False).encode()
    assert message_to_send("copies", json.loads(printed)).body == body
    for form in ("hex", "base64"):
        encoding, text = encoded_body(body, form)
        row = {"body": text, "body_encoding": encoding}
        assert message_to_send("copies", row).body == body


def test_what_the_application_gave_is_read_back() -> None:
    assert message_to_send("copies", row_of(b"hello")) == Message(
        "copies", b"hello", tags="A", keys="k1 k2",
        properties={"__SHARDINGKEY": "u", "color": "blue=green"}, sharding_key="u", flag=7,
    )  # fmt: skip


def test_a_message_may_be_written_by_hand() -> None:
    assert message_to_send("t", {"body": "x"}) == Message("t", b"x")
    assert message_to_send("t", {"body": {"id": 1}, "tags": "A"}) == Message(
        "t", b'{"id":1}', tags="A"
    )
    assert message_to_send("t", {"body": None, "body_encoding": "json"}).body == b"null"


def test_a_body_that_cannot_be_opened_says_why() -> None:
    row = row_of(b"no zlib", sys_flag=MessageSysFlag.COMPRESSED_FLAG)
    assert (row["body"], row["body_encoding"]) == (None, None)
    assert "cannot be opened" in row["body_error"]
    with pytest.raises(ValueError, match="cannot be opened"):
        message_to_send("t", row)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ([], "is an object"),
        ({}, "no body"),
        ({"body": None, "body_encoding": None}, "no body"),
        ({"body": "x", "tag": "A"}, "'tag' is no key of a message; tags?"),
        ({"unanswered": []}, "no key of a message"),
        ({"body": "x", "body_encoding": "utf-16"}, "text, json, hex or base64"),
        ({"body": "x", "body_encoding": ["hex"]}, "body_encoding is a text, not"),
        ({"body": 7, "body_encoding": "text"}, "is a text"),
        ({"body": "xyz", "body_encoding": "hex"}, "no hex"),
        ({"body": "x-", "body_encoding": "base64"}, "no base64"),
        ({"body": "\ud800"}, "no text"),
        ({"body": "x", "properties": [1]}, "properties is an object of texts, not"),
        ({"body": "x", "properties": {"a": 1}}, "property value is text"),
        ({"body": "x", "tags": 7}, "tags is a text, not 7"),
        ({"body": "x", "keys": 7}, "keys is a text"),
        ({"body": "x", "flag": "7"}, "flag is a number"),
    ],
)
def test_what_is_no_message_is_refused(row: object, text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("?", r"\?")):
        message_to_send("t", row)
