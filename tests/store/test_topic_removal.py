"""A topic that was removed stays away: through crashes at every step, and rebuilds of queues."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random
from typing import Any

import pytest

from skylarkmq.common.files import DiskFiles
from skylarkmq.store.checkpoint import UNKNOWN
from skylarkmq.store.message_store import StoreState
from skylarkmq.store.queue.topic_removal import HELD_MAX
from skylarkmq.store.results import GetMessageStatus
from skylarkmq.store.upkeep.recovery import Recovery
from tests.store.support import StoreRig
from tests.support.crash_disk import CrashDisk
from tests.support.crash_states import Names
from tests.support.extensions import extend


def bodies(rig: StoreRig, topic: str, queue_id: int = 0) -> list[bytes]:
    """The bodies that a reader of a queue gets."""
    store = rig.store
    found: list[bytes] = []
    for unit in store.queue_units(topic, queue_id, store.min_offset(topic, queue_id), 1000):
        message = store.look_message(unit.commit_offset)
        assert message is not None
        found.append(message.body)
    return found


def fill(rig: StoreRig, topic: str, count: int, mark: str = "old") -> None:
    for number in range(count):
        rig.put(topic, number % 2, f"{mark}-{topic}-{number}".encode())


def remove(rig: StoreRig, topic: str) -> list[BaseException | None]:
    """Remove a topic and release it, as far as the disk lets it."""
    results: list[BaseException | None] = []
    if not rig.store.removal.remove(topic, results.append):
        results.append(None)
    rig.workers.run_all()
    if results == [None]:
        rig.store.removal.release(topic, results.append)
        rig.workers.run_all()
    return results


def checkpoint(rig: StoreRig) -> None:
    rig.workers.run_all()
    rig.clock.advance(0.6)
    rig.workers.run_all()
    rig.clock.advance(61)
    rig.workers.run_all()


def reboot(rig: StoreRig, *, clean: bool, **config: object) -> StoreRig:
    if clean:
        rig.stop()
        twin = rig.files.snapshot()
    else:
        rig.workers.run_all()
        twin = rig.files.snapshot()
    again = StoreRig(twin, **config).start()
    for topic in again.store.removal.topics.unfinished:
        again.store.removal.release(topic, lambda error: None)
    again.workers.run_all()
    return again


def without_queues(rig: StoreRig) -> StoreRig:
    """The same store after an unclean stop that left neither queues nor checkpoint."""
    rig.workers.run_all()
    twin = rig.files.snapshot()
    for key in [key for key in twin.name_space.live if "consumequeue" in key or "check" in key]:
        del twin.name_space.live[key]
    again = StoreRig(twin).start()
    assert again.store.recovery is not None
    assert again.store.recovery.rebuilt
    return again


def test_files_folders_and_readers_go() -> None:
    rig = StoreRig().start()
    fill(rig, "T", 250)
    fill(rig, "U", 4)
    rig.stop()
    extend(rig.files, rig.files.root)
    rig = StoreRig(rig.files).start()
    checkpoint(rig)
    assert rig.files.exists(rig.store.paths.consume_queue_ext / "T")
    assert len([path for path in rig.files.contents() if path.startswith("consumequeue/T")]) == 4
    assert remove(rig, "T") == [None, None]
    assert not [path for path in rig.files.contents() if "/T/" in path]
    assert not rig.files.exists(rig.store.paths.consume_queue / "T")
    assert not rig.files.exists(rig.store.paths.consume_queue_ext / "T")
    result = rig.store.get_message("T", 0, 0, 32)
    assert result.status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
    assert rig.store.max_offset("T", 0) == 0
    assert bodies(rig, "U") == [b"old-U-0", b"old-U-2"]
    checkpoint(rig)
    rig.stop()


def test_a_topic_made_anew_starts_at_0_and_sees_no_old_message() -> None:
    rig = StoreRig().start()
    fill(rig, "T", 10)
    checkpoint(rig)
    assert remove(rig, "T") == [None, None]
    result = rig.put("T", 0, b"new")
    assert result is not None
    assert result.queue_offset == 0
    for clean in (True, False):
        again = reboot(rig, clean=clean) if not clean else rig
        assert bodies(again, "T") == [b"new"]
        assert bodies(again, "T", 1) == []
    again = without_queues(rig)
    assert bodies(again, "T") == [b"new"]
    assert again.store.max_offset("T", 1) == 0


@pytest.mark.parametrize("clean", [True, False])
def test_no_ghost_comes_back_with_the_next_start(clean: bool) -> None:
    rig = StoreRig().start()
    fill(rig, "U", 3)
    fill(rig, "T", 50)
    checkpoint(rig)
    fill(rig, "T", 3)
    assert remove(rig, "T") == [None, None]
    again = reboot(rig, clean=clean)
    assert ("T", 0) not in again.store.queues.queues
    assert bodies(again, "U") == [b"old-U-0", b"old-U-2"]
    ghost_free = without_queues(again)
    assert {topic for topic, _ in ghost_free.store.queues.queues} == {"U"}


def test_a_clean_start_after_a_removal_trusts_the_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = StoreRig().start()
    fill(rig, "U", 3)
    fill(rig, "T", 50)  # the newest of the log
    checkpoint(rig)
    remove(rig, "T")
    walks: list[int] = []
    walk = Recovery._walk

    def counted(self: Recovery, begin: int, *args: Any, **options: Any) -> bool:
        walks.append(begin)
        return walk(self, begin, *args, **options)

    monkeypatch.setattr(Recovery, "_walk", counted)
    again = reboot(rig, clean=True)
    assert again.store.recovery is not None
    assert again.store.recovery.clean
    assert len(walks) == 1  # not once more from where the other topic's last message lies


@pytest.mark.parametrize("names", list(Names))
def test_crash_at_each_step(names: Names) -> None:
    rig = StoreRig(CrashDisk(names)).start()
    fill(rig, "U", 4)
    fill(rig, "T", 210)
    rig.stop()
    extend(rig.files, rig.files.root, file_size=4096)
    rig = StoreRig(rig.files).start()
    checkpoint(rig)
    fill(rig, "T", 3, "unsynced")
    fill(rig, "U", 2, "unsynced")
    acked: list[BaseException | None] = []
    moments: list[tuple[CrashDisk, bool, str]] = []

    def before_step(op: str, path: Path) -> None:
        moments.append((rig.files.snapshot(), len(acked) == 2, f"{op} {path.name}"))

    rig.files.before_step = before_step
    rig.store.removal.remove("T", acked.append)
    rig.workers.run_all()
    assert acked == [None]
    rig.store.removal.release("T", acked.append)
    rig.workers.run_all()
    assert acked == [None, None]
    rig.files.before_step = None
    rig.put("T", 0, b"new")
    moments.append((rig.files.snapshot(), True, "made anew"))
    checkpoint(rig)
    moments.append((rig.files.snapshot(), True, "made anew, with a checkpoint"))
    rng = Random(4)
    seen: set[str] = set()
    for disk, is_acked, step in moments:
        for state in rng.sample(disk.crash_states(rng, 12), 3):
            where = f"before {step}: {state}"
            seen.add(_check_crashed(disk.crash(state, rng), is_acked, where, rng))
    assert seen == {"untouched", "removed"}
    assert any(is_acked for _, is_acked, _ in moments)
    assert {"unlink", "remove_folder", "rename"} <= {step.split()[0] for *_, step in moments}


def _check_crashed(disk: CrashDisk, is_acked: bool, where: str, rng: Random) -> str:
    rig = StoreRig(disk).start()
    removal = rig.store.removal
    for topic in removal.topics.unfinished:
        assert not is_acked, where
        removal.release(topic, lambda error: None)
    rig.workers.run_all()
    assert rig.store.recovery is not None
    assert rig.store.recovery.keeps_queues, where  # no units were missed
    assert bodies(rig, "U")[:2] == [b"old-U-0", b"old-U-2"], where
    found = bodies(rig, "T")
    if "T" not in removal.topics.entries:
        assert not is_acked, where
        assert found[:2] == [b"old-T-0", b"old-T-2"], where
        assert len(found) >= 100, where
        return "untouched"
    assert found in ([], [b"new"]), where
    assert bodies(rig, "T", 1) == [], where
    result = rig.put("T", 0, b"later")
    assert result is not None
    assert result.queue_offset == len(found), where
    if rng.random() < 0.3:
        assert bodies(without_queues(rig), "T") == [*found, b"later"], where
    return "removed"


def test_the_end_of_the_log_falls_back_behind_a_removal() -> None:
    rig = StoreRig().start()
    fill(rig, "U", 3)
    fill(rig, "T", 4)
    checkpoint(rig)
    fill(rig, "U", 40, "lost")  # never synced
    assert remove(rig, "T") == [None, None]
    end = rig.store.commit_log.wrote_offset
    rng = Random(1)
    _, lost, *_ = rig.files.crash_states(rng, 2)
    again = StoreRig(rig.files.crash(lost, rng)).start()
    assert again.store.commit_log.wrote_offset < end
    again.put("T", 0, b"in the place of lost ones")
    assert bodies(without_queues(again), "T") == [b"in the place of lost ones"]


def test_messages_wait_in_memory_while_the_topic_is_held() -> None:
    rig = StoreRig().start()
    fill(rig, "T", 10)
    checkpoint(rig)
    results: list[BaseException | None] = []
    rig.store.removal.remove("T", results.append)
    rig.put("T", 0, b"in between")  # a service that does not ask the topic table
    rig.clock.advance(5)
    rig.workers.run_all()
    assert results == [None]
    checkpoint(rig)
    assert not rig.files.exists(rig.store.paths.consume_queue / "T")
    rig.store.removal.release("T", results.append)
    rig.workers.run_all()
    checkpoint(rig)
    assert rig.files.exists(rig.store.paths.consume_queue / "T")
    assert bodies(reboot(rig, clean=False), "T") == [b"in between"]


def test_a_checkpoint_goes_up_to_what_is_kept_in_memory() -> None:
    rig = StoreRig().start()
    fill(rig, "T", 10)
    checkpoint(rig)
    rig.store.removal.remove("T", lambda error: None)
    rig.workers.run_all()
    fill(rig, "U", 2)
    rig.clock.advance(2)
    held = rig.put("T", 0, b"in between")
    fill(rig, "U", 3)
    checkpoint(rig)
    covered = rig.store.queues.flusher.covered
    assert held is not None and covered is not None
    assert covered.commit_log_offset == held.physical_offset
    again = reboot(rig, clean=False)
    assert bodies(again, "T") == [b"in between"]
    assert len(bodies(again, "U")) == 3


@pytest.mark.parametrize("written", [True, False])
def test_units_on_their_way_do_not_come_back(written: bool) -> None:
    rig = StoreRig(flush_disk_type="SYNC_FLUSH").start()
    fill(rig, "T", 2)
    checkpoint(rig)
    if not written:
        fill(rig, "T", 3)
        rig.store.queues.flusher.write()  # a job that has not begun
    fill(rig, "T", 2)  # neither durable nor visible
    results: list[BaseException | None] = []
    rig.store.removal.remove("T", results.append)
    rig.workers.run_all()
    rig.store.removal.release("T", results.append)
    checkpoint(rig)
    assert results == [None, None]
    assert not [path for path in rig.files.contents() if "/T/" in path]
    rig.stop()


def test_no_checkpoint_counts_the_units_of_before() -> None:
    rig = StoreRig().start()
    fill(rig, "T", 4)
    fill(rig, "U", 4)
    checkpoint(rig)
    assert rig.store.queues.flusher.checkpoint.load().queue_count == 4
    fill(rig, "T", 4)
    rig.clock.advance(61)  # a sync is wanted with what was counted
    remove(rig, "T")
    assert rig.store.queues.flusher.checkpoint.load().queue_count in (UNKNOWN, 2)
    checkpoint(rig)
    marks = rig.store.queues.flusher.checkpoint.load()
    assert (marks.queue_count, marks.unit_count) == (2, 4)


def test_a_full_disk_is_told_and_the_call_repeated() -> None:
    rig = StoreRig().start()
    fill(rig, "T", 4)
    checkpoint(rig)
    rig.files.fail("pwrite", error=errno.ENOSPC, path="removed-topics")
    (error,) = remove(rig, "T")
    assert isinstance(error, OSError)
    assert rig.store.state is StoreState.RUNNING
    assert bodies(rig, "T") == []
    assert remove(rig, "T") == [None, None]
    assert not [path for path in rig.files.contents() if "/T/" in path]


def test_a_failed_sync_of_the_folders_ends_the_store() -> None:
    rig = StoreRig().start()
    fill(rig, "T", 4)
    checkpoint(rig)
    rig.files.fail("sync_folder", path="consumequeue/T/")
    (error,) = remove(rig, "T")
    assert isinstance(error, OSError)
    assert rig.store.state is StoreState.FAILED


def test_a_topic_without_messages_leaves_no_trace() -> None:
    rig = StoreRig().start()
    assert remove(rig, "T") == [None, None]
    assert not rig.store.removal.topics.entries
    assert not rig.store.queues.held
    assert not rig.files.exists(rig.store.paths.own / "removed-topics")


def test_entries_go_with_the_messages() -> None:
    rig = StoreRig().start()
    fill(rig, "T", 4)
    remove(rig, "T")
    topics = rig.store.removal.topics
    assert topics.hides("T", 0)
    topics.prune(topics.entries["T"].end_offset - 1)
    assert topics.entries
    topics.prune(topics.entries["T"].end_offset)
    assert not topics.entries


def test_so_many_at_a_time() -> None:
    rig = StoreRig().start()
    for number in range(HELD_MAX):
        rig.store.removal.remove(f"T{number}", lambda error: None)
    why = rig.store.removal.refusal("another")
    assert why is not None
    assert "being deleted" in why
    assert rig.store.removal.refusal("T1") is None


def test_a_damaged_table_is_read_from_its_backup() -> None:
    rig = StoreRig().start()
    for topic in ("T", "U"):
        fill(rig, topic, 2)
        remove(rig, topic)
    rig.stop()
    path = rig.store.paths.own / "removed-topics"
    file = rig.files.open(path)
    file.pwrite(b"rot", 20)
    file.close()
    again = StoreRig(rig.files.snapshot()).start()
    assert "T" in again.store.removal.topics.entries


def test_a_folder_that_is_not_empty_stays(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    files = DiskFiles()
    files.remove_folder(tmp_path / "folder")
    assert files.exists(tmp_path / "folder" / "file")
    files.unlink(tmp_path / "folder" / "file")
    files.remove_folder(tmp_path / "folder")
    assert not files.exists(tmp_path / "folder")
