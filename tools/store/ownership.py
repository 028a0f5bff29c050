"""Who has a store: tools read and change stopped stores only.

A running broker, ours or RocketMQ's, holds a lock on the first byte of `lock`. Readers only ask for
it, so they never keep a broker from starting. A broker that starts while they read makes what they
saw worthless, so they ask again at their end.

A crash in the middle of a change costs nothing but a longer start. Before the first change the
store gets the mark of a running broker and a checkpoint that covers nothing, so the next broker,
ours or RocketMQ's, recovers all of it from the log. Both are set right when everything is on the
disk. A store that was not stopped cleanly keeps the mark.

A backup is looked at as a store is, and is never changed: its sums would not fit any more.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skylarkmq.common.errors import StoreError
from skylarkmq.common.files import DiskFiles, Files
from skylarkmq.common.read_only_files import ReadOnlyFiles
from skylarkmq.store.checkpoint import Checkpoint, Marks
from skylarkmq.store.errors import StoreLockedError
from skylarkmq.store.folder import AbortFile, StoreLock, StorePaths, is_held_here
from skylarkmq.store.stopped.reader import StoppedStore

MANIFEST: Final = "backup.json"
"""What marks a folder as a backup."""
COPY: Final = "store"
"""The store in a backup."""
_PROCESSES = Path("/proc")


def store_in(root: Path) -> Path:
    """Return the store in a backup, and any other folder as it is."""
    return root / COPY if (root / MANIFEST).is_file() and (root / COPY).is_dir() else root


def owner_of(files: ReadOnlyFiles, paths: StorePaths) -> str | None:
    """Return who runs on the store, for a human; None when it is stopped."""
    if is_held_here(paths):
        return "this process"
    holder = files.lock_holder(paths.lock)
    if holder is None:
        return None
    return f"process {holder}{_command_of(files, holder)}" if holder else "another process"


def refuse_running(files: ReadOnlyFiles, paths: StorePaths) -> None:
    """Go on with a stopped store alone.

    Raises:
        StoreLockedError: a broker runs on it.
    """
    owner = owner_of(files, paths)
    if owner is not None:
        raise StoreLockedError(f"{paths.root} is in use by {owner}; stop that broker first")


@contextmanager
def reading(files: ReadOnlyFiles, paths: StorePaths) -> Generator[None]:
    """Read while no broker runs.

    Raises:
        StoreLockedError: one runs, or was started meanwhile.
    """
    refuse_running(files, paths)
    yield
    refuse_running(files, paths)


@contextmanager
def writing(reader: ReadOnlyFiles, files: Files, paths: StorePaths) -> Generator[None]:
    """Own the store, as a broker would.

    Raises:
        StoreLockedError: a broker runs on it.
        StoreError: it is that of a backup.
    """
    backup = paths.root.absolute().parent
    if store_in(backup) == paths.root.absolute():
        raise StoreError(f"{backup} is a backup, which is not changed: restore it, and change that")
    refuse_running(reader, paths)
    lock = StoreLock(files, paths)
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _command_of(files: ReadOnlyFiles, process: int) -> str:
    try:
        words = files.read_all(_PROCESSES / str(process) / "cmdline").split(b"\0")
    except OSError:
        return ""
    name = words[0].decode("utf-8", "replace").rpartition("/")[2]
    return f" ({name})" if name else ""


@dataclass(slots=True)
class Change:
    """A change under way; set the times once everything is synced."""

    files: Files
    store_timestamp: int = 0  # of the newest message in log and queues, ms
    index_timestamp: int = 0


@contextmanager
def changing(store: StoppedStore) -> Generator[Change]:
    """Own the store while it is changed.

    Raises:
        StoreLockedError: a broker runs on it.
    """
    disk, paths = DiskFiles(), store.paths
    with writing(store.files, disk, paths):
        store.refresh()  # a broker may have run since it was opened
        abort = AbortFile(disk, paths)
        was_unclean = abort.exists()
        checkpoint = Checkpoint(disk, paths.checkpoint, paths.recovery_point)
        abort.create()
        checkpoint.save(Marks())
        for path in (paths.recovery_point, paths.flushed_offset):
            if disk.exists(path):
                disk.unlink(path)
                disk.sync_folder(paths.own)
        change = Change(disk)
        yield change
        if not was_unclean:
            time = change.store_timestamp
            checkpoint.save(Marks(time, time, change.index_timestamp))
            abort.remove()
