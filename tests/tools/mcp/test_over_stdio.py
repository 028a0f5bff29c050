"""`skylarkmq mcp` as an agent runs it: the library's own client, over standard input."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client

from skylarkmq import __version__
from skylarkmq.testing import SyncBroker
from skylarkmq.tools.mcp import cli, requests
from skylarkmq.tools.mcp.reading import READING
from skylarkmq.tools.mcp.requests import Requests
from tests.tools.command import say

pytestmark = [pytest.mark.timing, pytest.mark.slow]
ASK: Any = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


def words(broker: SyncBroker, *more: str) -> list[str]:
    return ["-m", "skylarkmq", "mcp", "--namesrv", broker.namesrv_addr, *more]


async def test_the_librarys_own_client(broker: SyncBroker, tmp_path: Path) -> None:
    program = StdioServerParameters(
        command=sys.executable, args=words(broker, "--allow", "create_topic")
    )
    errors = tmp_path / "errors"
    with errors.open("w") as log:
        async with stdio_client(program, log) as streams, ClientSession(*streams) as session:
            begun = await session.initialize()
            assert begun.server_info.version == __version__
            assert broker.namesrv_addr in (begun.instructions or "")
            tools = (await session.list_tools()).tools
            assert [tool.name for tool in tools] == [*(t.name for t in READING), "create_topic"]
            hints = {tool.name: tool.annotations for tool in tools}
            assert all(
                hint is not None and hint.read_only_hint == (name != "create_topic")
                for name, hint in hints.items()
            )

            async def call(tool: str, **arguments: Any) -> tuple[bool, str]:
                said = await session.call_tool(tool, arguments)
                (content,) = said.content
                assert content.type == "text"
                return bool(said.is_error), content.text

            planned = json.loads((await call("create_topic", topic="piped"))[1])
            made = await call("create_topic", topic="piped", token=planned["token"])
            assert made == (
                False,
                '{"action": "created", "topic": "piped", "brokers": ["broker-a"]}',
            )
            assert json.loads((await call("topics"))[1]) == {"topics": ["piped"]}
            is_error, text = await call("topic", topic="absent")
            assert is_error and "no route to topic absent" in text
    lines = [json.loads(line) for line in errors.read_text().splitlines()]
    assert [line["result"] for line in lines] == ["planned", "done"]


@pytest.mark.parametrize("end", ["signal", "input"])
async def test_it_ends_when_it_is_told(broker: SyncBroker, end: str) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words(broker), stdin=pipe, stdout=pipe, stderr=pipe
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.write(b"rubbish\n" + json.dumps(ASK).encode() + b"\n")
    answer = json.loads(await process.stdout.readline())
    assert answer["id"] == 1 and "tools" in answer["result"]["capabilities"]
    if end == "signal":
        process.send_signal(signal.SIGTERM)
    else:
        process.stdin.close()
    assert await asyncio.wait_for(process.wait(), 20) == 0
    assert "Traceback" not in (await process.stderr.read()).decode()


@pytest.fixture
def typed() -> Iterator[int]:
    """Stands in the place of standard input: what is written here is read there."""
    reading, writing = os.pipe()
    before = os.dup(0)
    os.dup2(reading, 0)
    os.close(reading)
    yield writing
    os.dup2(before, 0)
    os.close(before)


async def test_a_parent_that_sends_too_much_waits(
    typed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "TASKS_MAX", 4)
    lines = Requests()
    os.write(typed, b"first\nsecond\n")
    assert await anext(lines) == "first\n"
    busy = [asyncio.create_task(asyncio.Event().wait()) for _ in range(4)]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(lines), 10 * requests.PAUSE_S)
    for one in busy:
        one.cancel()
    assert await anext(lines) == "second\n"
    os.close(typed)
    assert [line async for line in lines] == []


def test_wrong_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert say(["mcp", "--allow", "delete_topic"]).code == 2
    monkeypatch.setitem(sys.modules, "skylarkmq.tools.mcp.server", None)
    said = say(["mcp"])
    assert said.code == 1 and cli.MISSING in said.err
