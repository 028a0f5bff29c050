"""Who has a store: tools read and change stopped ones alone.

A running broker, ours or RocketMQ's, holds a lock on the first byte of `lock`. Readers only ask for
it, so they never keep a broker from starting; one that starts while they read makes what they saw
worthless, so they ask again at their end.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from skylarkmq.common.files import Files
from skylarkmq.common.read_only_files import ReadOnlyFiles
from skylarkmq.store.errors import StoreLockedError
from skylarkmq.store.folder import StoreLock, StorePaths, is_held_here

_PROCESSES = Path("/proc")


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
    """
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
