"""`skylarkmq send` and `skylarkmq consume` as a shell sees them: output, exit codes, signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from skylarkmq.client import Client, Message, Producer
from skylarkmq.client.errors import (
    BrokerError,
    ConnectionFailed,
    IllegalState,
    RequestTimeout,
    RocketMQError,
    RouteNotFound,
    broker_error,
)
from skylarkmq.testing.threaded import SyncBroker
from skylarkmq.tools import running
from tests.support.amounts import slow
from tests.support.patience import LIMIT_S
from tests.tools.command import say

pytestmark = pytest.mark.timing

COMMAND = (sys.executable, "-m", "skylarkmq.cli")


class Shell:
    """Runs the command against one broker."""

    def __init__(self, namesrv: str, *, is_process: bool = True) -> None:
        self.namesrv = namesrv
        self._is_process = is_process
        self._environment = {
            **os.environ, "NAMESRV_ADDR": self.namesrv, "PYTHONIOENCODING": "utf-8"
        }  # fmt: skip

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *COMMAND,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment,
        )

    def run(
        self, *arguments: str, stdin: bytes = b""
    ) -> tuple[int | None, list[dict[str, Any]], str]:
        """Return the exit code, the JSON lines of the output, and what was said beside."""
        if not self._is_process:
            said = say(arguments, stdin, {"NAMESRV_ADDR": self.namesrv})
            return said.code, said.lines, said.err
        ended = subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            capture_output=True,
            timeout=LIMIT_S,
            env=self._environment,
            check=False,
        )
        lines = [json.loads(line) for line in ended.stdout.splitlines()]
        return ended.returncode, lines, ended.stderr.decode()


@pytest.fixture(params=[False, slow(True)], ids=["here", "process"])
def shell(request: pytest.FixtureRequest, skylarkmq_broker_sync: SyncBroker) -> Shell:
    """A process of its own for each command proves no more, but for signals and pipes."""
    return Shell(skylarkmq_broker_sync.namesrv_addr, is_process=request.param)


@pytest.fixture
def processes(skylarkmq_broker_sync: SyncBroker) -> Shell:
    return Shell(skylarkmq_broker_sync.namesrv_addr)


def test_what_is_sent_is_consumed(shell: Shell) -> None:
    code, (sent,), _ = shell.run(
        "send", "orders", "Grüße", "--tags", "A", "--key", "k1", "--key", "k2",
        "--property", "color=blue=green",
    )  # fmt: skip
    assert code == 0
    assert sent["status"] == "SEND_OK"
    code, (got,), _ = shell.run(
        "consume", "orders", "--group", "g", "--from", "first", "--max", "1"
    )
    assert code == 0
    assert (got["body"], got["tags"], got["keys"]) == ("Grüße", "A", "k1 k2")
    assert got["properties"]["color"] == "blue=green"
    for name in ("msg_id", "topic", "broker", "queue_id", "queue_offset"):
        assert got[name] == sent[name]
    code, messages, said = shell.run(
        "consume", "orders", "--group", "g", "--max", "1", "--timeout", "0.5"
    )
    assert (code, messages) == (running.FAILED, []), "acknowledged, so it does not come again"
    assert said == "error: no message within 0.5 s\n"
    shell.run("send", "orders", "second")
    code, messages, said = shell.run(
        "consume", "orders", "--group", "g", "--max", "2", "--timeout", "0.5"
    )
    assert (code, len(messages)) == (running.FAILED, 1)
    assert said == "error: no further message within 0.5 s, 1 of 2 came\n"


def test_standard_input_is_one_message_a_line_in_order(processes: Shell) -> None:
    lines = [f"line {number} ü" for number in range(500)]
    text = "\n".join(lines).encode() + b"\r\n" + b"\xff\xfe\nlast without end"
    code, sent, _ = processes.run("send", "orders", "-", stdin=text)
    assert code == 0
    assert len(sent) == 502
    code, got, _ = processes.run(
        "consume", "orders", "--group", "g", "--from", "first", "--max", "502"
    )
    assert code == 0
    by_id = {message["msg_id"]: message for message in got}
    ordered = [by_id[result["msg_id"]] for result in sent]
    assert [message["body"] for message in ordered] == [*lines, "//4=", "last without end"]
    assert ordered[500]["body_encoding"] == "base64"


def test_tags_select(shell: Shell) -> None:
    for tag in "ABC":
        shell.run("send", "orders", tag, "--tags", tag)
    _, got, _ = shell.run(
        "consume", "orders", "--group", "g", "--from", "first", "--tags", "A || C", "--max", "2"
    )
    assert sorted(message["body"] for message in got) == ["A", "C"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_end_consume_cleanly_and_commit(
    processes: Shell, number: signal.Signals
) -> None:
    async with Client(processes.namesrv) as client, Producer(client=client) as producer:
        await producer.send(Message("orders", b"first"))
        process = await processes.start("consume", "orders", "--group", "g", "--from", "first")
        assert process.stdout is not None
        async with asyncio.timeout(LIMIT_S):
            assert json.loads(await process.stdout.readline())["body"] == "first"
            process.send_signal(number)
            _, err = await process.communicate()
        assert process.returncode == 0
        assert b"Traceback" not in err
        await producer.send(Message("orders", b"second"))
    _, got, _ = processes.run("consume", "orders", "--group", "g", "--max", "1")
    assert got[0]["body"] == "second"


async def test_a_reader_that_leaves_is_no_error(processes: Shell) -> None:
    processes.run("send", "orders", stdin=b"x\n" * 3000)
    process = await processes.start("consume", "orders", "--group", "g", "--from", "first")
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        await process.stdout.readline()
        process.stdout._transport.close()  # type: ignore[attr-defined]
        assert process.stderr is not None
        err = await process.stderr.read()
        await process.wait()
    assert process.returncode == 0
    assert b"Traceback" not in err


def test_exit_codes(shell: Shell) -> None:
    def outcome(*arguments: str) -> tuple[int | None, str]:
        code, messages, said = shell.run(*arguments)
        assert messages == []
        assert "Traceback" not in said
        return code, said

    code, said = outcome("consume", "absent", "--group", "g", "--timeout", "0.5")
    assert code == running.NOT_FOUND
    assert "absent" in said
    nobody = ("--namesrv", "127.0.0.1:1")
    assert (outcome("send", "orders", "x", *nobody))[0] == running.UNREACHABLE
    assert (outcome("consume", "orders", "--group", "g", *nobody))[0] == (running.UNREACHABLE)
    for wrong in (
        ("send", "no topic", "x"),
        ("send", "orders", "x", "--property", "novalue"),
        ("send", "orders", "x", "--property", "TAGS=x"),
        ("send", "orders", "x", "--delay-level", "19"),
        ("send", "orders", "x", "--input", "json"),
        ("send", "orders", '{"body": "x"}', "--input", "json", "--tags", "A"),
        ("consume", "orders"),
        ("consume", "orders", "--group", "a b"),
        ("send", "SCHEDULE_TOPIC_XXXX", "x"),
    ):
        code, said = outcome(*wrong)
        assert code == running.USAGE, said


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RouteNotFound("t", "auto_create_off", ""), 3),
        (RouteNotFound("t", "topic_missing", ""), 3),
        (RouteNotFound("t", "no_broker", ""), 4),
        (RouteNotFound("t", "address_unreachable", ""), 4),
        (broker_error(17, "", "a:1"), 3),
        (broker_error(16, "", "a:1"), 5),
        (BrokerError(999, "", "a:1"), 5),
        (ConnectionFailed("a:1", "down"), 4),
        (RequestTimeout("late"), 4),
        (IllegalState("no"), 1),
    ],
)
def test_each_error_has_its_exit_code(error: RocketMQError, code: int) -> None:
    assert running.exit_code(error) == code
