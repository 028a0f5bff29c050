"""Commands run in the test's own process, against one broker in a thread beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from skylarkmq.client import Admin, Client
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
