"""`delay`, `tx` and `dlq`: what waits, what is open, what was given up."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path

import pytest

from skylarkmq.client import Message, Producer, TransactionState
from skylarkmq.client.errors import RequestTimeout
from skylarkmq.testing import SyncBroker
from skylarkmq.tools import dlq
from skylarkmq.tools.local.private_file import replaced_file
from skylarkmq.tools.running import NOT_FOUND, REFUSED, UNREACHABLE, USAGE
from tests.tools.live.shell import Shell

pytestmark = pytest.mark.timing


def deliver_later(broker: SyncBroker, topic: str, *delays: timedelta) -> list[str]:
    async def send() -> list[str]:
        async with Producer(namesrv_addr=broker.namesrv_addr) as producer:
            results = [
                await producer.send(Message(topic, b"x", delay=delay, keys="k")) for delay in delays
            ]
            return [result.msg_id for result in results]

    return asyncio.run(send())


def test_what_waits_is_listed_the_next_one_first(shell: Shell, broker: SyncBroker) -> None:
    broker.create_topic("later", queues=2)
    level = shell.send("later", "by level", "--delay-level", "18")  # two hours
    first, last = deliver_later(broker, "later", timedelta(hours=1), timedelta(hours=3))
    deliver_later(broker, "elsewhere", timedelta(hours=1))
    rows = shell("delay", "list", "--topic", "later").json
    assert [row["msg_id"] for row in rows] == [first, level["msg_id"], last]
    assert [row["level"] for row in rows] == [0, 18, 0]
    assert {row["topic"] for row in rows} == {"later"}
    assert 3000 < rows[0]["due_in_s"] < 4000
    assert len(shell("delay", "list").json) == 4
    assert len(shell("delay", "list", "--limit", "1").json) == 1
    table = shell("delay", "list", "-o", "table").out
    assert "18" in table and first in table
    # Taken back, it waits no more; what is delivered does not, either.
    said = shell("delay", "cancel", first, "--dry-run")
    assert "would take back" in said.err
    shell("delay", "cancel", first, code=USAGE)
    assert shell("delay", "cancel", first, "--yes").json["cancelled"] is True
    assert "does not wait" in shell("delay", "cancel", first, "--yes", code=NOT_FOUND).err
    said = shell("delay", "cancel", level["msg_id"], "--yes", code=REFUSED)
    assert "delay level 18" in said.err and "no way" in said.err
    assert [row["msg_id"] for row in shell("delay", "list", "--topic", "later").json] == [
        level["msg_id"],
        last,
    ]


def test_no_delays_no_transactions(shell: Shell, broker: SyncBroker) -> None:
    broker.create_topic("nothing")
    assert shell("delay", "list", "--topic", "nothing").json == []
    assert shell("tx", "list", "--topic", "nothing").json == []
    assert "no message waits" in shell("delay", "list", "--topic", "nothing", "-o", "table").err


def test_open_transactions(shell: Shell, broker: SyncBroker) -> None:
    broker.create_topic("paid", queues=1)

    async def leave_open() -> str:
        async def check(_: object) -> TransactionState:
            return TransactionState.UNKNOWN

        async with Producer(
            namesrv_addr=broker.namesrv_addr, group="payer", check=check
        ) as producer:
            for ends in ("commit", "rollback", "nothing"):
                transaction = producer.transaction(Message("paid", ends.encode(), keys=ends))
                await transaction.__aenter__()
                if ends == "commit":
                    await transaction.commit()
                elif ends == "rollback":
                    await transaction.rollback()
                else:
                    await transaction.unknown()
                assert transaction.result is not None
                msg_id = transaction.result.msg_id
            return msg_id

    msg_id = asyncio.run(leave_open())
    (row,) = shell("tx", "list").json
    assert (row["msg_id"], row["topic"], row["group"]) == (msg_id, "paid", "payer")
    assert (row["keys"], row["checks"]) == ("nothing", 0)
    assert row["age_s"] >= 0
    broker.create_topic("other")
    assert shell("tx", "list", "--topic", "other").json == []
    assert shell("tx", "list", "--older", "1h").json == []
    table = shell("tx", "list", "-o", "table").out
    assert "payer" in table and msg_id in table


@pytest.mark.parametrize("command", ["delay", "tx"])
def test_what_waits_for_a_topic_that_does_not_exist(shell: Shell, command: str) -> None:
    said = shell(command, "list", "--topic", "nosuch", code=NOT_FOUND)
    assert "nosuch" in said.err and not said.out


def test_a_file_stays_as_it_was_when_its_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "letters"
    path.write_text("before")
    with pytest.raises(RuntimeError), replaced_file(path) as file:
        file.write("half")
        file.flush()
        raise RuntimeError
    assert path.read_text() == "before" and [*tmp_path.iterdir()] == [path]
    with replaced_file(Path("/dev/null")) as file:
        file.write("to a device")


def test_an_export_that_gets_no_answer(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object) -> None:
        raise RequestTimeout("no answer in time")

    monkeypatch.setattr(dlq, "letters_of", ask)
    path = tmp_path / "letters.ndjson"
    path.write_text("before")
    said = shell("dlq", "export", "billing", str(path), code=UNREACHABLE)
    assert "error: no answer in time" in said.err and path.read_text() == "before"


def test_dead_letters_are_listed_shown_and_exported(
    shell: Shell, group: str, tmp_path: Path
) -> None:
    rows = shell("dlq", "list", group).json
    assert [row["body"] for row in rows] == ["m-0", "m-1", "m-2", "m-3"]
    assert {(row["topic"], row["origin_topic"]) for row in rows} == {(f"%DLQ%{group}", group)}
    assert len(shell("dlq", "list", group, "--limit", "2").json) == 2
    assert shell("dlq", "list", group, "--until", "1h").json == []
    assert shell("dlq", "show", group, rows[1]["offset_msg_id"]).json == rows[1]
    assert shell("dlq", "show", group, rows[1]["msg_id"]).json == rows[1]
    assert "m-1" in shell("dlq", "show", group, rows[1]["msg_id"], "-o", "table").out
    shell("dlq", "show", group, "nonsense", code=NOT_FOUND)
    file = tmp_path / "letters.ndjson"
    said = shell("dlq", "export", group, str(file))
    assert said.out == "" and "4 dead letters written" in said.err
    assert [json.loads(line) for line in file.read_text().splitlines()] == rows
    assert shell("dlq", "export", group).lines == rows
    before = file.read_text()
    shell("dlq", "export", group, str(file), "--until", "1h", code=NOT_FOUND)
    shell("dlq", "export", "none", str(file), code=NOT_FOUND)
    assert file.read_text() == before, "nothing was read, so it stays"
    assert [path.name for path in tmp_path.glob("*letters*")] == [file.name]
    shell("dlq", "export", group, str(file))
    assert file.stat().st_mode & 0o777 == 0o600
    for words in (("list",), ("export",), ("redrive", "--yes")):
        said = shell("dlq", words[0], "none", *words[1:], code=NOT_FOUND)
        assert "there is no group none" in said.err and not said.out
