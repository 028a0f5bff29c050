"""Offsets of broadcasting consumers in a file: read back, replaced whole, of one consumer only."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import threading
from pathlib import Path

import pytest

from skylarkmq.client.consumer.last_read import ReadMessage
from skylarkmq.client.consumer.local_offsets import LocalOffsets, offsets_path
from skylarkmq.client.errors import IllegalState, RocketMQError
from skylarkmq.protocol.fingerprint import Fingerprint
from skylarkmq.protocol.message import MessageQueue

FIRST = MessageQueue("orders", "broker-a", 0)
SECOND = MessageQueue("orders", "broker-a", 1)


async def opened(path: Path) -> LocalOffsets:
    offsets = LocalOffsets(path)
    await offsets.open()
    return offsets


async def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    path = offsets_path("billing", "one", tmp_path)
    offsets = await opened(path)
    assert offsets.get(FIRST) is None
    await offsets.put({FIRST: 5, SECOND: 7})
    await offsets.put({FIRST: 6})
    offsets.close()
    again = await opened(path)
    assert (again.get(FIRST), again.get(SECOND)) == (6, 7)
    again.close()
    assert {each.name for each in path.parent.iterdir()} == {"billing.json", "billing.json.lock"}


async def test_messages_go_with_their_offsets(tmp_path: Path) -> None:
    path = offsets_path("billing", "one", tmp_path)
    offsets = await opened(path)
    await offsets.put({FIRST: 5, SECOND: 7})
    await offsets.put_last({FIRST: read(4), SECOND: read(7)})
    assert (offsets.last_read(FIRST), offsets.last_read(SECOND)) == (read(4), None)
    await offsets.put_last({SECOND: read(6)})
    await offsets.put({FIRST: 9, SECOND: 3})
    offsets.close()
    await offsets.put_last({FIRST: read(8)})  # a broker that has answered late
    again = await opened(path)
    assert (again.last_read(FIRST), again.last_read(SECOND)) == (read(4), None), "moved back"
    await again.put_last({FIRST: None})
    again.close()
    again = await opened(path)
    assert again.get(FIRST) == 9 and again.last_read(FIRST) is None
    again.close()


def read(offset: int) -> ReadMessage:
    return ReadMessage(offset, Fingerprint(offset * 100, 1_700_000_000_000 + offset, 7))


async def test_java_s_file_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(
        '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":1,\n'
        '\t\t\t"topic":"orders"\n\t\t}:42\n\t}\n}'
    )
    offsets = await opened(path)
    assert offsets.get(SECOND) == 42
    offsets.close()


@pytest.mark.parametrize("content", [b"", b"no offsets", b'{"offsetTable":'])
async def test_a_broken_file_is_an_empty_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    offsets = await opened(path)
    assert offsets.get(FIRST) is None
    await offsets.put({FIRST: 1})
    offsets.close()
    again = await opened(path)
    assert again.get(FIRST) == 1
    again.close()


async def test_a_second_consumer_of_the_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    offsets = await opened(path)
    with pytest.raises(IllegalState, match="instance_name"):
        await opened(path)
    offsets.close()
    offsets.close()
    (await opened(path)).close()


async def test_a_second_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    with (tmp_path / "offsets.json.lock").open("ab") as lock:  # as another process would
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(IllegalState, match="this machine") as refused:
            await opened(path)
    assert "instance_name" in refused.value.hint
    (await opened(path)).close()


async def test_who_is_cancelled_while_the_file_opens_keeps_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    offsets = LocalOffsets(path)
    opening, lock_and_read = asyncio.create_task(offsets.open()), offsets._lock_and_read
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def hold() -> bytes | None:
        begun.set()
        go_on.wait()
        try:
            return lock_and_read()
        finally:
            ended.set()

    offsets._lock_and_read = hold  # type: ignore[method-assign]
    await asyncio.to_thread(begun.wait)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    go_on.set()
    await asyncio.to_thread(ended.wait)
    (await opened(path)).close()


async def test_a_file_that_cannot_be_written_is_told_and_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.write_text("in the way")
    path = folder / "one" / "offsets.json"
    offsets = LocalOffsets(path)
    with pytest.raises(RocketMQError, match="not read"):
        await offsets.open()
    folder.unlink()
    await offsets.open()
    shutil.rmtree(folder)
    folder.write_text("in the way again")
    with pytest.raises(RocketMQError, match="rights and its free space"):
        await offsets.put({FIRST: 3})
    folder.unlink()
    await offsets.put({SECOND: 4})
    offsets.close()
    again = await opened(path)
    assert (again.get(FIRST), again.get(SECOND)) == (3, 4)
    again.close()


async def test_a_cancelled_write_never_wins_over_a_newer_one(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    offsets = await opened(path)
    writes: list[tuple[bytes, int]] = []
    write, begun = offsets._write, threading.Event()

    def hold(data: bytes, version: int) -> None:
        writes.append((data, version))
        begun.set()

    offsets._write = hold  # type: ignore[method-assign]
    cancelled = asyncio.create_task(offsets.put({FIRST: 1}))
    await asyncio.to_thread(begun.wait)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    await offsets.put({FIRST: 2})
    for parts in reversed(writes):  # the first one's thread comes late
        write(*parts)
    offsets.close()
    again = await opened(path)
    assert again.get(FIRST) == 2
    again.close()


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a\\b", "c:d", "%RETRY%|x"])
def test_no_name_leads_out_of_the_folder_or_is_illegal(tmp_path: Path, name: str) -> None:
    path = offsets_path(name, name, tmp_path)
    assert path.parent.parent == tmp_path
    assert not set('/\\:|<>*?"') & set(path.name + path.parent.name)
    assert ".." not in path.parts


def test_the_folder_is_the_user_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert offsets_path("g", None) == tmp_path / "skylarkmq" / "offsets" / "default" / "g.json"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert offsets_path("g", "one").is_relative_to(tmp_path / "local")


async def test_the_new_file_is_on_the_disk_before_it_takes_the_old_one_s_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "offsets.json"
    offsets = await opened(path)
    await offsets.put({FIRST: 5})
    before, synced = path.read_bytes(), list[tuple[int, bytes]]()

    def sync(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_size, path.read_bytes()))

    monkeypatch.setattr(os, "fsync", sync)
    await offsets.put({FIRST: 6, SECOND: 100})
    offsets.close()
    assert synced == [(path.stat().st_size, before)]
