"""An agent's server in the test's own process, towards a broker in a thread."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client.config import Credentials
from skylarkmq.testing import SyncBroker, run_broker_sync
from skylarkmq.tools.connection import TIMEOUT_S, Session
from skylarkmq.tools.mcp.server import ERRORS, AgentServer
from skylarkmq.tools.output import Output
from skylarkmq.tools.running import error_text


@dataclass
class Agent:
    """Calls tools, as an agent does."""

    server: AgentServer
    audit: list[Any] = field(default_factory=list[Any])
    """The lines that changes left."""

    async def __call__(self, tool: str, **arguments: Any) -> Any:
        """Return the answer of a call that ends well."""
        return await self.server.answer(tool, arguments)

    async def refused(self, tool: str, **arguments: Any) -> str:
        """Return what a call is told that does not end well."""
        with pytest.raises(ERRORS) as raised:
            await self.server.answer(tool, arguments)
        return error_text(raised.value)

    async def change(self, tool: str, **arguments: Any) -> Any:
        """Do what a dry run of the same arguments shows."""
        planned = await self(tool, **arguments)
        return await self(tool, **arguments, token=planned["token"])


StartAgent = Callable[..., AbstractAsyncContextManager[Agent]]


@asynccontextmanager
async def agent_of(
    namesrv: str, *allowed: str, bodies: bool = False, account: Credentials | None = None
) -> AsyncIterator[Agent]:
    """An agent with a server of its own."""
    lines: list[Any] = []
    session = Session(namesrv, "the test", account, None, None, TIMEOUT_S, Output("json"))
    server = AgentServer(
        session, allowed, shows_bodies=bodies, audit=lambda line: lines.append(json.loads(line))
    )
    try:
        yield Agent(server, lines)
    finally:
        await server.stop()


@pytest.fixture(scope="module")
def broker() -> Iterator[SyncBroker]:
    """A broker for all tests of a file: each has topics and groups of its own."""
    with run_broker_sync() as running:
        yield running


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ledgers and contexts of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
