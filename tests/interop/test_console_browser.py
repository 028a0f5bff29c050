"""The console in a real browser, with clicks and keys, over our broker and over RocketMQ's.

Needs Chromium, and `pip install playwright`, which brings no browser of its own.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import Admin, Client, Consumer, Message, Producer, StartFrom
from tests.interop.apache_server import ApacheBroker
from tests.interop.children import Children
from tests.interop.conftest import Start
from tests.interop.servers import Broker
from tests.interop.skylark_server import SkylarkBroker
from tests.support.patience import LIMIT_S, until
from tests.tools.console.support import console

pytestmark = pytest.mark.interop
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), "")
DESK, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
ORDERS = 10


@pytest.fixture(params=[SkylarkBroker, ApacheBroker], ids=["ours", "apache"])
def server(request: pytest.FixtureRequest, start_broker: Start) -> Broker:
    """Both kinds of brokers, one after the other, whatever INTEROP_BROKER says."""
    pytest.importorskip("playwright", reason="pip install playwright")
    if not CHROMIUM:
        pytest.skip("no Chromium: apt-get install chromium")
    kind: type[Broker] = request.param
    running: dict[str, Broker] = request.session.__dict__.setdefault("console_brokers", {})
    if kind.kind not in running:
        running[kind.kind] = start_broker(kind)
    return running[kind.kind]


class Site:
    """A page of a browser, what stands behind it, and what it complained about."""

    def __init__(self, page: Any, client: Client, address: str) -> None:
        self.page = page
        self.client = client
        self.address = address
        self.complaints: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    async def open(self, path: str) -> None:
        """Go to a page."""
        await self.page.goto(self.address.rstrip("/") + path)

    async def sees(self, text: str) -> None:
        """Wait for a text on the page."""
        await self.page.get_by_text(text).first.wait_for(timeout=LIMIT_S * 1000)


@asynccontextmanager
async def site(server: Broker, viewport: dict[str, int]) -> AsyncIterator[Site]:
    """A console that may change things, in a browser."""
    from playwright.async_api import async_playwright

    async with (
        Client(server.namesrv) as client,
        console(server.namesrv, is_writing=True, sample_s=0.2) as served,
        async_playwright() as playwright,
    ):
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        context = await browser.new_context(viewport=viewport, color_scheme="light")
        found = Site(await context.new_page(), client, served.address)
        try:
            yield found
        finally:
            await browser.close()
        assert found.complaints == []  # the content security policy complains there, too


async def fill(client: Client, topic: str, group: str) -> None:
    """Let a group take two orders, of which one becomes a dead letter."""
    async with Admin(client=client) as admin:
        await admin.create_topic(topic, queues=2)
        await admin.create_group(group, exist_ok=True)
    async with Producer(client=client, group="shop") as producer:
        for number in range(ORDERS):
            await producer.send(Message(topic, f'{{"order": {number}}}', keys=f"K-{number}"))
    async with Consumer(
        topic, client=client, group=group, start_from=StartFrom.FIRST, ack="manual"
    ) as member:
        await (await member.getone(LIMIT_S)).dead_letter()
        await (await member.getone(LIMIT_S)).ack()
        await member.commit()


async def test_a_lag_is_found_and_the_group_reset_by_clicks(
    server: Broker, topic: str, group: str
) -> None:
    async with site(server, DESK) as seen:
        await fill(seen.client, topic, group)
        page = seen.page
        await seen.open("/")
        await seen.sees(server.name)
        await page.get_by_role("link", name="Groups", exact=True).click()
        await page.get_by_role("link", name=group).click()
        await seen.sees("messages wait for it")
        await page.locator("svg.chart").wait_for()  # after two looks, and a refresh
        await page.get_by_role("link", name="Reset", exact=True).click()
        await page.get_by_label("Topic").fill(topic)
        await page.get_by_role("button", name="Preview").click()
        await seen.sees("Nothing has changed yet")
        await page.get_by_role("button", name="Move the group").click()
        await seen.sees("The group has been moved.")
        async with Admin(client=seen.client) as admin:

            async def is_at_its_end() -> bool:
                return (await admin.progress(group, topic)).lag == 0

            await until(is_at_its_end, "the group at the end")


async def test_a_message_is_found_and_a_dead_letter_sent_again(
    server: Broker, topic: str, group: str
) -> None:
    async with site(server, DESK) as seen:
        await fill(seen.client, topic, group)
        page = seen.page
        await seen.open("/messages")
        await page.get_by_label("Topic").fill(topic)
        await page.locator("select[name=by]").select_option("key")
        await page.get_by_label("Key or id").fill("K-3")

        async def is_found() -> bool:  # the index is a moment late
            await page.locator("#main").get_by_role("button", name="Search").click()
            return await page.locator("table.rows tbody tr").count() == 1

        await until(is_found, "the message with the key")
        await page.locator("table.rows tbody a").first.click()
        await seen.sees('"order": 3')
        await page.get_by_role("link", name="Hex", exact=True).click()
        await seen.sees("00000000  7b 22 6f")

        await page.get_by_role("link", name="Dead letters", exact=True).click()
        await page.get_by_role("link", name=group).click()
        await page.locator("input[name=letter]").first.check()
        await page.get_by_role("button", name="Resend the chosen ones").click()
        await page.get_by_role("button", name="Yes, do it").click()
        await seen.sees("1 sent again")
        async with Consumer(topic, client=seen.client, group=group, ack="manual") as member:
            bodies = {(await member.getone(LIMIT_S)).body for _ in range(ORDERS - 1)}
        assert len(bodies) == ORDERS - 1  # the letter among them


async def test_a_topic_is_made_watched_and_deleted(server: Broker, topic: str) -> None:
    async with site(server, DESK) as seen:
        page = seen.page
        await seen.open("/topics")
        await page.get_by_role("link", name="New topic").click()
        await page.get_by_label("Name").fill(topic)
        await page.get_by_label("Queues").fill("1")
        await page.get_by_role("button", name="Create").click()
        await page.get_by_role("button", name="Yes, do it").click()
        await seen.sees("Created.")
        await page.locator("main").get_by_role("link", name="Live tail").click()
        await page.locator("#tail-state", has_text="live").wait_for()
        async with Producer(client=seen.client) as producer:
            await producer.send(Message(topic, "seen as it came"))
        await seen.sees("seen as it came")
        await seen.open(f"/topics/{topic}/delete")
        await page.get_by_label("Write its name to confirm").fill(topic)
        await page.get_by_role("button", name="Yes, do it").click()
        await seen.sees("Deleted.")


async def test_a_message_is_sent_found_with_its_groups_and_exported(
    server: Broker, topic: str, group: str
) -> None:
    async with site(server, DESK) as seen:
        await fill(seen.client, topic, group)
        page = seen.page
        await seen.open(f"/topics/{topic}")
        await page.get_by_role("link", name="Send", exact=True).click()
        await page.get_by_label("Body").fill('{"from": "the console"}')
        await page.locator("input[name=keys]").fill("by-hand")
        await page.get_by_role("button", name="Send", exact=True).click()
        await seen.sees(f"bytes to the topic {topic}")
        await page.get_by_role("button", name="Yes, do it").click()
        await seen.sees("The message is stored.")
        await seen.sees('"from": "the console"')
        row = page.locator("tr", has_text=group)
        assert "not consumed yet" in await row.inner_text()
        await seen.open(f"/messages?topic={topic}")
        async with page.expect_download() as started:
            await page.get_by_role("link", name="Export JSON lines").click()
        path = Path(await (await started.value).path())
        lines = (await asyncio.to_thread(path.read_text)).splitlines()
        assert len(lines) == ORDERS + 1 and json.loads(lines[0])["keys"] == "by-hand"


async def test_a_group_and_a_setting_are_changed_by_clicks(server: Broker, group: str) -> None:
    async with site(server, DESK) as seen:
        page = seen.page
        await seen.open("/groups")
        await page.get_by_role("link", name="New group").click()
        await page.get_by_label("Name").fill(group)
        await page.get_by_label("Retries").fill("3")
        await page.get_by_role("button", name="Create").click()
        await page.get_by_role("button", name="Yes, do it").click()
        await seen.sees("Created.")
        await page.get_by_role("link", name="Change", exact=True).click()
        await page.get_by_label("it may consume").uncheck()
        await page.get_by_role("button", name="Change").click()
        await seen.sees("consume enabled no")
        await page.get_by_role("button", name="Yes, do it").click()
        await seen.sees("forbidden")
        await page.get_by_role("link", name="Delete", exact=True).click()
        await page.get_by_label("Write its name to confirm").fill(group)
        await page.get_by_role("button", name="Yes, do it").click()
        await seen.sees("Deleted.")

        await seen.open("/")
        await page.get_by_role("link", name=server.name).click()
        await page.get_by_label("Part of a setting's name").fill("fileReserved")
        await page.get_by_role("button", name="Filter").click()
        await page.get_by_role("link", name="Change fileReservedTime").click()
        await page.get_by_label("fileReservedTime").fill("71")
        await page.get_by_role("button", name="Change").click()
        await page.get_by_role("button", name="Yes, do it").click()
        await seen.sees("The change is in force.")
        assert "71" in await page.locator("#settings").inner_text()
        await page.get_by_role("link", name="Accounts").click()
        await seen.sees("Secrets are on no page")


async def test_no_page_swallows_keys(server: Broker) -> None:
    async with site(server, DESK) as seen:
        for path in ("/tail", "/topics/new", "/messages/send"):
            await seen.open(path)
            await seen.page.keyboard.press("g")
            await seen.page.keyboard.press("t")
            await seen.page.wait_for_url("**/topics")


async def test_keys_and_the_switch_between_light_and_dark(server: Broker) -> None:
    async with site(server, DESK) as seen:
        page = seen.page
        await seen.open("/")
        await page.keyboard.press("g")
        await page.keyboard.press("t")
        await page.wait_for_url("**/topics")
        await page.keyboard.press("/")
        assert await page.evaluate("document.activeElement.id") == "find"
        await page.keyboard.press("Escape")
        await page.keyboard.press("?")
        await page.locator("dialog[open]").wait_for()
        await page.keyboard.press("Escape")
        ground = "getComputedStyle(document.body).color"
        light = await page.evaluate(ground)
        await page.get_by_role("button", name="Theme").click()
        dark = await page.evaluate(ground)
        assert dark != light
        await page.reload()
        assert await page.evaluate(ground) == dark
        assert await page.locator("html").get_attribute("data-theme") == "dark"


async def test_no_page_is_wider_than_a_phone(server: Broker, topic: str, group: str) -> None:
    async with site(server, PHONE) as seen:
        await fill(seen.client, topic, group)
        for path in (
            "/", "/topics", f"/topics/{topic}", "/topics/new", "/groups", f"/groups/{group}",
            f"/groups/{group}/reset?topic={topic}&to=begin", "/clients",
            f"/messages?topic={topic}", "/trace?id=1", "/dead-letters", f"/dead-letters/{group}",
            "/pending", f"/tail?topic={topic}", "/login", "/accounts", f"/brokers/{server.name}",
            f"/topics/{topic}/delete", "/groups/new", "/messages/send",
        ):  # fmt: skip
            await seen.open(path)
            wide = await seen.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= PHONE["width"], f"{path} is {wide} wide"


async def test_what_waits_and_what_cannot_be_known(
    server: Broker, tmp_path: Path, topic: str
) -> None:
    patient = {"messageDelayLevel": "1s 30m 2h", "transactionTimeOut": 3_600_000}
    own = type(server)(Children(tmp_path), tmp_path, **patient)
    try:
        own.start()
        async with (
            site(own, DESK) as seen,
            Producer(client=seen.client, group="shop") as producer,
            Admin(client=seen.client) as admin,
        ):
            await admin.create_topic(topic)
            await producer.send(Message(topic, "in two hours", keys="later", delay_level=3))
            async with producer.transaction(
                Message(topic, "x", keys="ended-before"), check=_unknown
            ):
                pass
            async with producer.transaction(Message(topic, "x", keys="still-open"), check=_unknown):
                await seen.open("/pending")
                await seen.sees("Level 3 · 2h")
                shown = await seen.page.locator("#levels tbody").inner_text()
                assert "in 2 h" in shown and "later" in shown
                shown = await seen.page.locator("#halves").inner_text()
                assert "still-open" in shown and "some of these may have ended" in shown
                # RocketMQ's may show it until its next check.
                assert "ended-before" not in shown or isinstance(own, ApacheBroker), shown
    finally:
        own.end()


async def _unknown(_: object) -> str:
    return "unknown"
