"""The commands of the page about troubleshooting are run as they stand, but for ports and ids."""

from __future__ import annotations

import asyncio
import re
import shlex
from datetime import timedelta
from pathlib import Path

import pytest

from skylarkmq.client import (
    Client,
    Consumer,
    Message,
    Producer,
    ReceivedMessage,
    StartFrom,
    TransactionState,
)
from skylarkmq.testing import SyncBroker
from tests.tools.live.shell import Shell, beside

pytestmark = pytest.mark.timing

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "operations" / "troubleshooting.md").read_text("utf-8")
LINES = re.findall(r"^    \.venv/bin/skylarkmq (.+)$", TEXT, re.MULTILINE)
FINDS = {"doctor"}
"""Commands whose exit code is 1 when they find something, and here they do."""
KIND = re.compile(r'(?:Finding\(\s*|add\(\s*)"([a-z_]+)"')


def test_the_page_names_every_kind_of_finding() -> None:
    sources = [path.read_text("utf-8") for path in (ROOT / "tools" / "doctor").glob("*.py")]
    kinds = {kind for text in sources for kind in KIND.findall(text)}
    assert len(kinds) > 10
    table = TEXT.partition("| look | kinds | finds |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`([a-z]+_[a-z_]+)`", table)) - {"cluster_health"} == kinds


async def prepare(broker: SyncBroker) -> dict[str, str]:
    """Make what the page speaks of; return the ids in it."""

    async def check(_: object) -> TransactionState:
        return TransactionState.UNKNOWN

    async with (
        Client(broker.namesrv_addr) as client,
        Producer(client=client, group="payers", check=check, trace=True) as producer,
    ):
        for number in range(10):
            tag = "AB"[number % 2]
            sent = await producer.send(
                Message("orders", b"order-1", tags=tag, keys=f"order-{number}")
            )
        timed = await producer.send(Message("orders", b"later", delay=timedelta(hours=1)))
        transaction = producer.transaction(Message("orders", b"open"))
        await transaction.__aenter__()
        await transaction.unknown()
        async with Consumer(
            "orders", client=client, group="billing", start_from=StartFrom.FIRST
        ) as consumer:
            for _ in range(3):
                letter = await consumer.getone(timeout=20)
                await letter.dead_letter()
    return {
        "$OFFSET_ID": sent.offset_msg_id,
        "$MSG_ID": sent.msg_id,
        "$TIMED_ID": timed.msg_id,
        "$LETTER_ID": letter.msg_id,
    }


async def answering(namesrv: str) -> None:
    async with Consumer(
        "questions", namesrv_addr=namesrv, group="answerer", start_from=StartFrom.FIRST
    ) as consumer:

        async def answer(message: ReceivedMessage) -> None:
            await consumer.reply(message, b"fine")

        await consumer.run(answer)


def test_the_commands_of_the_page(
    shell: Shell, broker: SyncBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for topic in ("orders", "questions"):
        broker.create_topic(topic, queues=2)
    ids = asyncio.run(prepare(broker))
    ran: list[str] = []
    with beside(answering(broker.namesrv_addr)):
        for line in LINES:
            words = [ids.get(word, word) for word in shlex.split(line)]
            said = shell.any(*words)
            wanted = {0, 1} if words[0] in FINDS else {0}
            assert said.code in wanted, (line, said)
            ran.append(words[0])
    commands = "doctor group topic tail peek msg delay tx dlq request"
    assert set(ran) == set(commands.split())
    assert (tmp_path / "letters.ndjson").read_text().count("\n") == 3
