"""Who owns the store: the `lock` file, and the `abort` file that marks an unclean stop.

    what is locked            whom it keeps out
    `lock`, its first byte    RocketMQ's brokers, and ours; a POSIX record lock
    the folders themselves    ours, also once somebody has removed `lock`; and of brokers with roots
                              of their own, those that share a `storePathCommitLog`

Record locks do not exclude a second broker in the same process, and closing any descriptor of the
file drops them: a process-wide set of real paths stands beside.

A removed `lock` lets a RocketMQ broker in, which knows no locks of folders. So a running store
looks whether the file that it has locked is still the one in the folder, and takes a new one.

`abort` exists, durably, from before the first change of a start until a clean stop has synced
everything.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (start)
"""

from __future__ import annotations

import logging
from pathlib import Path

from skylarkmq.common.files import FileLock, Files
from skylarkmq.store.errors import StoreLockedError
from skylarkmq.store.paths import StorePaths

log = logging.getLogger(__name__)

_held: set[Path] = set()


class StoreLock:
    """Exclusive ownership of a store folder."""

    def __init__(self, files: Files, paths: StorePaths) -> None:
        self._files = files
        self._paths = paths
        self._key = paths.root.resolve()
        self._lock: FileLock | None = None
        self._folders: list[FileLock] = []

    def acquire(self) -> None:
        """Take the store, whose folders exist. Blocks.

        Raises:
            StoreLockedError: another broker, in this process or another one, has it.
        """
        root, commit_log = self._paths.root, self._paths.commit_log
        if self._key in _held:
            raise _in_use(root, "storePathRootDir")
        try:
            self._lock_folder(root, "storePathRootDir")
            if commit_log.parent != root:
                self._lock_folder(commit_log, "storePathCommitLog")
            self._lock = self._files.lock(self._paths.lock)
            if self._lock is None:
                raise _in_use(root, "storePathRootDir")
        except BaseException:
            self._let_go()
            raise
        _held.add(self._key)

    def keep(self) -> None:
        """Take `lock` again when somebody has removed or replaced it. Blocks; one thread at a time.

        Raises:
            StoreLockedError: a broker has taken the store meanwhile.
            OSError: the file cannot be made again.
        """
        if self._lock is None or self._lock.is_in_place():
            return
        lock = self._files.lock(self._paths.lock)
        if lock is None:
            raise StoreLockedError(
                f"{self._paths.lock} was removed and another broker has taken the store; two "
                "brokers destroy each other's messages: stop both, run `skylarkmq store verify`, "
                "start one"
            )
        self._lock.release()
        self._lock = lock
        log.warning(
            "%s was removed or replaced while the broker runs; it is locked again. Without it "
            "another broker could take the store: leave the file alone",
            self._paths.lock,
        )

    def release(self) -> None:
        """Give the store back; does nothing when it is not held."""
        if self._lock is not None:
            self._let_go()
            _held.discard(self._key)

    def _lock_folder(self, folder: Path, key: str) -> None:
        lock = self._files.lock_folder(folder)
        if lock is None:
            raise _in_use(folder, key)
        self._folders.append(lock)

    def _let_go(self) -> None:
        for lock in (self._lock, *self._folders):
            if lock is not None:
                lock.release()
        self._lock = None
        self._folders.clear()


def _in_use(folder: Path, key: str) -> StoreLockedError:
    return StoreLockedError(
        f"{folder} is in use by another broker; stop it or choose another {key}"
    )


def is_held_here(paths: StorePaths) -> bool:
    """Whether this very process has the store, which a test of the file's lock does not tell."""
    return paths.root.resolve() in _held


class AbortFile:
    """The mark of a store that was not stopped cleanly."""

    def __init__(self, files: Files, paths: StorePaths) -> None:
        self._files = files
        self._path = paths.abort

    def exists(self) -> bool:
        return self._files.exists(self._path)

    def create(self) -> None:
        """Make the mark, durably."""
        if not self.exists():
            self._files.open(self._path, create=True).close()
            self._files.sync_folder(self._path.parent)

    def remove(self) -> None:
        """Take the mark away, durably."""
        self._files.unlink(self._path)
        self._files.sync_folder(self._path.parent)
