"""Every page over HTTP, in front of a broker that has something to show."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import timedelta

import pytest

from skylarkmq.client import Admin, Consumer, Message, Producer
from skylarkmq.client.admin.traces import MessageTrace
from skylarkmq.testing import run_broker
from tests.support.patience import until
from tests.tools.console.conftest import DEAD, ORDERS, filled
from tests.tools.console.support import of, words

LINK = re.compile(r'(?:href|src|action)="(/[^"#]*)"')


@pytest.mark.slow
async def test_all_pages_of_a_cluster_and_all_their_links() -> None:
    async with filled() as broker, of(broker, is_writing=True) as browser:
        seen: dict[str, int] = {}
        kinds: Counter[str] = Counter()
        left = ["/"]
        while left:
            path = left.pop(0)
            kind = re.sub(r"=[^&]*", "=", path)
            kinds[kind] += 1
            if (
                path in seen
                or path == "/logout"
                or path.endswith(("/resend", "/cancel"))
                or kinds[kind] > 1
            ):
                continue
            answer = await browser.get(path)
            seen[path] = answer.status_code
            if "text/html" in answer.headers["content-type"]:
                left += [link.replace("&amp;", "&") for link in LINK.findall(answer.text)]
                assert 'style="' not in answer.text and "<script>" not in answer.text, path
        assert {path: code for path, code in seen.items() if code != 200} == {}
        assert {path.partition("?")[0].split("/")[1] for path in seen} >= {
            "", "topics", "groups", "clients", "messages", "tail", "trace", "dead-letters",
            "pending", "static", "search", "accounts", "brokers",
        }  # fmt: skip


async def test_overview_topics_and_groups() -> None:
    async with filled() as broker, of(broker) as browser:
        text = words(await browser.page("/"))
        assert "broker-a master" in text and "Read only" not in text
        assert "All is well" not in text
        assert "billing 4 messages wait, and the group has no member" in text
        page = await browser.page("/topics")
        assert "Application 2" in words(page) and "New topic" not in page
        text = words(await browser.page("/topics/orders"))
        assert f"Messages stored {ORDERS}" in text and "billing" in text
        text = words(await browser.page("/topics?kind=dead+letters"))
        assert "%DLQ%billing" in text
        text = words(await browser.page("/groups"))
        assert re.search(r"billing 4 [\d.]+ 0 ", text), text
        text = words(await browser.page("/groups/billing"))
        assert "Nobody is in this group, and 4 messages wait for it" in text
        assert "The line begins after two looks" in text
        assert "orders" in words(await browser.page("/search?q=ORD"))


async def test_all_is_well_where_nothing_is_found() -> None:
    async with run_broker() as broker, of(broker) as browser:
        text = words(await browser.page("/"))
        assert "All is well" in text and "clocks, disks, topics, groups found nothing" in text


async def test_topics_are_sorted_by_a_column() -> None:
    async with filled() as broker, of(broker) as browser:
        for sort, names in (("", "blobs orders"), ("-messages", "orders blobs"), ("x", "blobs")):
            page = await browser.page(f"/topics?sort={sort}")
            found = re.findall(r'href="/topics/(\w+)"', page.partition("<tbody>")[2])
            assert " ".join(found).startswith(names), sort
        text = words(await browser.page("/topics?sort=-messages"))
        assert re.search(rf"orders \S+ \S+ {ORDERS} [\d.]+ KiB 1 ", text), text


async def test_the_lag_becomes_a_line_while_the_console_looks() -> None:
    async with filled() as broker, of(broker, sample_s=0.02) as browser:

        async def is_drawn() -> bool:
            return '<svg class="chart"' in await browser.page("/groups/billing")

        await until(is_drawn, "the line")
        assert '<svg class="spark"' in await browser.page("/groups")
        assert 'aria-label="Lag of billing"' in await browser.page("/")


async def test_search_by_key_id_time_and_place() -> None:
    async with filled() as broker, of(broker) as browser:
        by_key = await browser.page("/messages?topic=orders&by=key&value=A-3")
        assert "1 message " in words(by_key) and "A-3" in words(by_key)
        found = re.search(r'title="(\w{32})" href="(/messages/view[^"]+)"', by_key)
        assert found is not None
        msg_id, link = found.groups()
        by_id = await browser.page(f"/messages?topic=orders&by=id&value={msg_id}")
        assert link in by_id
        place = link.partition("id=")[2]
        assert link in await browser.page(f"/messages?by=id&value={place}")
        text = words(await browser.page("/messages?topic=orders"))
        assert f"{ORDERS} messages" in text and "Older" not in text
        now = broker.now()
        since, until_then = now - timedelta(hours=1), now + timedelta(hours=1)
        for start, stop, count in ((since, until_then, ORDERS), (until_then, None, 0)):
            query = f"from={start:%Y-%m-%dT%H:%M:%S}" + (
                f"&to={stop:%Y-%m-%dT%H:%M}" if stop else ""
            )
            text = words(await browser.page(f"/messages?topic=orders&by=time&{query}"))
            assert (f"{count} messages" in text) if count else ("Nothing was found" in text)
        answer = await browser.get("/messages?topic=orders&by=time&from=yesterday")
        assert answer.status_code == 400 and "From is a time in UTC" in answer.text


async def test_older_messages_come_page_by_page_and_all_are_exported() -> None:
    async with run_broker() as broker, broker.client() as client, of(broker) as browser:
        await broker.create_topic("T", queues=3)
        async with Producer(client=client) as producer:
            for number in range(130):
                await producer.send(Message("T", f'{{"n": {number}}}', keys=f"all k{number}"))

        async def pages(query: str) -> list[int]:
            path, seen = f"/messages?topic=T&{query}", list[int]()
            while path and len(seen) < 200:
                page = await browser.page(path)
                seen += [int(each) for each in re.findall(r"&#34;n&#34;: (\d+)", page)]
                older = re.search(r'href="([^"]*)">Older<', page)
                path = older[1].replace("&amp;", "&") if older else ""
            return seen

        wanted = set(range(130))
        for query in ("", f"by=time&from={broker.now():%Y-%m-%d}"):
            seen = await pages(query)
            assert len(seen) == 130 and {*seen} == wanted, query
            answer = await browser.get(f"/messages/export?topic=T&{query}")
            rows = [json.loads(line) for line in answer.text.splitlines()]
            assert [row["body"]["n"] for row in rows] == seen and rows[0]["keys"], query
            assert answer.headers["content-disposition"].startswith("attachment")
        assert seen[0] >= 127 and seen[-1] <= 2  # each queue's newest one first
        for cursor in ("x", "broker-a/0/x", "/"):
            answer = await browser.get(f"/messages?topic=T&cursor={cursor}")
            assert answer.status_code == 400, cursor
        page = await browser.page("/messages?topic=T&by=key&value=all")
        assert "64 messages" in words(page) and "For older ones" in page
        assert (await browser.get("/messages/export")).status_code == 400
        assert (await browser.get("/messages/export?topic=absent")).status_code == 404


async def test_who_has_consumed_a_message() -> None:
    async with filled() as broker, broker.client() as client, of(broker) as browser:
        async with Admin(client=client) as admin:
            tracks = {
                (await admin.track(message, "billing")).is_passed: message.offset_msg_id
                async for message in admin.scan("orders")
            }
        assert {*tracks} == {True, False}
        text = words(await browser.page(f"/messages/view?id={tracks[True]}"))
        assert "billing consumed 0" in text
        text = words(await browser.page(f"/messages/view?id={tracks[False]}"))
        assert "billing not consumed yet 0" in text
        page = await browser.page("/messages?topic=blobs&by=key&value=raw")
        link = re.search(r'href="(/messages/view[^"]+)"', page)
        assert link is not None
        assert "No group consumes blobs" in words(await browser.page(link[1]))


async def test_a_message_as_json_text_and_hex() -> None:
    async with filled() as broker, of(broker) as browser:

        async def link_of(key: str, topic: str) -> str:
            page = await browser.page(f"/messages?topic={topic}&by=key&value={key}")
            return re.search(r'href="(/messages/view[^"]+)"', page)[1]  # type: ignore[index]

        link = await link_of("A-1", "orders")
        page = await browser.page(link)
        assert "{\n  &#34;order&#34;: 1,\n" in page and "<b>Ada" not in page
        assert "&lt;b&gt;Ada" in page
        assert "{&#34;order&#34;: 1" in await browser.page(f"{link}&as=text")
        assert "00000000  7b 22 6f" in await browser.page(f"{link}&as=hex")
        page = await browser.page(await link_of("raw", "blobs"))
        assert "00000010  10 11 12" in page
        page = await browser.page(await link_of("long", "blobs"))
        assert "x" * 9000 in page and "9,000 bytes, compressed to" in words(page)
        assert "Priority" not in page


async def test_a_topic_shows_its_type_and_a_message_its_priority() -> None:
    async with run_broker() as broker, of(broker) as browser, broker.client() as client:
        async with Admin(client=client) as admin, Producer(client=client) as producer:
            await admin.create_topic("urgent", message_type="PRIORITY")
            await producer.send(Message("urgent", "x", keys="k", priority=7))
        assert "rw no PRIORITY" in words(await browser.page("/topics/urgent"))
        page = await browser.page("/messages?topic=urgent&by=key&value=k")
        link = re.search(r'href="(/messages/view[^"]+)"', page)[1]  # type: ignore[index]
        assert "<dt>Priority</dt><dd>7</dd>" in await browser.page(link)


async def test_an_id_leads_to_no_machine_outside_of_the_cluster() -> None:
    async with filled() as broker, of(broker) as browser:
        elsewhere = "7F00000100000001" + "0" * 16  # 127.0.0.1:1, which is no broker
        answer = await browser.get(f"/messages/view?id={elsewhere}")
        assert answer.status_code == 404 and "no broker of the cluster has a message" in answer.text
        text = words(await browser.page(f"/messages?by=id&value={elsewhere}"))
        assert "Nothing was found" in text


async def test_what_waits_and_dead_letters() -> None:
    async with filled() as broker, broker.client() as client, of(broker) as browser:
        text = words(await browser.page("/pending"))
        assert re.search(
            r"Delayed by level 1 Level 16 · 30m broker-a 1 .* in \d+ min .*orders", text
        ), text
        assert re.search(r"With a time of their own 1 .* in 5 h .*orders", text), text
        assert "No transaction is open" in text
        async with Producer(client=client, group="shop") as producer:
            async with producer.transaction(Message("orders", "half"), check=_commit):
                text = words(await browser.page("/pending"))
                assert re.search(r"Open transactions 1 .* orders shop 0 ", text), text
            text = words(await browser.page("/pending"))
        assert "No transaction is open" in text
        text = words(await browser.page("/dead-letters"))
        assert re.search(rf"billing {DEAD} ", text), text
        page = await browser.page("/dead-letters/billing")
        assert f"{DEAD} letters" in words(page) and "Resend" not in page
        assert "no such customer" in words(page)


async def _commit(_: object) -> str:
    return "commit"


async def test_the_trace_of_a_message() -> None:
    async with filled() as broker, broker.client() as client, of(broker) as browser:
        async with Admin(client=client) as admin:
            (message,) = await admin.query("orders", key="A-0")

            async def told() -> MessageTrace | None:
                trace = await admin.trace(message.msg_id)
                return trace if trace.sends else None

            await until(told, "the trace")
        text = words(await browser.page(f"/trace?id={message.msg_id}"))
        assert "Sent to orders by the group shop" in text
        text = words(await browser.page("/trace?id=unknown"))
        assert "No client told anything of it" in text
        assert "There is no topic other" in await browser.page("/trace?id=1&topic=other")


async def test_clients_and_what_a_member_does() -> None:
    async with filled() as broker, broker.client() as client, of(broker) as browser:
        async with Consumer("orders", client=client, group="billing") as member:
            await member.getone(60)
            await broker.wait_members("billing")
            text = words(await browser.page("/clients"))
            assert (
                f"Consumers 1 Client Group Address Language Model Brokers {client.client_id}"
                in text
            )
            page = await browser.page("/groups/billing")
            link = re.search(r'href="(/groups/billing/members/[^"]+)"', page)
            assert link is not None
            text = words(await browser.page(link[1]))
            assert (
                text.startswith(f"Groups / billing {client.client_id}")
                and "orders broker-a" in text
            )
        assert "No consumer is connected" in words(await browser.page("/clients"))


async def test_live_tail_shows_what_was_there_and_what_comes() -> None:
    async with run_broker() as broker, broker.client() as client, of(broker) as browser:
        await broker.create_topic("T", queues=1)
        async with Producer(client=client) as producer:
            await producer.send(Message("T", "before", tags="a"))
            async with browser.client.stream("GET", "/tail/events?topic=T&tag=a") as answer:
                assert answer.headers["content-type"].startswith("text/event-stream")
                lines = answer.aiter_lines()
                assert '"body": "before"' in await _event(lines)
                await producer.send(Message("T", "of another tag", tags="b"))
                await producer.send(Message("T", "after", tags="a"))
                assert '"body": "after"' in await _event(lines)
        assert await broker.lag("TOOLS_CONSUMER") is None  # no group came into being
        answer = await browser.get("/tail/events?topic=absent")
        assert answer.status_code == 404


async def _event(lines: object) -> str:
    async for line in lines:  # type: ignore[attr-defined]
        if line.startswith("data: "):
            return str(line)
    raise AssertionError("the stream has ended")


async def test_what_is_not_there() -> None:
    async with filled() as broker, of(broker) as browser:
        for path, status, text in (
            ("/topics/absent", 404, "There is no such topic"),
            ("/groups/absent", 404, "there is no group absent"),
            ("/groups/billing/members/nobody", 404, "has no member nobody"),
            ("/nothing", 404, "There is no such page"),
            ("/groups/billing/reset?topic=orders&to=offset&offset=x", 400, "The offset is a whole"),
            ("/topics/bad%20name", 400, "This cannot be used"),
        ):
            answer = await browser.get(path)
            assert answer.status_code == status and text in words(answer.text), path
            assert "Traceback" not in answer.text


async def test_a_cluster_that_is_away_is_a_page_with_a_cure() -> None:
    async with run_broker() as broker, of(broker, timeout=2) as browser:
        address = broker.namesrv_addr
        await broker.stop()
        answer = await browser.get("/")
        text = words(answer.text)
        assert answer.status_code == 503 and "The cluster does not answer" in text
        assert address in text and "What to do" in text
        await broker.start()
        assert "broker-a" in words(await browser.page("/"))
