"""What changes something: with --write alone, once, from a form of this session."""

from __future__ import annotations

import re

from skylarkmq.client import Admin, Message, Producer
from skylarkmq.client.errors import RouteNotFound
from skylarkmq.testing import run_broker
from tests.tools.console.conftest import DEAD, filled
from tests.tools.console.support import of, words

PLACE = re.compile(r'name="letter" value="([^"]+)"')


async def test_a_topic_is_made_changed_and_deleted() -> None:
    async with run_broker() as broker, of(broker, is_writing=True) as browser:
        fields = {"topic": "T", "queues": "2", "perm": "rw"}
        answer = await browser.send("/topics", fields, seen="/topics/new")
        assert answer.url.path == "/topics/T" and "Created." in words(answer.text)
        answer = await browser.send("/topics", fields, seen="/topics/new")
        assert answer.status_code == 409 and "It exists already" in words(answer.text)
        answer = await browser.send("/topics", {**fields, "queues": "0"}, seen="/topics/new")
        assert answer.status_code == 400 and "from 1 to 1024" in words(answer.text)

        fields = {"queues": "3", "read_queues": "5", "perm": "r"}
        answer = await browser.send("/topics/T", fields, seen="/topics/T/edit")
        assert "The change is in force." in words(answer.text)
        assert re.search(r"broker-a [\d.:]+ 3 5 r no", words(answer.text)), words(answer.text)

        seen = "/topics/T/delete"
        answer = await browser.send(seen, {"name": "t"}, seen=seen)
        assert answer.status_code == 400 and "has to be written as it is" in words(answer.text)
        answer = await browser.send(seen, {"name": "T"}, seen=seen)
        assert answer.url.path == "/topics" and "Deleted." in words(answer.text)
        assert (await browser.get("/topics/T")).status_code == 404


async def test_a_group_is_moved_after_a_preview() -> None:
    async with filled() as broker, of(broker, is_writing=True) as browser:
        path = "/groups/billing/reset"
        preview = await browser.page(f"{path}?topic=orders&to=end")
        assert "4 messages are skipped. Nothing has changed yet." in words(preview)
        assert await broker.lag("billing") == 4
        fields = {"topic": "orders", "to": "end", "time": "", "offset": ""}
        answer = await browser.send(path, fields, seen=f"{path}?topic=orders&to=end")
        assert answer.url.path == "/groups/billing"
        assert "The group has been moved." in words(answer.text)
        assert await broker.lag("billing") == 0
        preview = await browser.page(f"{path}?topic=orders&to=begin")
        assert "12 messages come again" in words(preview)
        time = f"{broker.now():%Y-%m-%dT00:00:00}"
        preview = await browser.page(f"{path}?topic=orders&to=time&time={time}")
        assert "12 messages come again" in words(preview)


async def test_dead_letters_are_sent_again() -> None:
    async with filled() as broker, of(broker, is_writing=True) as browser:
        seen = "/dead-letters/billing"
        places = PLACE.findall(await browser.page(seen))
        assert len(places) == DEAD
        fields = {"to": "group", "which": "chosen"}
        answer = await browser.send(f"{seen}/resend", {**fields, "letter": places[:1]}, seen=seen)
        assert "1 sent again" in words(answer.text)
        assert len(await broker.messages("%RETRY%billing")) == 1
        before = len(await broker.messages("orders"))
        fields = {"to": "topic", "which": "all"}
        answer = await browser.send(f"{seen}/resend", fields, seen=seen)
        assert f"{DEAD} sent again" in words(answer.text)
        assert len(await broker.messages("orders")) == before + DEAD
        for wrong in ({"letter": "broker-a/0/99"}, {"letter": "x"}, {}, {"to": "all"}):
            answer = await browser.send(f"{seen}/resend", wrong, seen=seen)
            assert answer.status_code == 400, wrong


async def test_a_console_that_only_reads_changes_nothing() -> None:
    async with filled() as broker, of(broker) as browser:
        for path in ("/topics/new", "/topics/orders/edit", "/topics/orders/delete"):
            answer = await browser.get(path)
            assert answer.status_code == 403 and "Start it with --write" in words(answer.text)
        for path, fields in (
            ("/topics", {"topic": "T", "queues": "1"}),
            ("/topics/orders", {"queues": "1", "read_queues": "1"}),
            ("/topics/orders/delete", {"name": "orders"}),
            ("/groups/billing/reset", {"topic": "orders", "to": "end"}),
            ("/dead-letters/billing/resend", {"which": "all"}),
        ):
            answer = await browser.send(path, fields)
            assert answer.status_code == 403 and "only reads" in words(answer.text), path
        assert await broker.lag("billing") == 4
        assert len(await broker.messages("orders")) == 12
        preview = await browser.page("/groups/billing/reset?topic=orders&to=end")
        assert "Nothing has changed yet" in words(preview) and "Move the group" not in preview


async def test_a_form_of_somebody_else_changes_nothing() -> None:
    async with (
        run_broker() as broker,
        broker.client() as client,
        of(broker, is_writing=True) as browser,
        Producer(client=client) as producer,
        Admin(client=client) as admin,
    ):
        await producer.send(Message("T", "kept"))
        fields = {"name": "T"}
        path = "/topics/T/delete"
        answer = await browser.post(path, fields)
        assert answer.status_code == 403 and "not of your session" in words(answer.text)
        answer = await browser.post(path, {"token": "0" * 64, **fields})
        assert answer.status_code == 403
        for origin in ("http://evil.example", "null", "", "http://127.0.0.1:1", "http://["):
            answer = await browser.send(path, fields, Origin=origin)
            assert answer.status_code == 403 and "another site" in answer.text, origin
        token = re.search(r'name="token" value="(\w+)"', await browser.page(path))
        assert token is not None
        browser.client.cookies.clear()  # the token of another session
        answer = await browser.post(path, {"token": token[1], **fields})
        assert answer.status_code == 403
        assert (await admin.describe_topic("T")).message_count == 1
        answer = await browser.post(path, {"token": token[1], "x": "y" * 300_000})
        assert answer.status_code == 413
        await browser.send(path, fields)
        try:
            await admin.describe_topic("T")
        except RouteNotFound:
            return
        raise AssertionError("the right form has deleted nothing")
