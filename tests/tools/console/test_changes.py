"""What changes something: with --write alone, asked for, noted, from a form of this session."""

from __future__ import annotations

import json
import re

import pytest

from skylarkmq.client import Admin, Client, Credentials, Message, Producer
from skylarkmq.client.errors import RouteNotFound
from skylarkmq.testing import run_broker
from skylarkmq.tools.console.app import CHANGES, make_app
from skylarkmq.tools.console.settings import Settings
from tests.tools.console.conftest import DEAD, filled
from tests.tools.console.support import of, words

PLACE = re.compile(r'name="letter" value="([^"]+)"')


async def test_a_topic_is_made_changed_and_deleted() -> None:
    async with run_broker() as broker, of(broker, is_writing=True) as browser:
        seen, fields = "/topics/new", {"topic": "T", "queues": "2", "perm": "rw"}
        answer = await browser.change(seen, fields, seen=seen)
        assert answer.url.path == "/topics/T" and "Created." in words(answer.text)
        asked = await browser.send(seen, {**fields, "topic": "U"}, seen=seen)
        answer = await browser.send(seen, fields, seen=seen)  # told before it is asked for
        assert answer.status_code == 400 and "There is a topic T on broker-a." in words(answer.text)
        assert '<a href="/topics/T">Open it</a>' in answer.text and 'value="T"' in answer.text
        await browser.confirm(asked)
        answer = await browser.confirm(asked)  # somebody else was quicker
        assert answer.status_code == 409 and "It exists already" in words(answer.text)
        assert "update_topic" not in answer.text
        answer = await browser.send(seen, {**fields, "topic": "V", "queues": "0"}, seen=seen)
        assert answer.status_code == 400 and "from 1 to 1024" in words(answer.text)
        assert 'value="V"' in answer.text and "Go back" not in answer.text

        seen, fields = "/topics/T/edit", {"queues": "3", "read_queues": "5", "perm": "r"}
        asked = await browser.send(seen, fields, seen=seen)
        assert "broker-a has 2 write queues, 2 read queues, read and write now." in asked.text
        answer = await browser.confirm(asked)
        assert "The change is in force." in words(answer.text)
        assert re.search(r"broker-a [\d.:]+ 3 5 r no \N{EN DASH}", words(answer.text)), words(
            answer.text
        )
        asked = await browser.send(seen, {**fields, "type": "PRIORITY"}, seen=seen)
        assert "and the type PRIORITY" in words(asked.text)
        answer = await browser.confirm(asked)
        answer = await browser.change(seen, fields, seen=seen)  # as it is
        assert re.search(r"broker-a [\d.:]+ 3 5 r no PRIORITY", words(answer.text))
        answer = await browser.send(seen, {**fields, "type": "URGENT"}, seen=seen)
        assert answer.status_code == 400 and "A type is one of MIXED, NORMAL" in words(answer.text)

        asked = await browser.get("/topics/T/delete")
        assert "Delete the topic T with its 0 messages from broker-a" in words(asked.text)
        answer = await browser.confirm(asked, "t")
        assert answer.status_code == 400 and "has to be written as it is" in words(answer.text)
        answer = await browser.confirm(asked, "T")
        assert answer.url.path == "/topics" and "Deleted." in words(answer.text)
        assert (await browser.get("/topics/T")).status_code == 404


async def test_a_group_is_made_changed_and_deleted() -> None:
    async with run_broker() as broker, of(broker, is_writing=True) as browser:
        seen = "/groups/new"
        fields = {"group": "G", "max_retries": "3", "retry_queues": "1", "consume_enabled": "yes"}
        answer = await browser.change(seen, fields, seen=seen)
        assert answer.url.path == "/groups/G" and "Created." in words(answer.text)
        assert "broker-a allowed forbidden 3 1" in words(answer.text)
        answer = await browser.send(seen, fields, seen=seen)
        assert answer.status_code == 400 and "There is a group G on broker-a." in words(answer.text)
        assert '<a href="/groups/G">Open it</a>' in answer.text
        assert re.search(r'name="consume_enabled" value="yes" checked', answer.text)
        assert re.search(r'name="broadcast_enabled" value="yes">', answer.text), "as it was sent"
        seen = "/groups/G/edit"
        del fields["consume_enabled"]
        asked = await browser.send(seen, {**fields, "max_retries": "4"}, seen=seen)
        assert "broker-a has max retries 3, retry queues 1, consume enabled yes" in asked.text
        answer = await browser.confirm(asked)
        assert "broker-a forbidden forbidden 4 1" in words(answer.text)
        answer = await browser.confirm(await browser.get("/groups/G/delete"), "G")
        assert answer.url.path == "/groups" and "Deleted." in words(answer.text)
        assert (await browser.get("/groups/G")).status_code == 404


async def test_a_message_is_sent() -> None:
    async with run_broker() as broker, of(broker, is_writing=True) as browser:
        await broker.create_topic("T")
        seen = "/messages/send"
        fields = {"topic": "T", "body": '{"a": 1.0}\r\n', "encoding": "json", "tags": "new"}
        fields |= {"keys": "k1 k2", "properties": "colour=red\r\nsize=1=2\r\n__SHARDINGKEY=s"}
        answer = await browser.change(seen, fields, seen=seen)
        assert answer.url.path == "/messages/view" and "The message is stored." in answer.text
        (message,) = await broker.messages("T")
        assert (message.body, message.tags, message.keys) == (b'{"a": 1.0}\n', "new", "k1 k2")
        assert message.properties["colour"] == "red" and message.properties["size"] == "1=2"
        assert message.properties["__SHARDINGKEY"] == "s"
        await browser.change(seen, {"topic": "T", "body": "00ff", "encoding": "hex"}, seen=seen)
        assert b"\x00\xff" in {each.body for each in await broker.messages("T")}
        for wrong in (
            {"body": "{", "encoding": "json"}, {"body": "0", "encoding": "hex"},
            {"body": "x", "properties": "no pair"}, {"body": "x", "encoding": "x"},
            {"body": "x", "properties": "KEYS=k"}, {"body": "x", "properties": "empty="},
            {"body": "x", "properties": "_SYS_MSG_PRIORITY_=5"}, {"body": "x", "priority": "-1"},
        ):  # fmt: skip
            fields = {"topic": "T", "keys": "kept", "tags": "<b>", **wrong}
            answer = await browser.send(seen, fields, seen=seen)
            assert answer.status_code == 400, wrong
            page = answer.text
            assert "Send a message" in words(page) and 'role="alert"' in page, "the form again"
            assert 'value="kept"' in page and 'value="&lt;b&gt;"' in page
            assert f">\n{wrong['body']}</textarea>" in page
        fields = {"topic": "mistyped", "body": "\n[1]", "encoding": "json", "keys": "kept"}
        answer = await browser.send(seen, fields, seen=seen)
        assert answer.status_code == 404 and "There is no such topic" in words(answer.text)
        assert ">\n\n[1]</textarea>" in answer.text and "<option selected>json" in answer.text


async def test_a_priority_is_offered_where_a_topic_has_some_or_none_is_named() -> None:
    field = 'name="priority"'
    async with (
        run_broker() as broker,
        of(broker, is_writing=True) as browser,
        broker.client() as client,
        Admin(client=client) as admin,
    ):
        await admin.create_topic("urgent", queues=4, message_type="PRIORITY")
        await admin.create_topic("plain")
        assert field in await browser.page("/messages/send")
        assert field not in await browser.page("/messages/send?topic=plain")
        seen = "/messages/send?topic=urgent"
        assert field in await browser.page(seen)
        fields = {"body": "x", "priority": "2", "keys": "k1 k2", "tags": "new"}
        asked = await browser.send("/messages/send", {**fields, "topic": "urgent"}, seen=seen)
        assert "Send a message of 1 byte to the topic urgent." in words(asked.text)
        assert "With priority 2, tags new, keys k1 k2." in words(asked.text)
        answer = await browser.confirm(asked)
        assert "Priority 2 Queue broker-a / 2" in words(answer.text)
        answer = await browser.change("/messages/send", {**fields, "topic": "plain"}, seen=seen)
        assert "topic plain has no priorities" in words(answer.text)
        cure = "Leave the priority out, or let skylarkmq topic create or skylarkmq topic update"
        assert cure in words(answer.text)


async def test_a_delayed_message_is_taken_back() -> None:
    async with filled() as broker, of(broker, is_writing=True) as browser:
        page = await browser.page("/pending")
        links = re.findall(r'href="(/pending/cancel[^"]+)"', page)
        assert len(links) == 1  # the one with a time of its own
        asked = await browser.get(links[0])
        assert "in the topic orders" in words(asked.text)
        answer = await browser.confirm(asked)
        assert "The message was taken back." in words(answer.text)
        assert "Nothing waits for a time of its own" in words(answer.text)
        answer = await browser.confirm(asked)
        assert answer.status_code == 404 and "does not wait" in words(answer.text)


async def test_a_setting_of_a_broker_is_changed_while_it_runs() -> None:
    async with run_broker() as broker, of(broker, is_writing=True) as browser:
        path = "/brokers/broker-a/settings/fileReservedTime"
        assert 'value="72"' in await browser.page(path)
        asked = await browser.send(path, {"value": "48"}, seen=path)
        assert "Set fileReservedTime of broker-a to “48” (now “72”)" in words(asked.text)
        answer = await browser.confirm(asked)
        assert answer.url.path == "/brokers/broker-a"
        assert "The change is in force." in words(answer.text)
        assert "fileReservedTime 48" in words(answer.text)
        answer = await browser.send(path, {"value": "soon"}, seen=path)
        assert answer.status_code == 400 and "is a number now" in words(answer.text)
        assert 'value="soon"' in answer.text
        answer = await browser.change(path, {"value": "-7"}, seen=path)
        assert answer.status_code == 502 and "The cluster refused" in words(answer.text)
        assert 'value="-7"' in answer.text
        for key, value in (("longPollingEnable", "yes"), ("longPollingEnable", "1")):
            switch = f"/brokers/broker-a/settings/{key}"
            answer = await browser.send(switch, {"value": value}, seen=switch)
            assert answer.status_code == 400 and "is true or false" in words(answer.text)
        path = "/brokers/broker-a/settings/storePathRootDir"
        answer = await browser.change(path, {"value": "/x"}, seen=path)
        assert "takes a restart. Set it in the broker's configuration" in words(answer.text)
        answer = await browser.get("/brokers/broker-a/settings/none")
        assert answer.status_code == 404
        assert (await browser.get("/brokers/absent")).status_code == 404


async def test_each_change_is_noted_with_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "skylarkmq.audit")
    async with run_broker() as broker, of(broker, is_writing=True) as browser:
        seen, fields = "/topics/new", {"topic": "T", "queues": "2", "perm": "rw"}
        asked = await browser.send(seen, fields, seen=seen)

        def rows() -> list[dict[str, str]]:
            lines = [each.getMessage() for each in caplog.records if each.name == "skylarkmq.audit"]
            return [row for row in map(json.loads, lines) if "what" in row]

        assert rows() == []  # nothing has been done
        await browser.confirm(asked)
        await browser.confirm(asked)
        first, second = rows()
    assert (first["action"], first["resource"], first["result"]) == ("topic.create", "T", "done")
    assert (first["who"], first["from"]) == ("", "127.0.0.1")
    assert "topic T exists on broker-a" in second["result"]


async def test_a_group_is_moved_after_a_preview() -> None:
    async with filled() as broker, of(broker, is_writing=True) as browser:
        path = "/groups/billing/reset"
        preview = await browser.page(f"{path}?topic=orders&to=end")
        assert "4 messages are skipped. Nothing has changed yet." in words(preview)
        assert await broker.lag("billing") == 4
        fields = {"topic": "orders", "to": "end", "time": "", "offset": "", "sure": "yes"}
        answer = await browser.send(path, fields, seen=f"{path}?topic=orders&to=end")
        assert answer.url.path == "/groups/billing"
        assert "The group has been moved." in words(answer.text)
        assert await broker.lag("billing") == 0
        answer = await browser.send(
            path, {**fields, "to": "offset", "offset": "x"}, seen="/topics/new"
        )
        assert answer.status_code == 400 and 'value="orders"' in answer.text
        assert "The offset is a whole number" in words(answer.text) and "Where to" in answer.text
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
        again, fields = f"{seen}/resend", {"to": "group", "which": "chosen"}
        asked = await browser.send(again, {**fields, "letter": places[:1]}, seen=seen)
        assert "Send 1 dead letter of billing again" in words(asked.text)
        answer = await browser.confirm(asked)
        assert "1 sent again" in words(answer.text)
        assert len(await broker.messages("%RETRY%billing")) == 1
        before = len(await broker.messages("orders"))
        answer = await browser.change(again, {"to": "topic", "which": "all"}, seen=seen)
        assert f"{DEAD} sent again" in words(answer.text)
        assert len(await broker.messages("orders")) == before + DEAD
        for gone in ("broker-a/0/99", "x"):
            answer = await browser.change(again, {"letter": [places[0], gone]}, seen=seen)
            assert answer.status_code == 400, gone
        assert len(await broker.messages("%RETRY%billing")) == 1, "none of them was sent"
        for wrong in ({}, {"to": "all"}):
            answer = await browser.send(again, wrong, seen=seen)
            assert answer.status_code == 400, wrong


async def test_a_console_that_only_reads_has_no_way_to_change() -> None:
    def connect(_: Credentials | None) -> Client:
        raise AssertionError

    app = make_app(Settings("ns:9876", connect))
    posts = [each for each in app.routes if "POST" in (getattr(each, "methods", None) or ())]
    assert {getattr(each, "path", "") for each in posts} == {"/login", "/logout"}
    async with filled() as broker, of(broker) as browser:
        for path, _, _ in CHANGES:
            path = re.sub(r"\{\w+\}", "billing", path)
            answer = await browser.send(path, {"sure": "yes"})
            assert answer.status_code == 404 and "no such page" in words(answer.text), path
        for path in ("/topics/orders/edit", "/topics/orders/delete", "/groups/billing/edit"):
            assert (await browser.get(path)).status_code == 404
        assert await broker.lag("billing") == 4
        preview = await browser.page("/groups/billing/reset?topic=orders&to=end")
        assert "Nothing has changed yet" in words(preview) and "Move the group" not in preview
        for path in ("/topics", "/topics/orders", "/groups", "/groups/billing", "/pending"):
            assert 'method="post"' not in await browser.page(path), path


async def test_a_form_of_somebody_else_changes_nothing() -> None:
    async with (
        run_broker() as broker,
        broker.client() as client,
        of(broker, is_writing=True) as browser,
        Producer(client=client) as producer,
        Admin(client=client) as admin,
    ):
        await producer.send(Message("T", "kept"))
        fields = {"typed": "T", "sure": "yes"}
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
        await browser.send(path, fields, seen=path)
        try:
            await admin.describe_topic("T")
        except RouteNotFound:
            return
        raise AssertionError("the right form has deleted nothing")
