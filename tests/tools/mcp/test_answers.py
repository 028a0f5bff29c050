"""What an agent may see: the same keys as commands print, within bounds, and nothing changes."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from skylarkmq.client import Message
from skylarkmq.client.sync import Producer
from skylarkmq.testing import SyncBroker
from skylarkmq.tools.mcp import server
from skylarkmq.tools.mcp.call import ANSWER_MAX, BODY_MAX, TEXT_MAX, bounded
from skylarkmq.tools.mcp.changing import CHANGING
from skylarkmq.tools.mcp.reading import READING
from skylarkmq.tools.output import as_json
from tests.tools.command import say
from tests.tools.live.conftest import give_up
from tests.tools.mcp.conftest import agent_of

pytestmark = pytest.mark.timing


def send(broker: SyncBroker, topic: str, *bodies: bytes) -> list[str]:
    """Send messages with the keys k0, k1 ...; return the ids that their producer gave."""
    with broker.client() as client, Producer(client=client) as producer:
        return [
            producer.send(Message(topic, body, keys=f"k{number}")).msg_id
            for number, body in enumerate(bodies)
        ]


def printed(broker: SyncBroker, *words: str) -> Any:
    """What a command prints for programs."""
    said = say([*words, "--namesrv", broker.namesrv_addr, "-o", "json"])
    assert said.code == 0, said
    return said.json


def test_tools_say_what_commands_say(broker: SyncBroker) -> None:
    broker.create_topic("orders", queues=2)
    ids = send(broker, "orders", b"a", b"b")
    group = give_up(broker, "billing", 2)
    status = printed(broker, "cluster", "status")
    topic = printed(broker, "topic", "describe", "orders")
    described = printed(broker, "group", "describe", group)
    lags = printed(broker, "group", "lag")
    lag = printed(broker, "group", "lag", group)
    (row,) = printed(broker, "msg", "query", "orders", "--body", "none", "--key", "k1")
    letters = printed(broker, "dlq", "list", group, "--body", "none")
    with_letters = printed(broker, "dlq", "list")

    async def work() -> None:
        async with agent_of(broker.namesrv_addr) as agent:
            assert (await agent("cluster")).keys() == {*status, "problems"}
            assert await agent("topic", topic="orders") == topic
            assert "orders" in (await agent("topics", contains="ord"))["topics"]
            assert (await agent("topics", contains="nothing"))["topics"] == []
            assert f"%DLQ%{group}" in (await agent("topics", system=True))["topics"]
            assert (await agent("groups"))["groups"] == [group]
            assert await agent("group", group=group) == described
            assert (await agent("lag"))["groups"][0].keys() == lags[0].keys()
            assert (await agent("lag", group=group)).keys() == lag.keys()
            assert (await agent("messages", topic="orders", key="k1"))["messages"] == [row]
            by_id = await agent("messages", topic="orders", msg_id=ids[1])
            by_time = await agent("messages", topic="orders", since="1h", limit="1")
            assert by_id["messages"] == [row]
            assert len(by_time["messages"]) == 1
            assert await agent("message", id=row["offset_msg_id"]) == row
            assert await agent("message", id=ids[1], topic="orders") == row
            assert (await agent("dead_letters", group=group))["dead_letters"] == letters
            assert (await agent("dead_letters"))["groups"] == with_letters
            looked = await agent("doctor", only=["limits"])
            assert looked.keys() == {"looked_at", "findings"}
            assert agent.audit == []

    asyncio.run(work())


async def test_what_is_wrong_is_said(broker: SyncBroker) -> None:
    async with agent_of(broker.namesrv_addr) as agent:
        assert "there is no tool" in await agent.refused("delete_topic", topic="x")
        assert "unknown field `sinse`" in await agent.refused("messages", topic="x", sinse="1h")
        assert "missing required" in await agent.refused("topic")
        assert "<= 100" in await agent.refused("messages", topic="x", key="k", limit=101)
        assert "ten minutes ago" in await agent.refused("messages", topic="x", since="soon")
        needs = "messages needs key, msg_id, since or until"
        assert await agent.refused("messages", topic="x") == needs
        assert "no route to topic absent" in await agent.refused("topic", topic="absent")
        assert "no group absent" in await agent.refused("dead_letters", group="absent")
        assert "since and until need a group" in await agent.refused("dead_letters", since="1h")
        assert "topic needs a group" in await agent.refused("lag", topic="x")
        assert "RMQ_SYS_TRACE_TOPIC" in await agent.refused("trace", msg_id="0" * 32)


async def test_a_cluster_that_is_away_may_come_later(broker: SyncBroker) -> None:
    async with agent_of("127.0.0.1:1") as agent:
        for _ in range(2):
            assert "connection refused" in await agent.refused("topics")


async def test_bodies_are_shown_where_they_are_allowed(broker: SyncBroker) -> None:
    broker.create_topic("bodies", queues=1)
    long, binary = "ü" * BODY_MAX * 2, bytes(range(256)) * 20
    value = json.dumps({"n": [*range(BODY_MAX)]})
    send(broker, "bodies", b"short", b'{"n": 1}', long.encode(), value.encode(), binary)
    ask = {"topic": "bodies", "since": "1h", "bodies": True}
    async with agent_of(broker.namesrv_addr) as agent:
        assert "--bodies" in await agent.refused("messages", **ask)
    async with agent_of(broker.namesrv_addr, bodies=True) as agent:
        rows = (await agent("messages", **ask))["messages"]
        silent = (await agent("messages", topic="bodies", since="1h"))["messages"]
    assert {row["body"] for row in silent} == {None}
    assert [(row["body"], row["body_encoding"]) for row in rows] == [
        ("short", "text"),
        ({"n": 1}, "json"),
        (long[:BODY_MAX], "text"),
        (value[:BODY_MAX], "text"),
        (base64.b64encode(binary[:BODY_MAX]).decode(), "base64"),
    ]
    assert [row.get("body_cut_from") for row in rows[2:]] == [len(long) * 2, len(value), 5120]


def test_an_answer_is_bounded() -> None:
    rows = [{"name": f"row {number}", "more": "x" * 100} for number in range(1000)]
    answer = bounded({"rows": rows, "few": [1, 2], "text": "y" * TEXT_MAX * 2})
    assert len(as_json(answer, indent=None)) <= ANSWER_MAX
    assert answer["rows"] == rows[: len(answer["rows"])] and len(answer["rows"]) > 100
    assert answer["cut"] == {"rows": "the first ones of 1000"} and answer["few"] == [1, 2]
    assert answer["text"].endswith(f"... (of {TEXT_MAX * 2})")
    assert bounded({"half": "\ud800"}) == {"half": "?"}
    with pytest.raises(ValueError, match="ask for less"):
        bounded({str(number): "x" * 100 for number in range(1000)})


async def test_a_call_ends_in_time(broker: SyncBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CALL_MAX_S", 0.0)
    async with agent_of(broker.namesrv_addr) as agent:
        assert "not done within 0 s" in await agent.refused("doctor")


def test_each_tool_has_a_strict_schema() -> None:
    names = [tool.name for tool in (*READING, *CHANGING)]
    assert len(names) == len(set(names))
    for tool in (*READING, *CHANGING):
        assert tool.description and tool.schema["additionalProperties"] is False
        assert ("token" in tool.schema["properties"]) == (tool in CHANGING)
