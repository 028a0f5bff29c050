"""What the start prints for a first message works as it is printed."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patience import LIMIT_S
from tests.tools.command import say

pytestmark = pytest.mark.timing

ROOT = Path(__file__).parents[1]
SETTINGS = (
    "listenPort=0",
    "namesrvListenPort=0",
    "metricsPromExporterPort=0",
    "mappedFileSizeCommitLog=8388608",
    "maxMessageSize=1048576",
)
MARK = "Send a first message"


@pytest.fixture
def printed(tmp_path: Path) -> Iterator[list[str]]:
    """The indented lines behind the mark, of a broker that runs: commands, then the snippet."""
    command = [sys.executable, "-m", "skylarkmq.cli", "serve", "--log-format", "text"]
    for setting in (f"storePathRootDir={tmp_path / 'store'}", *SETTINGS):
        command += ["--set", setting]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SKYLARKMQ_")}
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    try:
        assert child.stderr is not None
        before: list[str] = []
        for line in child.stderr:
            before.append(line)
            if line.startswith(MARK):
                break
        else:
            pytest.fail("".join(before))
        lines = [child.stderr.readline() for _ in range(6)]
        yield [line.strip() for line in lines if line.startswith("  ")]
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=LIMIT_S)
        assert child.returncode == 0
    finally:
        child.kill()
        child.wait(LIMIT_S)


def words_of(line: str) -> list[str]:
    """Return the words of a command behind the program's name, or behind `python -m` and it."""
    words = shlex.split(line)
    return words[words.index("send" if "send" in words else "consume") :]


def _run(command: list[str] | str) -> str:
    run = subprocess.run(
        command,
        shell=isinstance(command, str),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=LIMIT_S,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_what_is_printed_works(printed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """In this process: the broker alone is one of its own."""
    snippet = printed[-3:]
    assert snippet[0].startswith("import asyncio")
    exec("\n".join(snippet), {})
    assert "SEND_OK" in capsys.readouterr().out
    send, consume = (words_of(line) for line in printed[:2])
    assert say(send).code == 0
    consumed = say(consume)
    assert (consumed.code, "hello" in consumed.out) == (0, True)


@pytest.mark.slow
def test_the_python_lines(printed: list[str]) -> None:
    snippet = printed[-3:]
    assert "SEND_OK" in _run([sys.executable, "-c", "\n".join(snippet)])


@pytest.mark.slow
def test_the_two_commands(printed: list[str]) -> None:
    pytest.importorskip("skylarkmq.tools.messages")
    send, consume = printed[:2]
    _run(send)
    assert "hello" in _run(consume)
