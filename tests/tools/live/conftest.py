"""Commands run in the test's own process, against one broker in a thread beside it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from skylarkmq.client import Admin, Client, Message, StartFrom
from skylarkmq.client.sync import Consumer, Producer
from skylarkmq.testing import SyncBroker, run_broker_sync
from tests.tools.live.shell import Shell

T = TypeVar("T")
Do = Callable[[Callable[[Client, Admin], Awaitable[T]]], T]
SETTINGS = {"enablePropertyFilter": True, "traceTopicEnable": True}


@pytest.fixture(scope="module")
def broker() -> Iterator[SyncBroker]:
    """A broker for all tests of a file: each has topics and groups of its own."""
    with run_broker_sync(settings=SETTINGS) as running:
        yield running


@pytest.fixture
def shell(broker: SyncBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Shell:
    """Runs commands with an environment of the test's own."""
    monkeypatch.setenv("NAMESRV_ADDR", broker.namesrv_addr)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return Shell()


@pytest.fixture
def sdk(broker: SyncBroker) -> Do[object]:
    """Does something with a client of the broker."""

    def do(work: Callable[[Client, Admin], Awaitable[object]]) -> object:
        async def connected() -> object:
            async with Client(broker.namesrv_addr) as client, Admin(client=client) as admin:
                return await work(client, admin)

        return asyncio.run(connected())

    return do


@pytest.fixture
def group(request: pytest.FixtureRequest, broker: SyncBroker) -> str:
    """A group that has given up four messages of a topic named like it."""
    return give_up(broker, re.sub(r"\W", "_", f"g_{request.node.name}"), 4)


def give_up(broker: SyncBroker, name: str, count: int, reason: str | None = None) -> str:
    """Let a group give up so many messages of a topic named like it; return the name."""
    broker.create_topic(name, queues=1)
    with broker.client() as client, Producer(client=client) as producer:
        for number in range(count):
            producer.send(Message(name, f"m-{number}".encode(), keys=f"k{number}"))
        with Consumer(name, client=client, group=name, start_from=StartFrom.FIRST) as member:
            for _ in range(count):
                member.getone(timeout=20).dead_letter(reason)
    return name
