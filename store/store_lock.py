"""Who owns the store: the `lock` file, and the `abort` file that marks an unclean stop.

`lock` carries a POSIX record lock on its first byte, which also keeps a Java broker out. Such locks
do not exclude a second broker in the same process, and closing any descriptor of the file drops
them: a process-wide set of real paths stands beside.

`abort` exists, durably, from before the first change of a start until a clean stop has synced
everything.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../DefaultMessageStore.java (start)
"""

from __future__ import annotations

from pathlib import Path

from skylarkmq.store.errors import StoreLockedError
from skylarkmq.store.files import FileLock, Files
from skylarkmq.store.paths import StorePaths

_held: set[Path] = set()


class StoreLock:
    """Exclusive ownership of a store folder."""

    def __init__(self, files: Files, paths: StorePaths) -> None:
        self._files = files
        self._paths = paths
        self._key = paths.root.resolve()
        self._lock: FileLock | None = None

    def acquire(self) -> None:
        """Take the store.

        Raises:
            StoreLockedError: another broker, in this process or another one, has it.
        """
        if self._key not in _held:
            self._lock = self._files.lock(self._paths.lock)
        if self._lock is None:
            raise StoreLockedError(
                f"{self._paths.root} is in use by another broker; stop it or choose another "
                "storePathRootDir"
            )
        _held.add(self._key)

    def release(self) -> None:
        """Give the store back; does nothing when it is not held."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
            _held.discard(self._key)


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
