"""Our commands for messages, waiting ones and diagnosis against Apache's broker of 4.9."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from skylarkmq.client import (
    Admin,
    Client,
    Consumer,
    Message,
    Producer,
    ReceivedMessage,
    StartFrom,
    Tag,
    TransactionState,
)
from skylarkmq.tools.running import FAILED, NOT_FOUND, REFUSED
from tests.interop.apache_server import Apache5Broker, ApacheBroker
from tests.interop.conftest import Start
from tests.interop.servers import Broker
from tests.support.patience import until_sync
from tests.tools.command import Said
from tests.tools.live.shell import Shell, beside

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def apache(start_broker: Start) -> Broker:
    return start_broker(ApacheBroker)


@pytest.fixture
def shell(apache: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Shell]:
    monkeypatch.setenv("NAMESRV_ADDR", apache.namesrv)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield Shell()


def create(apache: Broker, topic: str) -> None:
    async def work() -> None:
        async with Admin(namesrv_addr=apache.namesrv) as admin:
            await admin.create_topic(topic, queues=1)

    asyncio.run(work())


def send_many(apache: Broker, topic: str, count: int) -> None:
    async def work() -> None:
        async with Producer(namesrv_addr=apache.namesrv) as producer:
            await producer.send_many([Message(topic, "m")] * count)

    asyncio.run(work())


def test_find_follow_copy(shell: Shell, apache: Broker) -> None:
    create(apache, "found")
    sent = [shell.send("found", f"m-{n}", "--tags", "AB"[n % 2], "--key", "k") for n in range(4)]
    offset_id, msg_id = sent[0]["offset_msg_id"], sent[0]["msg_id"]
    row = shell("msg", "get", offset_id).json
    assert (row["body"], row["msg_id"]) == ("m-0", msg_id)
    until_sync(lambda: shell.any("msg", "get", msg_id, "--topic", "found").code == 0)
    rows = shell("msg", "query", "found", "--key", "k").json
    assert [row["body"] for row in rows] == ["m-0", "m-1", "m-2", "m-3"]
    assert len(shell("msg", "query", "found", "--since", "1h", "--limit", "3").json) == 3
    assert shell("msg", "resend", offset_id, "--yes").json["copy_of"] == msg_id
    assert [row["body"] for row in shell("peek", "found", "--count", "2").json] == ["m-3", "m-0"]
    assert [row["body"] for row in shell("peek", "found", "--first", "--count", "1").json] == [
        "m-0"
    ]
    tailed = shell("tail", "found", "--last", "5", "--tags", "B", "--count", "2").lines
    assert [row["body"] for row in tailed] == ["m-1", "m-3"]
    tailed = shell("tail", "found", "--last", "5", "--sql", "TAGS = 'A'", "--count", "3").lines
    assert [row["body"] for row in tailed] == ["m-0", "m-2", "m-0"]
    assert shell("msg", "trace", msg_id, code=NOT_FOUND).err


def test_ask_and_trace(shell: Shell, apache: Broker) -> None:
    create(apache, "asked")

    async def answering() -> None:
        async with Consumer(
            "asked",
            namesrv_addr=apache.namesrv,
            group="answering",
            start_from=StartFrom.FIRST,
        ) as consumer:

            async def answer(message: ReceivedMessage) -> None:
                await consumer.reply(message, b"re: " + message.body)

            await consumer.run(answer)

    with beside(answering()):
        assert shell("request", "asked", "hi", "--timeout", "30").json["body"] == "re: hi"

    async def traced() -> str:
        async with Producer(namesrv_addr=apache.namesrv, trace=True) as producer:
            return (await producer.send(Message("asked", b"x"))).msg_id

    msg_id = asyncio.run(traced())
    until_sync(lambda: shell.any("msg", "trace", msg_id).code == 0)
    assert shell("msg", "trace", msg_id).json["sends"][0]["topic"] == "asked"


def test_what_waits_and_what_is_open(shell: Shell, apache: Broker) -> None:
    create(apache, "waiting")
    sent = shell.send("waiting", "x", "--delay-level", "2")  # two seconds
    rows = shell("delay", "list").json
    if rows:  # a slow machine may be too late to see it
        assert (rows[0]["msg_id"], rows[0]["level"]) == (sent["msg_id"], 2)
        shell("delay", "cancel", sent["msg_id"], "--yes", code=REFUSED)
    until_sync(lambda: shell("delay", "list").json == [])

    async def leave_open() -> str:
        async def check(_: object) -> TransactionState:
            return TransactionState.UNKNOWN

        async with Producer(namesrv_addr=apache.namesrv, group="payer", check=check) as producer:
            msg_id = ""
            for ends in (b"commit", b"nothing"):
                transaction = producer.transaction(Message("waiting", ends))
                await transaction.__aenter__()
                assert transaction.result is not None
                msg_id = transaction.result.msg_id
                if ends == b"commit":
                    await transaction.commit()
                else:
                    await transaction.unknown()
            return msg_id

    msg_id = asyncio.run(leave_open())
    until_sync(lambda: [row["msg_id"] for row in shell("tx", "list").json] == [msg_id])
    (row,) = shell("tx", "list").json
    assert (row["topic"], row["group"]) == ("waiting", "payer")


def test_a_time_of_its_own_on_rocketmq_5(
    start_broker: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = start_broker(Apache5Broker)
    monkeypatch.setenv("NAMESRV_ADDR", theirs.namesrv)
    create(theirs, "timed")

    async def send() -> list[str]:
        async with Producer(namesrv_addr=theirs.namesrv) as producer:
            results = [
                await producer.send(Message("timed", b"x", delay=timedelta(minutes=minutes)))
                for minutes in (20, 10)
            ]
            return [result.msg_id for result in results]

    later, sooner = asyncio.run(send())
    shell = Shell()

    def waiting() -> list[str]:
        return [row["msg_id"] for row in shell("delay", "list").json]

    until_sync(lambda: waiting() == [sooner, later])
    assert shell("delay", "cancel", sooner, "--yes").json["cancelled"] is True
    until_sync(lambda: waiting() == [later])


def test_dead_letters(shell: Shell, apache: Broker, tmp_path: Path) -> None:
    create(apache, "given-up")

    async def give_up() -> None:
        async with Client(apache.namesrv) as client, Producer(client=client) as producer:
            for number in range(3):
                await producer.send(Message("given-up", f"m-{number}".encode()))
            async with Consumer(
                "given-up", client=client, group="billing", start_from=StartFrom.FIRST
            ) as consumer:
                for _ in range(3):
                    await (await consumer.getone(timeout=60)).dead_letter()

    asyncio.run(give_up())
    until_sync(lambda: len(shell("dlq", "list", "billing").json) == 3)
    file = tmp_path / "letters"
    shell("dlq", "export", "billing", str(file))
    assert len(file.read_text().splitlines()) == 3
    assert shell("dlq", "redrive", "billing", "--dry-run").json["would_send"] == 3
    assert shell("dlq", "redrive", "billing", "--limit", "1", "--yes").json["sent"] == 1
    assert shell("dlq", "redrive", "billing", "--yes").json["sent"] == 2

    async def consumed() -> list[bytes]:
        async with Consumer("given-up", namesrv_addr=apache.namesrv, group="billing") as consumer:
            found: list[bytes] = []
            for _ in range(3):
                message = await consumer.getone(timeout=60)
                await message.ack()
                found.append(message.body)
            return sorted(found)

    assert asyncio.run(consumed()) == [b"m-0", b"m-1", b"m-2"]


def test_doctor_and_lag(shell: Shell, apache: Broker) -> None:
    create(apache, "measured")
    send_many(apache, "measured", 500)
    options = ("--from", "first", "--max", "500", "--group", "meter")
    assert len(shell("consume", "measured", *options).lines) == 500
    send_many(apache, "measured", 50)

    def looked() -> Said:
        looks = ("replicas", "addresses", "clocks", "disks", "registrations", "topics", "groups")
        return shell("doctor", *(w for look in looks for w in ("--only", look)), code=FAILED)

    found = {one["subject"]: one for one in looked().json["findings"]}
    assert found["meter"]["kind"] == "lag_without_members"
    assert {one["kind"] for one in found.values()} <= {"lag_without_members", "disk_nearly_full",
                                                        "slow_disk"}  # fmt: skip
    (seen,) = [row for row in shell("group", "lag").json if row["group"] == "meter"]
    assert seen["lag"] == 50


def test_a_setting_that_it_does_not_take_is_told(shell: Shell) -> None:
    """Its answer to an unknown key, or to a bad value, is that of success."""
    said = shell("config", "set", "defaultQueryMaxNum=33", "--all", "--yes").json
    assert [row["value"] for row in said] == ["33"]
    for setting in ("noSuchKey=1", "flushDiskType=NONSENSE"):
        said = shell("config", "set", setting, "--all", "--yes", code=REFUSED)
        assert [row["value"] == row["before"] for row in said.json] == [True]
        assert f"not changed: {setting.partition('=')[0]} of " in said.err


def test_doctor_finds_members_that_differ(shell: Shell, apache: Broker) -> None:
    """Apache's brokers do not tell it: the members are asked."""
    create(apache, "split")

    async def two_members() -> None:
        async with (
            Client(apache.namesrv, instance_name="one") as one,
            Client(apache.namesrv, instance_name="two") as two,
            Consumer("split", client=one, group="differing", selector=Tag("A")),
            Consumer("split", client=two, group="differing", selector=Tag("B")),
        ):
            await asyncio.Event().wait()

    def kinds() -> dict[str, str]:
        said = shell.any("doctor", "--only", "groups").json
        return {found["subject"]: found["kind"] for found in said["findings"]}

    with beside(two_members()):
        until_sync(lambda: kinds().get("differing") == "subscriptions_differ")
