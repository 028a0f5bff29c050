"""`skylarkmq mcp` against Apache's brokers of 4.9 and 5.3: an agent looks, and changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import Client, Consumer, Message, Producer, StartFrom
from tests.interop.apache_server import Apache5Broker, ApacheBroker
from tests.interop.conftest import Start
from tests.interop.servers import Broker
from tests.support.patience import until
from tests.tools.mcp.conftest import Agent, agent_of
from tests.tools.mcp.test_changes import ALL

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("server", [ApacheBroker, Apache5Broker])
def test_an_agent_at_apaches_broker(
    server: type[Broker], start_broker: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    apache = start_broker(server)

    async def work() -> None:
        async with agent_of(apache.namesrv, *ALL, bodies=True) as agent:
            await agent.change("create_topic", topic="asked", queues=1)
            await agent.change("create_group", group="asking")
            await give_up(apache.namesrv)
            await looks(agent)
            done = await agent.change("reset", group="asking", topic="asked", to="first")
            assert [row["after"] for row in done["queues"]] == [0]
            assert (await agent.change("redrive", group="asking"))["sent"] == 1
            assert {line["result"] for line in agent.audit} == {"planned", "done"}

    asyncio.run(work())


async def give_up(namesrv: str) -> None:
    """Let the group give up a message."""
    async with Client(namesrv) as client:
        async with Producer(client=client) as producer:
            await producer.send(Message("asked", b"why?", keys="k"))
        async with Consumer(
            "asked", client=client, group="asking", start_from=StartFrom.FIRST
        ) as member:
            await (await member.getone(timeout=60)).dead_letter()


async def looks(agent: Agent) -> None:
    """Ask what does not change anything."""
    status = await agent("cluster")
    assert [row["broker"] for row in status["brokers"]] == ["broker-a"]
    assert "asked" in (await agent("topics"))["topics"]
    assert (await agent("topic", topic="asked"))["message_count"] == 1
    assert (await agent("group", group="asking"))["settings"]
    assert (await agent("lag", group="asking"))["lag"] == 0

    async def indexed() -> Any:
        return (await agent("messages", topic="asked", key="k", bodies=True))["messages"]

    (row,) = await until(indexed, "the index")
    assert row["body"] == "why?"
    assert await agent("message", id=row["offset_msg_id"], bodies=True) == row
    (letter,) = (await agent("dead_letters", group="asking"))["dead_letters"]
    assert letter["keys"] == "k"
    copied = await agent.change("resend", id=row["msg_id"], topic="asked")
    assert copied["copy_of"] == row["msg_id"]
    assert (await agent("doctor", only=["topics", "groups"])).keys() == {"looked_at", "findings"}
