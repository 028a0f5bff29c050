"""`store backup` and `store restore`: of stopped and running stores, of what is damaged."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from skylarkmq.client import Client, Message, PeekReader, Producer, StartFrom
from skylarkmq.common.errors import StoreError
from skylarkmq.store.folder import StorePaths
from skylarkmq.testing import run_broker
from skylarkmq.tools.store import backup as backups
from tests.tools.store.support import Sample, flip, overwrite, run, run_json, run_rows


def tree(root: Path) -> dict[str, bytes]:
    """All files below a folder, by their names."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name not in ("lock", "replica")
    }


def write_long_ago(root: Path) -> None:
    """Let the files of a store look as if nobody had written to them for long."""
    for path in root.rglob("*"):
        os.utime(path, (1_000_000, 1_000_000))


def test_a_stopped_store_comes_back_byte_for_byte(sample: Sample, tmp_path: Path) -> None:
    (sample.root / "skylarkmq" / "replica").write_bytes(b"who I am")
    made = run_json("backup", sample.root, tmp_path / "b")
    assert made["stopped_cleanly"] and made["running"] is None
    restored = run_json("restore", tmp_path / "b", tmp_path / "new")
    assert restored["files"] == made["files"] and restored["log"] == made["log"]
    assert tree(tmp_path / "new") == tree(sample.root)
    assert not (tmp_path / "new" / "skylarkmq" / "replica").exists()
    run_json("verify", tmp_path / "new")
    assert run_json("verify", tmp_path / "b")["kinds"] == run_json("verify", sample.root)["kinds"]


def test_a_second_backup_copies_what_has_changed(sample: Sample, tmp_path: Path) -> None:
    write_long_ago(sample.root)
    first = run_json("backup", sample.root, tmp_path / "b")
    (sample.root / "config" / "topics.json").write_text('{"topicConfigTable":{}}')
    (sample.root / "config" / "consumerOffset.json").unlink()
    second = run_json("backup", sample.root, tmp_path / "b")
    assert second["files_kept"] == first["files"] - 2
    assert second["files"] == first["files"] - 1
    run_json("restore", tmp_path / "b", tmp_path / "new")
    assert tree(tmp_path / "new") == tree(sample.root)


def test_a_write_that_its_time_does_not_show_is_copied(sample: Sample, tmp_path: Path) -> None:
    """As through mapped memory: of the writes between two syncs the first sets the file's time."""
    write_long_ago(sample.root)
    os.utime(sample.log(0), (2_000_000, 2_000_000))
    soon_ms = 2_000_000_000 + 59_000
    for _ in range(2):
        backups.Backup(StorePaths(sample.root), tmp_path / "b", lambda: soon_ms).run()
        flip(sample.log(0), 100)
        os.utime(sample.log(0), (2_000_000, 2_000_000))
    flip(sample.log(0), 100)  # as it was when it was copied
    run_json("restore", tmp_path / "b", tmp_path / "new")
    assert tree(tmp_path / "new") == tree(sample.root)


@pytest.mark.parametrize("name", ["../../mine", "config/../../../mine", "/mine", "", "."])
def test_a_backup_that_leads_out_of_its_folder_is_refused(
    sample: Sample, tmp_path: Path, name: str
) -> None:
    run_json("backup", sample.root, tmp_path / "b")
    manifest = json.loads((tmp_path / "b" / "backup.json").read_text())
    name = str(tmp_path / "mine") if name == "/mine" else name
    manifest["files"][name] = manifest["files"]["config/topics.json"]
    (tmp_path / "b" / "backup.json").write_text(json.dumps(manifest))
    (tmp_path / "mine").write_text("keep")
    refused = run("restore", tmp_path / "b", tmp_path / "deep" / "new")
    assert refused.exit_code == 2 and "is no file of a store" in refused.output
    assert (tmp_path / "mine").read_text() == "keep" and not (tmp_path / "deep").exists()


def test_a_hole_stays_a_hole(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    with source.open("wb") as file:
        file.write(b"begin")
        file.truncate(64 << 20)
    backups.copy_file(source, target, 64 << 20, lambda _: None)
    assert target.stat().st_size == 64 << 20
    assert target.stat().st_blocks * 512 <= 1 << 20


def test_an_unfinished_backup_is_not_restored(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_long_ago(sample.root)
    run_json("backup", sample.root, tmp_path / "b")
    os.utime(sample.log(0))

    def broken(*_: object) -> str:
        raise OSError("the power has gone")

    with monkeypatch.context() as patch:
        patch.setattr(backups, "copy_file", broken)
        assert run("backup", sample.root, tmp_path / "b").exit_code == 2
    refused = run("restore", tmp_path / "b", tmp_path / "new")
    assert refused.exit_code == 2 and "not finished" in refused.output
    assert not (tmp_path / "new").exists()
    again = run_json("backup", sample.root, tmp_path / "b")
    assert again["files_kept"] == again["files"] - 1, "what it had is not copied again"
    run_json("restore", tmp_path / "b", tmp_path / "new")
    assert tree(tmp_path / "new") == tree(sample.root)


def test_a_backup_is_looked_at_and_never_changed(sample: Sample, tmp_path: Path) -> None:
    run_json("backup", sample.root, tmp_path / "b")
    before = tree(tmp_path / "b")
    for root in (tmp_path / "b", tmp_path / "b" / "store"):
        assert run_rows("cat", root) == run_rows("cat", sample.root)
        refused = run("rebuild", root, "--write")
        assert refused.exit_code == 2 and "is a backup, which is not changed" in refused.output
    assert tree(tmp_path / "b") == before


def test_a_damaged_backup_is_told(sample: Sample, tmp_path: Path) -> None:
    run_json("backup", sample.root, tmp_path / "b")
    flip(tmp_path / "b" / "store" / "commitlog" / sample.log(0).name, 100)
    refused = run("restore", tmp_path / "b", tmp_path / "new")
    assert refused.exit_code == 2 and "is not as it was written" in refused.output
    (tmp_path / "b" / "store" / "checkpoint").unlink()
    assert "is missing" in run("restore", tmp_path / "b", tmp_path / "other").output
    (tmp_path / "b" / "backup.json").write_text("{")
    assert "is damaged" in run("restore", tmp_path / "b", tmp_path / "third").output


def test_what_is_in_the_way_is_not_touched(sample: Sample, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter").write_text("dear")
    before = tree(sample.root)
    for target in (mine, sample.root, sample.root / "b", sample.root.parent):
        assert run("backup", sample.root, target).exit_code == 2, target
    run_json("backup", sample.root, tmp_path / "b")
    assert run("restore", tmp_path / "b", mine).exit_code == 2
    assert (tree(sample.root), [*mine.iterdir()]) == (before, [mine / "letter"])
    assert "holds no store" in run("backup", mine, tmp_path / "c").output


def test_files_that_expire_meanwhile_are_left_out(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, copy = sample.log(1), backups.copy_file

    def expiring(source: Path, *rest: Any) -> str:
        digest = copy(source, *rest)
        if source.parent.name == "commitlog":
            second.unlink(missing_ok=True)
        return digest

    with monkeypatch.context() as patch:
        patch.setattr(backups, "copy_file", expiring)
        made = run_json("backup", sample.root, tmp_path / "b")
    assert made["log"]["begin"] == int(second.name) + second_size(sample), "no gap before it"


def second_size(sample: Sample) -> int:
    """The size of a log file."""
    return sample.log(0).stat().st_size


@pytest.mark.parametrize("mode", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_copy_of_a_running_store_is_restored_and_verified(
    tmp_path: Path, mode: str
) -> None:
    """What was acknowledged before the backup began is there, at the same place, and once."""
    settings = {"flushDiskType": mode, "mappedFileSizeCommitLog": 131_072, "maxMessageSize": 8192}
    root, sent = tmp_path / "store", dict[tuple[int, int], bytes]()
    async with run_broker(store=root, settings=settings) as broker:
        await broker.create_topic("orders", queues=2)
        async with broker.client() as client, Producer(client=client) as producer:

            async def send(number: int) -> None:
                body = b"%d " % number * 50
                result = await producer.send(Message("orders", body, keys=f"k{number}"))
                sent[result.queue.queue_id, result.queue_offset] = body

            for number in range(400):
                await send(number)
            before = dict(sent)
            is_over = asyncio.Event()
            going = asyncio.create_task(send_until(is_over, send))
            paths = StorePaths(root)
            made = await asyncio.to_thread(backups.Backup(paths, tmp_path / "b", lambda: 1).run)
            is_over.set()
            await going
            assert made["running"] is not None and len(sent) > len(before)
    backups.Restore(tmp_path / "b", tmp_path / "new").run()
    for folder in ("new", "b", "b/store"):
        as_it_must_be = run("verify", tmp_path / folder)
        assert as_it_must_be.exit_code == 0, as_it_must_be.output
        assert "store.unclean" in as_it_must_be.output
    new = run_broker(store=tmp_path / "new", settings=settings)
    async with new as again, again.client() as client:
        found = await read_all(client, "orders")
    assert before.items() <= found.items() <= sent.items()
    verified = json.loads(run("verify", tmp_path / "new", "--json").output)
    assert verified["errors"] == 0
    assert verified["kinds"].keys() <= {"index.missing-keys"}, "a start adds them"


def test_a_broker_that_writes_faster_than_it_is_copied_leaves_no_gap(tmp_path: Path) -> None:
    chunk, root = 1 << 20, tmp_path / "store"
    path = root / "commitlog" / f"{0:020}"
    path.parent.mkdir(parents=True)
    path.write_bytes((b"A" * (chunk * 3 // 2)).ljust(4 * chunk, b"\0"))
    copied: list[int] = []

    def overtake(_: str, done: int, __: int) -> None:
        copied.append(done)
        if done == 2 * chunk:
            overwrite(path, chunk * 3 // 2, b"B" * 2 * chunk)

    backups.Backup(StorePaths(root), tmp_path / "b", lambda: 1, overtake).run()
    assert 2 * chunk in copied
    found = (tmp_path / "b" / "store" / "commitlog" / path.name).read_bytes()
    assert found == (b"A" * (chunk * 3 // 2)).ljust(4 * chunk, b"\0")


async def send_until(is_over: asyncio.Event, send: Any) -> None:
    """Send until it is over, and wait for the last answer: what was copied has been told."""
    number = 1000
    while not is_over.is_set():
        await send(number)
        number += 1


async def read_all(client: Client, topic: str) -> dict[tuple[int, int], bytes]:
    """What a topic holds, by queue and offset."""
    found: dict[tuple[int, int], bytes] = {}
    async with PeekReader(topic, client=client, start=StartFrom.FIRST, stop="now") as reader:
        async for message in reader:
            found[message.queue.queue_id, message.queue_offset] = bytes(message.body)
    return found


def test_a_lone_folder_named_store_is_no_backup(sample: Sample, tmp_path: Path) -> None:
    target = tmp_path / "t"
    (target / "store").mkdir(parents=True)
    (target / "store" / "mine").write_text("keep")
    with pytest.raises(StoreError, match="neither empty nor a backup"):
        backups.Backup(StorePaths(sample.root), target, lambda: 1).run()
    assert (target / "store" / "mine").read_text() == "keep"
