"""A command that a signal, a bad line or a full disk ends: exit code, and what it had done."""

from __future__ import annotations

import asyncio
import errno
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.testing import SyncBroker
from skylarkmq.tools import messages
from skylarkmq.tools.output import Output
from skylarkmq.tools.running import FAILED, SIGNALLED, USAGE, run
from tests.tools.live.shell import Shell

pytestmark = pytest.mark.timing
CTRL_C = SIGNALLED + signal.SIGINT


def interrupting(call: Callable[..., Any], at: int) -> Callable[..., Any]:
    """Make a function that does the same, and whose n-th call interrupts the command."""
    count = 0

    def calling(*args: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        result = call(*args, **named)
        if count == at:
            signal.raise_signal(signal.SIGINT)
        return result

    return calling


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("open_ended", [False, True])
def test_only_what_has_no_end_ends_well_by_a_signal(
    number: signal.Signals, open_ended: bool
) -> None:
    async def work() -> None:
        signal.raise_signal(number)
        await asyncio.Event().wait()

    with pytest.raises(SystemExit) as ended:
        run(work, open_ended=open_ended)
    assert ended.value.code == (0 if open_ended else 128 + number)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("cluster", "health", "--exit-when-ready"), CTRL_C),
        (("cluster", "health", "--watch", "--times", "9"), CTRL_C),
        (("cluster", "health", "--watch"), 0),
    ],
)
def test_a_watch_that_waits_for_something(
    words: tuple[str, ...], code: int, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Output, "rows", interrupting(Output.rows, 1))
    said = shell(*words, "--namesrv", "127.0.0.1:1", "-o", "json", code=code)
    assert "name_server_unreachable" in said.out


def lines_of(*lines: bytes) -> Callable[[], AsyncGenerator[bytes]]:
    """Make a standard input that has these lines, and does not end."""

    async def read() -> AsyncGenerator[bytes]:
        for line in lines:
            yield line
        await asyncio.Event().wait()

    return read


def test_each_result_is_printed_as_it_comes(
    shell: Shell, broker: SyncBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("piped", queues=1)
    monkeypatch.setattr(messages, "_input_lines", lines_of(b"one"))
    monkeypatch.setattr(messages, "_print_result", interrupting(messages._print_result, 1))
    said = shell("send", "piped", code=CTRL_C)
    assert [row["status"] for row in said.lines] == ["SEND_OK"]


def test_an_interrupted_send_prints_what_was_under_way(
    shell: Shell, broker: SyncBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("cut_off", queues=1)

    async def read() -> AsyncGenerator[bytes]:
        for number in range(100):
            yield f"{number}".encode()
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(messages, "_input_lines", read)
    assert len(shell("send", "cut_off", code=CTRL_C).lines) == 100


def test_a_bad_line_does_not_swallow_the_results_before_it(
    shell: Shell, broker: SyncBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("bad_line", queues=1)
    too_large = b"x" * (5 << 20)
    lines = [*(f"{number}".encode() for number in range(300)), too_large, b"after"]
    monkeypatch.setattr(messages, "_input_lines", lines_of(*lines))
    said = shell("send", "bad_line", code=USAGE)
    assert len(said.lines) == 300
    assert "line 301: " in said.err and "error: " in said.err


def test_an_input_that_cannot_be_read_is_told(shell: Shell) -> None:
    said = shell("send", "unread", stdin="a file without a descriptor", code=USAGE)
    assert said.err.startswith("error: standard input cannot be read: ")


def test_a_full_disk_is_told(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def print_row(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Output, "rows", print_row)
    assert shell("topic", "list", code=FAILED).err == "error: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has it")
def test_a_full_disk_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        said = subprocess.run(
            [sys.executable, "-m", "skylarkmq", "--help"], stdout=full, stderr=subprocess.PIPE
        )
    assert (said.returncode, said.stderr) == (1, b"error: No space left on device\n")
