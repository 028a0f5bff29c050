"""Edges of the form of a message in JSON, and of the blocking message."""

import types

import pytest

from skylarkmq.client.message_json import encoded_body, message_to_send
from skylarkmq.tools.output import as_json


@pytest.mark.parametrize(
    "row",
    [
        {"body_encoding": "json"},
        {"body": "x", "flag": True},
        {"body": "x", "properties": {"a": 0}},
        {"body": "x", "properties": {"a": None}},
        {"body": {"a": float("inf")}},
        {"body": "x", "properties": {"a": False}},
        {"body": "x", "properties": {"a": 1}},
    ],
)
def test_refused(row):
    with pytest.raises(ValueError):
        message_to_send("t", row)


def test_deep():
    for d in range(840, 1000):
        _, value = encoded_body(b"[" * d + b"]" * d, "auto")
        for indent in (None, 2):
            as_json({"rows": [{"body": value}]}, indent=indent)


@pytest.mark.parametrize("born_ms", [1_700_000_000_000_000_000, -(1 << 63), (1 << 63) - 1])
def test_a_time_that_no_calendar_has(born_ms):
    from skylarkmq.client.message_view import stored_message
    from skylarkmq.client.namespace import Namespace
    from skylarkmq.protocol.host_address import HostAddress
    from skylarkmq.protocol.message import MessageExt

    host = HostAddress("192.0.2.7", 10911)
    record = MessageExt(
        "t", 3, 7, 41, 4096, 0, born_ms, host, 1_700_000_000_002, host, 1, 0, b"x", {}, 99, 200
    )
    row = stored_message(record, "", Namespace(None)).to_json("base64")
    assert row["born_at"] is None
    assert message_to_send("t", row).body == b"x"


async def test_the_blocking_message_counts_its_tries_here():
    from skylarkmq.client import Message
    from skylarkmq.client.sync import ReceivedMessage as Blocking
    from skylarkmq.integrations.faststream.testing import _received

    twin = _received(Message("t", b"x"))
    again = twin._again()._again()
    assert again.reconsume_times == 2
    shown = Blocking(types.SimpleNamespace(generation=0), again)
    assert shown.reconsume_times == 2
    assert shown.to_json()["reconsume_times"] == 2
