"""A whole broker process on a disk that fails: what it says, and its exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skylarkmq.protocol.codes import ResponseCode
from tests.support.patience import LIMIT_S
from tests.support.raw_client import RawClient, send_fields

SEND = 310
EX_IOERR = 74
LOG_FILE_SIZE = 2 << 20
# The command, over a disk whose syncs fail once the file `broken` exists; it then ends at once.
# Only those of the log, which is told by its size: the tables of a new broker are still written.
COMMAND = f"""
import os, sys
sync = os.fdatasync
def fdatasync(fd):
    if os.fstat(fd).st_size == {LOG_FILE_SIZE} and os.path.exists(sys.argv[1]):
        raise OSError(5, "Input/output error")
    sync(fd)
os.fdatasync = fdatasync
from skylarkmq.broker import controller
from skylarkmq.broker.cli import serve
controller.FAILED_READS_S = 0.0
serve(sys.argv[2:])
"""


class Process:
    """A broker process, its listening address, and what it says after its ready line."""

    def __init__(self, child: subprocess.Popen[str], broken: Path, address: tuple[str, int]):
        self.child = child
        self.broken = broken
        self.address = address

    def ended(self) -> tuple[int, list[dict[str, str]]]:
        """Its exit code and its last log lines."""
        _, err = self.child.communicate(timeout=LIMIT_S)
        return self.child.returncode, [json.loads(line) for line in err.splitlines()]


@contextmanager
def broker_process(tmp_path: Path, flush: str) -> Iterator[Process]:
    settings = {
        "storePathRootDir": tmp_path / "store",
        "flushDiskType": flush,
        "mappedFileSizeCommitLog": LOG_FILE_SIZE,
        "maxMessageSize": 1 << 20,
        "flushIntervalCommitLog": 3_600_000,
        **dict.fromkeys(("listenPort", "namesrvListenPort", "metricsPromExporterPort"), 0),
    }
    arguments = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    broken = tmp_path / "broken"
    child = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(broken), *arguments, "--log-format", "json"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stderr is not None
        for line in child.stderr:
            fields = json.loads(line)
            if fields.get("event") == "ready":
                host, _, port = fields["listenAddr"].rpartition(":")
                yield Process(child, broken, (host, int(port)))
                break
    finally:
        child.kill()
        child.communicate(timeout=LIMIT_S)


async def test_a_failed_sync_ends_the_process_for_its_supervisor(tmp_path: Path) -> None:
    with broker_process(tmp_path, "SYNC_FLUSH") as process:
        process.broken.touch()
        client = await RawClient.open(process.address)
        answer = await client.call(SEND, send_fields("TBW102"), b"x")
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        code, lines = process.ended()
        await client.close()
    assert code == EX_IOERR
    assert (tmp_path / "store" / "abort").exists()
    failed = next(line for line in lines if "the store has failed" in line["msg"])
    assert failed["level"] == "CRITICAL"
    assert "Input/output error (sync)" in failed["msg"]
    assert "/commitlog/0000" in failed["msg"], "it names the file"
    assert not any("Traceback" in line.get("err", "") for line in lines)
    assert len(lines) <= 6, "the failure is said once"


async def test_a_sync_that_fails_at_the_stop_is_told_by_the_exit_code(tmp_path: Path) -> None:
    with broker_process(tmp_path, "ASYNC_FLUSH") as process:
        client = await RawClient.open(process.address)
        assert (await client.call(SEND, send_fields("TBW102"), b"x")).code == 0
        await client.close()
        process.broken.touch()
        process.child.send_signal(signal.SIGTERM)
        code, lines = process.ended()
    assert code == EX_IOERR
    assert (tmp_path / "store" / "abort").exists()
    assert lines[-1]["msg"].endswith("the next start recovers it")


async def test_the_same_stop_on_a_sound_disk_is_clean(tmp_path: Path) -> None:
    with broker_process(tmp_path, "ASYNC_FLUSH") as process:
        client = await RawClient.open(process.address)
        assert (await client.call(SEND, send_fields("TBW102"), b"x")).code == 0
        await client.close()
        process.child.send_signal(signal.SIGTERM)
        code, lines = process.ended()
    assert code == 0
    assert not (tmp_path / "store" / "abort").exists()
    assert lines[-1]["msg"] == "the broker has stopped"
