"""The process's own limits."""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
from pathlib import Path

import pytest

from skylarkmq.broker import serving
from skylarkmq.broker.base.process import (
    FILES_RESERVED,
    GC_THRESHOLDS,
    collect_rarely,
    connections_possible,
)
from skylarkmq.broker.config.config_file import Sources, load_broker_config
from tests.support.raw_client import RawClient, send_fields

pytestmark = pytest.mark.timing

SEND = 310
FILE_LIMIT = 200


@pytest.mark.parametrize(
    ("wanted", "file_limit", "servers", "possible"),
    [
        (10_000, 1 << 20, 2, 10_000),
        (10_000, 10_000 + FILES_RESERVED, 1, 10_000),
        (10_000, 4096, 2, (4096 - FILES_RESERVED) // 2),
        (10_000, 256, 2, 32),
        (10_000, 256, 3, 21),
        (5, 256, 2, 5),
        (10, 2, 2, 1),
    ],
)
def test_room_for_files_is_kept(wanted: int, file_limit: int, servers: int, possible: int) -> None:
    assert connections_possible(wanted, file_limit, servers) == possible


@pytest.mark.parametrize("given", [False, True])
def test_a_small_limit_is_told_to_who_asked_for_more(
    given: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "raise_file_limit", lambda: 4096)
    settings = ("maxConnections=10000",) if given else ()
    loaded = load_broker_config(Sources(settings=settings, host_name="host"))
    found = serving._leave_room_for_files(loaded, 1)
    assert found.config.max_connections == 4096 - FILES_RESERVED
    assert [each.levelname for each in caplog.records] == ["WARNING"] * given


def test_the_collector_is_set_for_a_daemon() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    loaded = [[] for _ in range(1000)]
    collect_rarely()
    try:
        assert gc.get_threshold() == GC_THRESHOLDS
        assert gc.get_freeze_count() > frozen + len(loaded)
    finally:
        gc.set_threshold(*before)  # what the suite has loaded stays frozen


@pytest.mark.slow
async def test_more_connections_than_descriptors_do_not_end_the_store(tmp_path: Path) -> None:
    settings = {
        "listenPort": 0,
        "namesrvListenPort": 0,
        "metricsPromExporterPort": 0,
        "storePathRootDir": tmp_path / "store",
        "mappedFileSizeCommitLog": 8 << 20,
        "brokerName": "broker-a",
    }
    arguments = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "skylarkmq.cli", "serve", "--log-format", "json", *arguments,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILE_LIMIT, FILE_LIMIT)),
    )  # fmt: skip
    assert process.stderr is not None
    line = b""
    while b'"msg":"ready"' not in line:
        line = await process.stderr.readline()
        assert line, "the broker has ended"
    reading = asyncio.create_task(process.stderr.read())
    port = int(line.partition(b'"listenAddr":"127.0.0.1:')[2].partition(b'"')[0])
    try:
        client = await RawClient.open(("127.0.0.1", port))
        crowd: list[asyncio.StreamWriter] = []
        for _ in range(FILE_LIMIT + 100):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            crowd.append(writer)
        for number in range(3):  # each makes a topic, and so a file
            answer = await client.call(SEND, send_fields(f"T{number}"), b"body")
            assert answer.code == 0, answer.remark
        for writer in crowd:
            writer.close()
        await client.close()
    finally:
        process.terminate()
        assert await process.wait() == 0, (await reading).decode()
