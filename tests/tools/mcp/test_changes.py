"""What an agent may change: what is allowed by name, after a dry run, with a line for the audit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skylarkmq.client import Message
from skylarkmq.client.config import Credentials
from skylarkmq.client.sync import Producer
from skylarkmq.testing import Account, SyncBroker, run_broker_sync
from skylarkmq.tools.mcp import server
from skylarkmq.tools.mcp.changing import CHANGING
from tests.tools.live.conftest import give_up
from tests.tools.mcp.conftest import agent_of

pytestmark = pytest.mark.timing
ALL = tuple(tool.name for tool in CHANGING)
ADMIN = Account("rocketmq-admin", "12345678-admin", admin=True)
READER = Account("reader-of-orders", "12345678-reader", topic_rights={"orders": "SUB"})


async def test_only_what_is_allowed_is_there(broker: SyncBroker) -> None:
    async with agent_of(broker.namesrv_addr, "create_topic") as agent:
        assert "unless started with --allow: resend, redrive, reset" in agent.server.instructions
        told = await agent.refused("reset", group="g", topic="t", to="first")
        assert told.endswith("with --allow reset")
    async with agent_of(broker.namesrv_addr) as agent:
        assert "token" not in agent.server.instructions
        for name in ALL:
            told = await agent.refused(name, topic="new")
            assert told.startswith(f"{name} is not allowed: ")
            assert told.endswith(f"with --allow {name}")
    async with agent_of(broker.namesrv_addr, *ALL) as agent:
        assert "Not allowed" not in agent.server.instructions


async def test_a_change_takes_a_dry_run_of_the_same_arguments(
    broker: SyncBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agent_of(broker.namesrv_addr, "create_topic", "create_group") as agent:
        planned = await agent("create_topic", topic="new", queues=2)
        assert planned["would"] == "create the topic new on broker-a"
        assert "new" not in (await agent("topics"))["topics"]
        other = await agent.refused("create_topic", topic="new", token=planned["token"])
        assert "dry run that would create the topic new" in other
        spent = await agent.refused("create_topic", topic="new", queues=2, token=planned["token"])
        assert "begin with a dry run" in spent
        made = await agent.change("create_topic", topic="new", queues=2)
        assert made == {"action": "created", "topic": "new", "brokers": ["broker-a"]}
        assert len((await agent("topic", topic="new"))["queues"]) == 2
        assert "exists on broker-a" in await agent.refused("create_topic", topic="new")
        monkeypatch.setattr(server, "TOKEN_S", -1)
        planned = await agent("create_group", group="late")
        assert "too old" in await agent.refused("create_group", group="late", **token(planned))
    outcomes = [(line["step"], line["result"]) for line in agent.audit]
    assert outcomes == [
        ("dry_run", "planned"),
        ("change", "failed"),
        ("change", "failed"),
        ("dry_run", "planned"),
        ("change", "done"),
        ("dry_run", "failed"),
        ("dry_run", "planned"),
        ("change", "failed"),
    ]
    line = agent.audit[4]
    assert (line["event"], line["tool"]) == ("agent_change", "create_topic")
    assert line["arguments"] == {"topic": "new", "queues": 2}
    assert line["namesrv"] == broker.namesrv_addr and line["ts"].endswith("+00:00")


def token(planned: dict[str, str]) -> dict[str, str]:
    return {"token": planned["token"]}


async def test_tokens_are_bounded(broker: SyncBroker) -> None:
    async with agent_of(broker.namesrv_addr, "create_group") as agent:
        first = await agent("create_group", group="g0")
        for number in range(1, server.TOKENS_MAX + 1):
            last = await agent("create_group", group=f"g{number}")
        assert "not known" in await agent.refused("create_group", group="g0", **token(first))
        made = await agent("create_group", group=f"g{server.TOKENS_MAX}", **token(last))
        assert made["action"] == "created"


async def test_a_group_is_moved(broker: SyncBroker) -> None:
    group = give_up(broker, "moved", 3)
    async with agent_of(broker.namesrv_addr, "reset") as agent:
        place = {"group": group, "topic": group}
        assert "one of to and offset" in await agent.refused("reset", **place)
        assert "or first, or last" in await agent.refused("reset", **place, to="somewhere")
        planned = await agent("reset", **place, to="first")
        (row,) = planned["plan"]["queues"]
        assert (row["before"], row["after"], row["moved"]) == (3, 0, -3)
        assert planned["plan"]["dry_run"] and "to its first messages" in planned["would"]
        assert (await agent("lag", **place))["lag"] == 0
        done = await agent("reset", **place, to="first", **token(planned))
        assert not done["dry_run"] and (await agent("lag", **place))["lag"] == 3
        await agent.change("reset", **place, offset=2)
        assert (await agent("lag", **place))["lag"] == 1
        planned = await agent("reset", **place, to="10m")
        assert "10m" not in planned["would"]  # the time of day is settled


async def test_dead_letters_are_sent_once(broker: SyncBroker) -> None:
    group = give_up(broker, "redriven", 3)
    async with agent_of(broker.namesrv_addr, "redrive") as agent:
        planned = await agent("redrive", group=group, to="topic", limit=2)
        assert planned["would"] == f"send 2 dead letters of {group} to their first topics"
        assert planned["plan"]["would_send"] == 2 and len(broker.messages(group)) == 3
        done = await agent("redrive", group=group, to="topic", limit=2, **token(planned))
        assert done["sent"] == 2 and len(broker.messages(group)) == 5
        done = await agent.change("redrive", group=group, to="topic")
        assert (done["sent"], done["sent_before"]) == (1, 2)
        nothing = await agent.refused("redrive", group=group, to="topic")
        assert "has no dead letter to send; sent before: 3" in nothing
        assert "no group absent" in await agent.refused("redrive", group="absent")


async def test_a_copy_is_sent(broker: SyncBroker) -> None:
    broker.create_topic("first", queues=1)
    broker.create_topic("second", queues=1)
    with broker.client() as client, Producer(client=client) as producer:
        sent = producer.send(Message("first", b"secret", tags="A", keys="k"))
    async with agent_of(broker.namesrv_addr, "resend") as agent:
        planned = await agent("resend", id=sent.msg_id, topic="first", to="second")
        assert planned["would"] == f"send a copy of {sent.msg_id} (6 bytes) to second"
        assert planned["plan"]["message"]["body"] is None and not broker.messages("second")
        again = {"id": sent.msg_id, "topic": "first", "to": "second", **token(planned)}
        done = await agent("resend", **again)
    (copy,) = broker.messages("second")
    assert (copy.body, copy.tags, done["copy_of"]) == (b"secret", "A", sent.msg_id)


@pytest.fixture
def secured() -> Iterator[SyncBroker]:
    """A broker with access control."""
    with run_broker_sync(accounts=[ADMIN, READER]) as running:
        yield running


async def test_an_agent_does_no_more_than_its_account(secured: SyncBroker) -> None:
    def signed(account: Account) -> Credentials:
        return Credentials(account.access_key, account.secret_key)

    async with agent_of(secured.namesrv_addr, *ALL, account=signed(ADMIN)) as agent:
        await agent.change("create_topic", topic="orders")
        assert agent.audit[-1]["who"] == ADMIN.access_key
    async with agent_of(secured.namesrv_addr, *ALL, account=signed(READER)) as agent:
        assert (await agent("messages", topic="orders", since="1h"))["messages"] == []
        planned = await agent("create_topic", topic="stolen")
        told = await agent.refused("create_topic", topic="stolen", **token(planned))
        assert "admin" in told.lower(), told
        assert agent.audit[-1]["result"] == "failed" and told[:40] in agent.audit[-1]["error"]
    async with agent_of(secured.namesrv_addr, *ALL) as agent:
        told = await agent.refused("messages", topic="orders", since="1h")
        assert "account" in told.lower() or "acl" in told.lower(), told
