"""The command `skylarkmq drain`, against the page of a broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from skylarkmq.client import Admin
from skylarkmq.tools.drain import drain
from tests.support.live_broker import live_broker, namesrv_of

Answer = tuple[int, object]


@asynccontextmanager
async def pages(
    answer: Callable[[str, int], Answer | None], *, fails: bool = False
) -> AsyncIterator[str]:
    """Serve what `answer` says to each request line and its number; None: cut the connection.

    Args:
        fails: also the first look, which only wants to know whether somebody is there.
    """
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        line = (await reader.read(4096)).split(b"\r\n")[0].decode("latin-1")  # TLS begins so, too
        is_look = line.startswith("GET")
        said = (503, b"serving") if is_look and not fails else answer(line, count)
        count += not is_look
        if said is not None:
            body = said[1] if isinstance(said[1], bytes) else json.dumps(said[1]).encode()
            head = f"HTTP/1.1 {said[0]} X\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def run(address: str, *words: str) -> Result:
    runner = CliRunner()
    return await asyncio.to_thread(runner.invoke, drain, ["--address", address, *words])


async def test_it_asks_until_the_broker_is_drained() -> None:
    lines: list[str] = []

    def answer(line: str, count: int) -> Answer:
        lines.append(line)
        if count < 3:
            wait = f"clients ask for routes anew: {30 - count} s"
            return 202, {"state": "producers", "waits_for": [wait]}
        return 200, {"state": "drained", "moved_topics": 7, "stays": ["x"], "stay_count": 1}

    async with pages(answer) as address:
        done = await run(address, "--refresh", "5", "--leaving", "broker-b")
    assert done.exit_code == 0, done.output
    assert "drained: 7 topics have moved; no other broker takes 1 topics" in done.output
    assert done.output.count("clients ask for routes anew") == 1, "told once, whatever the figures"
    assert lines[0].startswith("POST /drainz?refresh=5.0&leaving=broker-b&wait=")


async def test_a_replica_that_starts_anew_meanwhile() -> None:
    def answer(_: str, count: int) -> Answer | None:
        if count == 0:
            return 202, {"state": "producers"}
        if count in (1, 2):  # plain, and with TLS
            return None
        if count == 3:
            return 503, b"the broker has not started yet\n"
        return 200, {"state": "drained", "why": "another replica of the set leads, or will"}

    async with pages(answer) as address:
        done = await run(address)
    assert done.exit_code == 0, done.output
    assert "another replica of the set leads" in done.output


@pytest.mark.parametrize(
    ("said", "code", "text"),
    [
        ((409, {"why": "nowhere to go"}), 3, "nowhere to go"),
        ((403, {"why": "only this machine"}), 5, "only this machine"),
        ((404, b"no such page"), 5, "no such page"),
        ((202, {"waits_for": ["group g"]}), 1, "not drained within 0 s: group g"),
        (None, 4, "error: 127.0.0.1"),
    ],
)
async def test_its_exit_codes(said: Answer | None, code: int, text: str) -> None:
    async with pages(lambda *_: said, fails=said is None) as address:
        done = await run(address, "--wait", "0")
    assert (done.exit_code, text in done.output) == (code, True), done.output


async def test_a_real_broker_which_is_alone(tmp_path: Path) -> None:
    async with live_broker(tmp_path) as broker:
        async with Admin(namesrv_addr=namesrv_of(broker)) as admin:
            await admin.create_topic("orders", queues=1)
        assert broker.metrics_address is not None
        address = "{}:{}".format(*broker.metrics_address)
        done = await run(address)
        assert (done.exit_code, "nowhere to go" in done.output) == (3, True), done.output
        undone = await run(address, "--undo")
        assert (undone.exit_code, undone.output) == (0, "clients may come back\n")


@pytest.mark.parametrize("option", ["--token-file", "--tls-ca"])
async def test_from_another_machine_the_cluster_is_asked(option: str) -> None:
    refused = await run("192.0.2.1:5557", option, "x")
    assert refused.exit_code == 2 and "skylarkmq cluster drain BROKER" in refused.output
