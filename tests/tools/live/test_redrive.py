"""`dlq redrive`: each letter is sent once, whatever ends a run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import Message, StartFrom
from skylarkmq.client.admin import CopyPlace
from skylarkmq.client.sync import Admin, Consumer, Producer
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.headers.send import UNCONFIRMED_FIELD
from skylarkmq.protocol.message import MessageQueue
from skylarkmq.protocol.remoting_command import RemotingCommand
from skylarkmq.remoting.client import RemotingClient
from skylarkmq.testing import SyncBroker
from skylarkmq.tools.dlq import OUTCOMES
from skylarkmq.tools.local.ledger import Ledger, LetterKey
from skylarkmq.tools.running import FAILED, SIGNALLED, USAGE
from tests.tools.live.conftest import give_up
from tests.tools.live.shell import Shell

pytestmark = pytest.mark.timing
BODIES = ["m-0", "m-1", "m-2", "m-3"]
SENT_ALL = {"sent": 4}


class Killed(BaseException):
    """Stands for the end of the process: no code of ours handles it."""


def counts(said: dict[str, Any]) -> dict[str, int]:
    """What came of the letters, without zeros."""
    return {name: said[name] for name in OUTCOMES if said[name]}


def stored(broker: SyncBroker, topic: str) -> list[str]:
    """The bodies in a topic, in the order of its one queue."""
    return [message.body.decode() for message in broker.messages(topic)]


def consumed(broker: SyncBroker, name: str, count: int) -> list[str]:
    """What the group gets next."""
    with (
        broker.client() as client,
        Consumer(name, client=client, group=name, start_from=StartFrom.FIRST) as member,
    ):
        found: list[str] = []
        for _ in range(count):
            message = member.getone(timeout=20)
            message.ack()
            found.append(message.body.decode())
        return found


class Steps:
    """Counts the steps of a command, and ends it at one: around a call, at a line, at a sync."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.kill_at = -1
        call, write = RemotingClient.call, Ledger._write

        async def calling(*args: Any, **named: Any) -> RemotingCommand:
            self._step()
            answer = await call(*args, **named)
            self._step()
            return answer

        def writing(*args: Any) -> None:
            self._step()
            write(*args)
            self._step()

        def syncing(_: int) -> None:
            self._step()

        monkeypatch.setattr(RemotingClient, "call", calling)
        monkeypatch.setattr(Ledger, "_write", writing)
        monkeypatch.setattr(os, "fsync", syncing)

    def _step(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # the broker's
        self.count += 1
        if self.count == self.kill_at:
            raise Killed

    def of(self, work: Callable[[], object], kill_at: int = -1) -> int:
        """Do the work until that step; return how many steps it took."""
        self.count, self.kill_at = 0, kill_at
        with contextlib.suppress(Killed):
            work()
        return self.count


@pytest.mark.parametrize("to", ["group", "topic"])
def test_killed_at_any_step_each_letter_is_sent_once(
    shell: Shell, broker: SyncBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    group = give_up(broker, f"killed_{to}", 2)
    target = f"%RETRY%{group}" if to == "group" else group
    steps, runs = Steps(monkeypatch), 0

    def run() -> None:
        ledger = str(tmp_path / f"ledger{runs}")
        shell("dlq", "redrive", group, "--to", to, "--yes", "--ledger", ledger)

    total = steps.of(run)
    assert total > 30
    for at in range(1, total + 1):
        before, runs = len(stored(broker, target)), runs + 1
        steps.of(run, at)
        steps.of(run, 1 + at * 7 % total)  # the second one is killed, too
        steps.of(run)
        assert sorted(stored(broker, target)[before:]) == BODIES[:2], at


def test_a_redrive_sends_each_letter_once(
    shell: Shell, group: str, broker: SyncBroker, tmp_path: Path
) -> None:
    said = shell("dlq", "redrive", group, "--dry-run").json
    assert counts(said) == {"would_send": 4} and said["dry_run"]
    assert {one["status"] for one in said["outcomes"]} == {"would_send"}
    assert {one["target"] for one in said["outcomes"]} == {f"%RETRY%{group}"}
    assert {"offset_msg_id", "broker", "queue_id", "queue_offset"} <= said["outcomes"][0].keys()
    assert not Path(said["ledger"]).exists()
    shell("dlq", "redrive", group, code=USAGE)
    asked = shell("dlq", "redrive", group, "--limit", "1", code=USAGE).err
    assert "send 1 dead letter of" in asked
    said = shell("dlq", "redrive", group, "--limit", "1", "--yes").json
    assert counts(said) == {"sent": 1} and said["outcomes"] == []
    assert Path(said["ledger"]).is_relative_to(tmp_path)
    said = shell("dlq", "redrive", group, "--yes", "--rate", "100000").json
    assert counts(said) == {"sent": 3, "sent_before": 1}
    assert consumed(broker, group, 4) == BODIES
    said = shell("dlq", "redrive", group, "--yes")
    assert counts(said.json) == {"sent_before": 4}
    assert "no dead letter to send; sent before: 4. --again sends those, too" in said.err
    assert counts(shell("dlq", "redrive", group, "--yes", "--again").json) == SENT_ALL
    assert len(shell("dlq", "list", group).json) == 4, "the letters stay"


def test_a_ledger_that_is_cut_anywhere(
    shell: Shell, group: str, broker: SyncBroker, tmp_path: Path
) -> None:
    path = tmp_path / "ledger"
    words = ("dlq", "redrive", group, "--yes", "--ledger", str(path))
    assert counts(shell(*words).json) == SENT_ALL
    data = path.read_bytes()
    last = data.rindex(b'{"letter"')  # all copies are there, and the last one's intent is
    for size in range(last, len(data), 9):
        path.write_bytes(data[:size])
        dry = shell(*words[:3], "--dry-run", "--ledger", str(path)).json
        assert counts(dry) == {"sent_before": 3, "found": 1} and path.read_bytes() == data[:size]
        assert counts(shell(*words).json) == {"sent_before": 3, "found": 1}
        assert counts(shell(*words).json) == {"sent_before": 4}
    path.write_bytes(data[:20])  # of the first line
    assert counts(shell(*words).json) == SENT_ALL
    assert sorted(stored(broker, f"%RETRY%{group}")) == sorted(2 * BODIES)


@pytest.mark.parametrize("line", ["{}", "nonsense", '{"letter": [1], "state": "sent"}', "[]"])
def test_a_damaged_line_is_told(shell: Shell, group: str, tmp_path: Path, line: str) -> None:
    path = tmp_path / "ledger"
    head = json.dumps({"group": group, "to": "group", "namesrv": "x"})
    path.write_text(f"{head}\n{line}\n")
    said = shell("dlq", "redrive", group, "--yes", "--ledger", str(path), code=1)
    assert f"line 2 of the ledger {path} is damaged" in said.err


def test_an_interrupted_redrive_tells_what_it_sent(
    shell: Shell, group: str, broker: SyncBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = Ledger.note

    def noting(self: Ledger, *args: Any) -> None:
        note(self, *args)
        if len(self.done) == 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Ledger, "note", noting)
    said = shell("dlq", "redrive", group, "--yes", code=SIGNALLED + signal.SIGINT)
    assert said.json["sent"] == 2
    monkeypatch.undo()


@pytest.mark.parametrize("is_stored", [True, False])
def test_no_answer_is_unknown_and_the_next_run_looks(
    shell: Shell, group: str, broker: SyncBroker, is_stored: bool
) -> None:
    lose = broker.faults.drop_reply if is_stored else broker.faults.drop_request
    lose(RequestCode.SEND_MESSAGE, 2)
    said = shell("dlq", "redrive", group, "--yes", "--timeout", "1", code=FAILED)
    assert counts(said.json) == {"sent": 2, "unknown": 2}
    assert "2 letters are unknown" in said.err and "--resend-unknown" in said.err
    again = shell("dlq", "redrive", group, "--yes").json
    assert counts(again) == {"sent_before": 2, "found" if is_stored else "sent": 2}
    assert sorted(stored(broker, f"%RETRY%{group}")) == BODIES


def test_what_is_not_confirmed_is_unknown(
    shell: Shell, group: str, broker: SyncBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, refusals = RemotingClient.call, [
        RemotingCommand(ResponseCode.SERVICE_NOT_AVAILABLE, ext_fields={UNCONFIRMED_FIELD: "true"}),
        RemotingCommand(ResponseCode.SYSTEM_ERROR, remark="oops"),
    ]  # fmt: skip

    async def stored_and_refused(
        self: RemotingClient, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        answer = await call(self, address, command, timeout_s)
        is_send = command.code == RequestCode.SEND_MESSAGE_V2
        return refusals.pop() if is_send and refusals else answer

    monkeypatch.setattr(RemotingClient, "call", stored_and_refused)
    said = shell("dlq", "redrive", group, "--yes", code=FAILED).json
    assert counts(said) == {"sent": 2, "unknown": 2}
    assert counts(shell("dlq", "redrive", group, "--yes").json) == {"sent_before": 2, "found": 2}
    assert stored(broker, f"%RETRY%{group}") == BODIES


def test_a_refusal_is_failed_and_the_next_run_sends(
    shell: Shell, group: str, broker: SyncBroker
) -> None:
    broker.faults.fail(RequestCode.SEND_MESSAGE, 1, ResponseCode.SERVICE_NOT_AVAILABLE, "full")
    said = shell("dlq", "redrive", group, "--yes", code=FAILED).json
    assert counts(said) == {"sent": 3, "failed": 1}
    assert "full" in said["outcomes"][0]["error"]
    assert counts(shell("dlq", "redrive", group, "--yes").json) == {"sent": 1, "sent_before": 3}


def test_without_a_topic_letters_fail_and_the_next_run_sends(
    shell: Shell, group: str, broker: SyncBroker
) -> None:
    with broker.client() as client, Admin(client=client) as admin:
        admin.delete_topic(group)
    said = shell("dlq", "redrive", group, "--to", "topic", "--yes", code=FAILED).json
    assert counts(said) == {"failed": 4}
    assert "no queue to write to" in said["outcomes"][0]["error"]
    broker.create_topic(group, queues=1)
    assert counts(shell("dlq", "redrive", group, "--to", "topic", "--yes").json) == SENT_ALL


def test_what_cannot_be_told_stays_unknown(shell: Shell, group: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    first = shell("dlq", "list", group).json[0]
    letter = LetterKey(first["broker"], 0, first["queue_offset"], first["offset_msg_id"])
    with Ledger.open(path, group, "group", "", write=True) as ledger:
        queue = MessageQueue(f"%RETRY%{group}", first["broker"], 0)
        ledger.note(letter, "sending", CopyPlace(queue, 1_000_000))
    words = ("dlq", "redrive", group, "--yes", "--ledger", str(path))
    said = shell(*words, code=FAILED).json
    assert counts(said) == {"sent": 3, "unknown": 1}
    assert "has no offset 1000000 any more" in said["outcomes"][0]["error"]
    assert counts(shell(*words, "--resend-unknown").json) == {"sent": 1, "sent_before": 3}


def test_two_letters_of_one_id_have_a_copy_each(shell: Shell, broker: SyncBroker) -> None:
    """As when a producer that got no answer sent it again, and both were given up."""
    broker.create_topic("twice", queues=1)
    with broker.client() as client, Producer(client=client) as producer:
        for body in (b"one", b"other"):
            producer.send(Message("twice", body, unique_key="SAME"))
        with Consumer("twice", client=client, group="tw", start_from=StartFrom.FIRST) as member:
            for _ in range(2):
                member.getone(timeout=20).dead_letter()
    broker.faults.drop_request(RequestCode.SEND_MESSAGE, 1)
    said = shell("dlq", "redrive", "tw", "--yes", "--timeout", "1", code=FAILED).json
    assert counts(said) == {"sent": 1, "unknown": 1}
    assert counts(shell("dlq", "redrive", "tw", "--yes").json) == {"sent": 1, "sent_before": 1}
    assert sorted(stored(broker, "%RETRY%tw")) == ["one", "other"]


def test_a_ledger_belongs_to_one_redrive(shell: Shell, group: str, tmp_path: Path) -> None:
    ledger = tmp_path / "mine"
    shell("dlq", "redrive", group, "--yes", "--ledger", str(ledger))
    said = shell("dlq", "redrive", "other", "--yes", "--ledger", str(ledger), code=1)
    assert "ledger of another redrive" in said.err
    with Ledger.open(ledger, group, "group", "", write=True):
        said = shell("dlq", "redrive", group, "--yes", "--ledger", str(ledger), code=1)
    assert "another redrive" in said.err and "under way" in said.err
    for text in ("no ledger\n", "no ledger", "[]\n"):
        ledger.write_text(text)
        said = shell("dlq", "redrive", group, "--yes", "--ledger", str(ledger), code=1)
        assert "is no ledger" in said.err and ledger.read_text() == text


def test_the_former_name_says_the_new_one(shell: Shell) -> None:
    said = shell("dlq", "replay", "billing", "--rate", "5", "--yes", code=USAGE)
    assert "`skylarkmq dlq redrive`" in said.err and said.err.count("\n") == 1
    assert "replay" not in shell("dlq", "--help").out
