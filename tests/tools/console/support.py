"""A console over real HTTP, beside a broker in the test's loop, and a browser without a screen."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from html import unescape
from typing import Any

import httpx2

from skylarkmq.client import Client, Credentials
from skylarkmq.common.clock import Clock
from skylarkmq.testing import RunningBroker
from skylarkmq.tools.console.app import make_app
from skylarkmq.tools.console.server import ConsoleServer, listen
from skylarkmq.tools.console.settings import Settings
from tests.support.patience import until

HOST = "127.0.0.1"


class Browser:
    """Keeps cookies, follows the way after a change, and sends forms as a page's form does."""

    def __init__(self, client: httpx2.AsyncClient, address: str) -> None:
        self.client = client
        self.address = address

    async def get(self, path: str, **headers: str) -> httpx2.Response:
        """Open a page."""
        return await self.client.get(path, headers=headers)

    async def page(self, path: str) -> str:
        """Return the text of a page that is there."""
        answer = await self.get(path)
        assert answer.status_code == 200, f"{path}: {answer.status_code}\n{words(answer.text)}"
        return answer.text

    async def send(
        self, path: str, fields: Mapping[str, Any], *, seen: str = "/login", **headers: str
    ) -> httpx2.Response:
        """Send a form that stands on the page `seen`, with its token."""
        token = re.search(r'name="token" value="(\w+)"', await self.page(seen))
        assert token is not None
        return await self.post(path, {"token": token[1], **fields}, **headers)

    async def change(
        self, path: str, fields: Mapping[str, Any], *, seen: str = "/login", typed: str = ""
    ) -> httpx2.Response:
        """Send a form, and confirm what the page asks then."""
        asked = await self.send(path, fields, seen=seen)
        return await self.confirm(asked, typed)

    async def confirm(self, asked: httpx2.Response, typed: str = "") -> httpx2.Response:
        """Say yes on the page that asks."""
        assert "Nothing has changed yet" in asked.text, words(asked.text)
        hidden: dict[str, list[str]] = {}
        for name, value in re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', asked.text):
            hidden.setdefault(name, []).append(unescape(value))
        return await self.post(asked.url.path, {**hidden, "typed": typed})

    async def post(self, path: str, fields: Mapping[str, Any], **headers: str) -> httpx2.Response:
        """Send a form as it is."""
        headers = {"Origin": self.address.rstrip("/"), **headers}
        return await self.client.post(path, data=fields, headers=headers)


@asynccontextmanager
async def console(
    namesrv: str,
    *,
    make_clock: Callable[[], Clock] | None = None,
    new_client: Callable[..., Client] = Client,
    **settings: Any,
) -> AsyncIterator[Browser]:
    """A console that serves until the block ends, and a browser that looks at it."""

    def connect(credentials: Credentials | None) -> Client:
        return new_client(namesrv, credentials=credentials, start_timeout=0)  # as the command

    given = Settings(namesrv=namesrv, connect=connect, **settings)
    server = ConsoleServer(make_app(given, make_clock), listen(HOST, 0))
    running = asyncio.create_task(server.run_until_told())
    await until(lambda: server.started or running.done(), "the console")
    try:
        async with httpx2.AsyncClient(
            base_url=server.address, follow_redirects=True, timeout=60
        ) as client:
            yield Browser(client, server.address)
    finally:
        server.should_exit = True
        await running


def of(broker: RunningBroker, **settings: Any) -> Any:
    """A console of a test's broker."""
    return console(broker.namesrv_addr, **settings)


def words(page: str) -> str:
    """Return what a page says: without tags, with single blanks."""
    body = page.partition("<main")[2] or page
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", "<main" + body)).split())
