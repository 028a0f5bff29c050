"""Every command that prints messages prints the same of one, and `send --input json` reads it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import Client, Consumer, Message, PeekReader, Producer, StartFrom
from skylarkmq.client.message_json import FIELDS
from skylarkmq.testing import SyncBroker, run_broker_sync
from skylarkmq.tools.running import USAGE
from tests.support.patience import LIMIT_S
from tests.tools.live.shell import Shell

pytestmark = pytest.mark.timing

BODIES = [
    b"plain", "Grüße\n".encode(), b"", b"\xff\xfe", b'{"id":7,"list":[1,2.5]}', b'{"a": 1, "a": 2}',
]  # fmt: skip
TOPIC = "there"


def sent(address: str, topic: str = TOPIC) -> None:
    """Send one message of each kind of body, into one queue."""

    async def send() -> None:
        async with Producer(namesrv_addr=address) as producer:
            for number, body in enumerate(BODIES):
                await producer.send(
                    Message(
                        topic, body, tags="A", keys=f"k{number} all", flag=7,
                        properties={"color": "blue=green"}, sharding_key="u",
                    )
                )  # fmt: skip

    asyncio.run(send())


def piped(topic: str, lines: str) -> subprocess.CompletedProcess[str]:
    """Send messages in JSON through a pipe, which a process of its own reads."""
    return subprocess.run(
        [sys.executable, "-m", "skylarkmq.cli", "send", topic, "--input", "json"],
        input=lines, capture_output=True, encoding="utf-8", timeout=LIMIT_S, check=False,
    )  # fmt: skip


def stored(address: str, topic: str) -> list[tuple[object, ...]]:
    """What a topic holds, without what each delivery has of its own."""

    async def read() -> list[tuple[object, ...]]:
        async with PeekReader(topic, namesrv_addr=address, stop="now") as reader:
            return [
                (
                    message.body, message.tags, message.keys, message.flag, message.sharding_key,
                    message.properties["color"],
                )
                async for message in reader
            ]  # fmt: skip

    return asyncio.run(read())


@pytest.fixture(scope="module")
def group(broker: SyncBroker) -> str:
    """A group that has given up what is in TOPIC."""
    broker.create_topic(TOPIC, queues=1)
    sent(broker.namesrv_addr)

    async def give_up() -> None:
        async with (
            Client(broker.namesrv_addr) as client,
            Consumer(TOPIC, client=client, group="gave_up", start_from=StartFrom.FIRST) as consumer,
        ):
            for _ in BODIES:
                await (await consumer.getone(timeout=20)).dead_letter()

    asyncio.run(give_up())
    return "gave_up"


COMMANDS = {
    "consume": f"consume {TOPIC} --group reads --from first --max 6",
    "tail": f"tail {TOPIC} --since 1h --count 6",
    "tail-last": f"tail {TOPIC} --last 6 --count 6",
    "peek": f"peek {TOPIC} -o ndjson",
    "msg-query": f"msg query {TOPIC} --key all -o ndjson",
    "dlq-list": "dlq list gave_up -o ndjson",
    "dlq-export": "dlq export gave_up",
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_what_a_command_prints_is_sent_again(
    shell: Shell, broker: SyncBroker, group: str, words: str, request: pytest.FixtureRequest
) -> None:
    said = shell(*words.split())
    for row in said.lines:
        assert list(row) == [*FIELDS, "body", "body_encoding"]
        assert row["origin_topic"] == TOPIC
    copies = f"of-{request.node.callspec.id}"
    broker.create_topic(copies, queues=1)
    again = [json.loads(line) for line in piped(copies, said.out).stdout.splitlines()]
    assert {row["status"] for row in again} == {"SEND_OK"}
    assert not {row["msg_id"] for row in again} & {row["msg_id"] for row in said.lines}
    assert stored(broker.namesrv_addr, copies) == stored(broker.namesrv_addr, TOPIC)


def test_one_message_says_the_same_wherever_it_is_read(shell: Shell, group: str) -> None:
    (first, *_) = shell(*COMMANDS["peek"].split()).lines
    rows = [shell(*COMMANDS[name].split()).lines[0] for name in ("tail", "tail-last", "msg-query")]
    rows.append(shell("msg", "get", first["offset_msg_id"]).json)
    rows.append(shell("msg", "get", first["msg_id"], "--topic", TOPIC, "-o", "ndjson").lines[0])
    rows.append(shell("consume", TOPIC, "--group", "other", "--from", "first", "--max", "1").json)
    assert rows == [first] * len(rows)
    letter = shell("dlq", "list", group, "--limit", "1").json[0]
    assert shell("dlq", "show", group, letter["offset_msg_id"]).json == letter


def test_single_messages_and_dead_letters_are_sent_again(
    shell: Shell, broker: SyncBroker, group: str
) -> None:
    broker.create_topic("single", queues=1)
    for command in ("peek", "dlq-list"):
        for row in shell(*COMMANDS[command].split()).lines:
            at = row["offset_msg_id"]
            words = ("msg", "get", at) if command == "peek" else ("dlq", "show", group, at)
            said = shell(*words, "-o", "ndjson")
            shell("send", "single", said.out.strip(), "--input", "json")
    expected = stored(broker.namesrv_addr, TOPIC)
    assert stored(broker.namesrv_addr, "single") == expected * 2


def test_a_stopped_store_is_sent_again(shell: Shell, broker: SyncBroker, tmp_path: Path) -> None:
    with run_broker_sync(store=tmp_path / "old") as old:
        old.create_topic(TOPIC, queues=1)
        sent(old.namesrv_addr)
        expected = stored(old.namesrv_addr, TOPIC)
        live = shell("peek", TOPIC, "--namesrv", old.namesrv_addr, "-o", "ndjson").lines
    said = shell("store", "cat", str(tmp_path / "old"), "--topic", TOPIC)
    assert said.lines == [{**row, "broker": None} for row in live]
    broker.create_topic("restored", queues=1)
    assert piped("restored", said.out).returncode == 0
    assert stored(broker.namesrv_addr, "restored") == expected


def test_a_line_that_is_no_message_ends_the_sending(shell: Shell, broker: SyncBroker) -> None:
    broker.create_topic("half", queues=1)
    good: dict[str, Any] = {"body": "x"}
    lines = [json.dumps(row) for row in (good, {"bodi": "x"}, good)]
    said = piped("half", "\n".join(lines))
    assert (said.returncode, len(said.stdout.splitlines())) == (USAGE, 1)
    assert "line 2: 'bodi' is no key of a message; body?" in said.stderr
    said = piped("half", "[\n")
    assert said.returncode == USAGE
    assert "-o ndjson" in said.stderr
