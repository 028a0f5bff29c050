"""Changing a stopped store so that a crash in the middle costs nothing but a longer start.

Before the first change the store gets the mark of a running broker and a checkpoint that covers
nothing, so whoever starts on it next, ours or RocketMQ, recovers all of it from the log. Both are
put right when everything is on the disk. A store that was not stopped cleanly keeps the mark.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from skylarkmq.common.files import DiskFiles, Files
from skylarkmq.store.checkpoint import Checkpoint, Marks
from skylarkmq.store.folder import AbortFile
from skylarkmq.store.stopped.reader import StoppedStore
from skylarkmq.tools.store.ownership import writing


@dataclass(slots=True)
class Change:
    """A change under way; set the times once everything is synced."""

    files: Files
    store_timestamp: int = 0  # of the newest message in log and queues, ms
    index_timestamp: int = 0


@contextmanager
def changing(store: StoppedStore, files: Files | None = None) -> Generator[Change]:
    """Own the store while it is changed.

    Raises:
        StoreLockedError: a broker runs on it.
    """
    disk = files or DiskFiles()
    paths = store.paths
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
