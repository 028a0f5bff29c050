"""`msg`, `tail`, `peek` and `request`: what they find, show, send and refuse."""

from __future__ import annotations

import asyncio

import pytest

from skylarkmq.client import Consumer, Message, Producer, ReceivedMessage, StartFrom
from skylarkmq.testing import SyncBroker
from skylarkmq.tools.running import NOT_FOUND, REFUSED, UNREACHABLE, USAGE
from tests.tools.live.shell import Shell, beside

pytestmark = pytest.mark.timing


def test_a_message_is_found_by_each_of_its_ids(shell: Shell) -> None:
    sent = shell.send("ids", "Grüße", "--tags", "A", "--key", "k1", "--property", "color=red")
    by_place = shell("msg", "get", sent["offset_msg_id"]).json
    by_name = shell("msg", "get", sent["msg_id"], "--topic", "ids").json
    assert by_place == by_name
    assert (by_place["body"], by_place["body_encoding"]) == ("Grüße", "text")
    assert (by_place["msg_id"], by_place["queue_offset"]) == (
        sent["msg_id"],
        sent["queue_offset"],
    )
    assert (by_place["tags"], by_place["keys"]) == ("A", "k1")
    assert by_place["properties"]["color"] == "red"
    table = shell("msg", "get", sent["offset_msg_id"], "-o", "table").out
    assert "color=red" in table and table.endswith("\nGrüße\n")


def test_a_message_cannot_write_over_the_terminal(shell: Shell) -> None:
    sent = shell.send("escapes", "a\x1b[2Jb\n\tc\r", "--tags", "t\x1b[31m")
    table = shell("msg", "get", sent["offset_msg_id"], "-o", "table").out
    assert "t [31m" in table and table.endswith("\na [2Jb\n\tc \n")
    table += shell("msg", "query", "escapes", "--id", sent["msg_id"], "-o", "table").out
    assert "\x1b" not in table and "\r" not in table
    assert "\x1b[2J" in shell("msg", "get", sent["offset_msg_id"], "--body-only").out


def test_a_producer_s_id_without_a_topic_says_what_is_missing(shell: Shell) -> None:
    sent = shell.send("ids", "x")
    said = shell("msg", "get", sent["msg_id"], code=NOT_FOUND)
    assert "--topic" in said.err
    assert "--topic" in shell("msg", "get", "nonsense", code=NOT_FOUND).err
    gone = f"{sent['offset_msg_id'][:16]}{10**9:016X}"
    assert "no broker here has a message" in shell("msg", "get", gone, code=NOT_FOUND).err


def test_bodies_in_every_form(shell: Shell) -> None:
    sent = shell.send("forms", '{"id": 7}')

    def shown(form: str, *more: str) -> tuple[object, object]:
        row = shell("msg", "get", sent["offset_msg_id"], "--body", form, *more).json
        return row["body_encoding"], row["body"]

    assert shown("auto") == ("json", {"id": 7})
    assert shown("json") == ("json", {"id": 7})
    assert shown("text") == ("text", '{"id": 7}')
    assert shown("hex") == ("hex", b'{"id": 7}'.hex())
    assert shown("base64") == ("base64", "eyJpZCI6IDd9")
    assert shown("none") == (None, None)
    table = shell("msg", "get", sent["offset_msg_id"], "--body", "hex", "-o", "table").out
    assert "00000000  7b 22 69 64 22 3a 20 37 7d" in table and '|{"id": 7}|' in table
    raw = shell("msg", "get", sent["offset_msg_id"], "--body-only").out
    assert raw == '{"id": 7}'
    plain = shell.send("forms", "[no json")
    row = shell("msg", "get", plain["offset_msg_id"]).json
    assert (row["body_encoding"], row["body"]) == ("text", "[no json")
    row = shell("msg", "get", plain["offset_msg_id"], "--body", "json").json
    assert row["body"] is None and "no JSON" in row["body_error"]


def test_a_terminal_gets_no_control_characters_of_a_message(shell: Shell) -> None:
    shell.send("evil", "a\x1b[2Jb\nc", "--tags", "A")
    table = shell("peek", "evil", "-o", "table").out
    assert "\x1b" not in table and "a [2Jb c" in table


def test_query_by_key_and_by_time(shell: Shell) -> None:
    for number in range(5):
        shell.send("found", f"m-{number}", "--key", "even" if number % 2 == 0 else "odd")
    rows = shell("msg", "query", "found", "--key", "even").json
    assert [row["body"] for row in rows] == ["m-0", "m-2", "m-4"]
    rows = shell("msg", "query", "found", "--since", "1h", "--limit", "2").json
    assert [row["body"] for row in rows] == ["m-0", "m-1"]
    assert shell("msg", "query", "found", "--key", "none", code=NOT_FOUND).json == []
    shell("msg", "query", "found", "--since", "2100-01-01", code=NOT_FOUND)
    shell("msg", "query", "found", code=USAGE)
    shell("msg", "query", "absent", "--key", "k", code=NOT_FOUND)
    assert "ten minutes" in shell("msg", "query", "found", "--since", "soon", code=USAGE).err


def test_a_trace_tells_of_send_and_delivery(shell: Shell, broker: SyncBroker) -> None:
    async def traced() -> str:
        address = broker.namesrv_addr
        async with Producer(namesrv_addr=address, group="tracing", trace=True) as producer:
            return (await producer.send(Message("traced", b"x"))).msg_id

    msg_id = asyncio.run(traced())
    (sent,) = shell("msg", "trace", msg_id).json["sends"]
    assert (sent["group"], sent["topic"], sent["success"]) == ("tracing", "traced", True)
    assert "sent (normal)" in shell("msg", "trace", msg_id, "-o", "table").out
    assert "nobody told" in shell("msg", "trace", "0" * 32, code=NOT_FOUND).err


def test_a_copy_goes_where_it_is_told(shell: Shell) -> None:
    sent = shell.send("first", "x", "--tags", "A", "--key", "k", "--property", "p=v")
    before = shell("peek", "first").json
    said = shell("msg", "resend", sent["offset_msg_id"], "--to", "second", "--dry-run")
    assert said.out == "" and "would send a copy" in said.err
    shell("msg", "resend", sent["offset_msg_id"], "--to", "second", code=USAGE)
    shell("peek", "second", code=NOT_FOUND)
    result = shell("msg", "resend", sent["offset_msg_id"], "--to", "second", "--yes").json
    assert (result["topic"], result["copy_of"]) == ("second", sent["msg_id"])
    (copy,) = shell("peek", "second").json
    assert (copy["body"], copy["tags"], copy["keys"]) == ("x", "A", "k")
    assert copy["properties"]["p"] == "v"
    assert copy["msg_id"] != sent["msg_id"]
    assert shell("peek", "first").json == before
    shell("msg", "resend", sent["offset_msg_id"], "--yes")
    assert len(shell("peek", "first").json) == 2


def test_a_copy_with_a_priority_needs_a_topic_of_that_type(shell: Shell) -> None:
    shell("topic", "create", "levels", "--message-type", "PRIORITY", "--yes")
    shell("topic", "create", "flat", "--yes")
    sent = shell.send("levels", "x", "--priority", "2")
    resend = ("msg", "resend", sent["offset_msg_id"], "--yes", "--to")
    refused = shell(*resend, "flat", code=REFUSED).err
    assert "topic flat has no priorities" in refused
    assert "let `skylarkmq topic create` or `skylarkmq topic update` give the topic " in refused
    shell("topic", "update", "flat", "--message-type", "PRIORITY", "--yes")
    assert shell(*resend, "flat").json["queue_id"] == 2
    assert shell("peek", "flat").json[0]["priority"] == 2
    assert "PRIORITY" in (shown := shell("peek", "flat", "-o", "table").out)
    assert "  -            2  " in shown


def test_peek_reads_from_every_place_and_commits_nothing(shell: Shell, broker: SyncBroker) -> None:
    broker.create_topic("places", queues=1)
    for number in range(20):
        shell.send("places", str(number))

    def bodies(*options: str) -> list[str]:
        return [row["body"] for row in shell("peek", "places", "--body", "text", *options).json]

    assert bodies() == [str(number) for number in range(10, 20)]
    assert bodies("--count", "2") == ["18", "19"]
    assert bodies("--first", "--count", "2") == ["0", "1"]
    assert bodies("--offset", "7", "--count", "3", "--queue", "broker-a/0") == ["7", "8", "9"]
    assert bodies("--since", "1h", "--count", "1") == ["0"]
    assert bodies("--queue", "0", "--count", "1") == ["19"]
    assert "it has broker-a/0" in shell("peek", "places", "--queue", "b/4", code=NOT_FOUND).err
    shell("peek", "places", "--queue", "x", code=USAGE)
    shell("peek", "places", "--first", "--offset", "1", code=USAGE)
    assert broker.lag("TOOLS_CONSUMER") is None


def test_tail_begins_back_and_filters(shell: Shell) -> None:
    for number in range(9):
        tag, size = "AB"[number % 2], str(number)
        shell.send("tailed", f"line {number}", "--tags", tag, "--property", f"size={size}")

    def bodies(*options: str) -> list[str]:
        return [row["body"] for row in shell("tail", "tailed", *options).lines]

    assert bodies("--last", "3", "--count", "3") == ["line 6", "line 7", "line 8"]
    assert bodies("--last", "9", "--tags", "B", "--count", "2") == ["line 1", "line 3"]
    assert bodies("--last", "9", "--sql", "size > 6", "--count", "2") == ["line 7", "line 8"]
    assert bodies("--last", "9", "--grep", "line [45]", "--count", "2") == ["line 4", "line 5"]
    assert len(bodies("--since", "1h", "--count", "9")) == 9
    assert bodies("--for", "1ms") == []
    table = shell("tail", "tailed", "--last", "1", "--count", "1", "-o", "table").out
    assert table.rstrip().endswith("[A] line 8")
    shell("tail", "absent", code=NOT_FOUND)
    for words in (["--grep", "("], ["--tags", "A", "--sql", "B"], ["--last", "1", "--since", "1m"]):
        shell("tail", "tailed", *words, code=USAGE)


def test_tail_prints_what_comes(shell: Shell, broker: SyncBroker) -> None:
    broker.create_topic("live", queues=2)

    async def send() -> None:
        async with Producer(namesrv_addr=broker.namesrv_addr) as producer:
            while True:
                await producer.send(Message("live", b"now"))

    with beside(send()):
        rows = shell("tail", "live", "--count", "5").lines
    assert [row["body"] for row in rows] == ["now"] * 5


def test_a_request_prints_the_reply(shell: Shell, broker: SyncBroker) -> None:
    broker.create_topic("asked", queues=1)

    async def answering() -> None:
        consumer = Consumer(
            "asked",
            namesrv_addr=broker.namesrv_addr,
            group="answering",
            start_from=StartFrom.FIRST,
        )
        async with consumer:

            async def answer(message: ReceivedMessage) -> None:
                await consumer.reply(message, b"re: " + message.body)

            await consumer.run(answer)

    with beside(answering()):
        reply = shell("request", "asked", "how are you", "--timeout", "20").json
        piped = shell("request", "asked", "--timeout", "20", "-o", "table", stdin="in").out
    assert (reply["body"], reply["body_encoding"]) == ("re: how are you", "text")
    assert piped == "re: in\n"
    shell("request", "unasked", "x", "--timeout", "0.1", code=UNREACHABLE)
