"""The folder of a store: where its files lie, who owns it, and the sizes it was written with.

    <root>/commitlog/<20 digits>                          all messages
    <root>/consumequeue/<topic>/<queueId>/<20 digits>     the queues' indexes
    <root>/consumequeue_ext/<topic>/<queueId>/<20 digits> what does not fit into their units
    <root>/index/<yyyyMMddHHmmssSSS>                      the key index
    <root>/config/*.json                                  tables, each with a .bak
    <root>/checkpoint  <root>/abort  <root>/lock          recovery marks and the owner's lock
    <root>/skylarkmq/                                     ours alone; RocketMQ ignores it

    what is locked            which brokers it keeps out
    `lock`, its first byte    RocketMQ's, and ours; a POSIX record lock
    the folders themselves    ours, even after `lock` was removed; also brokers with other roots
                              that share a `storePathCommitLog`

Record locks do not exclude a second broker in the same process, and closing any descriptor of the
file drops them. So there is a process-wide set of real paths as well.

A removed `lock` lets a RocketMQ broker in, which knows no locks of folders. So a running store
checks that the file it has locked is still the one in the folder, and locks a new one if not.

`abort` exists, durably, from before the first change of a start until a clean stop has synced
everything.

`skylarkmq/profile` remembers the sizes, so that a later start cannot misread the files. A folder
that RocketMQ wrote has no profile: there the size of each file is compared with the configuration
when it is loaded.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../config/StorePathConfigHelper.java,
DefaultMessageStore.java (start)
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from skylarkmq.common.errors import CorruptFileError, StoreError
from skylarkmq.common.files import FileLock, Files
from skylarkmq.common.sidecar import Kind, encode_sidecar, read_sidecar
from skylarkmq.protocol.flags import validate_topic
from skylarkmq.store.errors import StoreLockedError, StoreProfileError

log = logging.getLogger(__name__)


class StorePaths:
    """Paths under one root; the commit log may lie elsewhere. No name leads out of its folder.

    Its size is one idea: an attribute is one path of the folder's layout.
    """

    def __init__(self, root: Path, commit_log: Path | None = None) -> None:
        self.root = root
        self.commit_log = commit_log or root / "commitlog"
        self.consume_queue = root / "consumequeue"
        self.consume_queue_ext = root / "consumequeue_ext"
        self.index = root / "index"
        self.config = root / "config"
        self.checkpoint = root / "checkpoint"
        self.abort = root / "abort"
        self.lock = root / "lock"
        self.own = root / "skylarkmq"
        self.profile = self.own / "profile"
        self.recovery_point = self.own / "recovery-point"
        self.flushed_offset = self.own / "flushed-offset"
        self.cut_back = self.own / "cut-back"
        self.removed_topics = self.own / "removed-topics"
        self.terms = self.own / "terms"
        self.replica = self.own / "replica"
        self.timer = self.own / "timer"
        self.delay_history = self.own / "delay-history"
        self.pop = self.own / "pop"

    def queue_folder(self, topic: str, queue_id: int) -> Path:
        """Return the folder of one consume queue.

        Raises:
            StoreError: the topic's name could leave the folder.
        """
        return self.consume_queue / self._queue_part(topic, queue_id)

    def queue_ext_folder(self, topic: str, queue_id: int) -> Path:
        """Return the folder of a consume queue's extension.

        Raises:
            StoreError: as `queue_folder`.
        """
        return self.consume_queue_ext / self._queue_part(topic, queue_id)

    @staticmethod
    def _queue_part(topic: str, queue_id: int) -> str:
        why = validate_topic(topic)
        if why is not None or topic in (".", "..") or queue_id < 0:
            raise StoreError(f"no queue folder for topic {topic!r}, queue {queue_id}: {why}")
        return f"{topic}/{queue_id}"


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
        """Lock `lock` again if it was removed or replaced. Blocks; one thread at a time.

        Raises:
            StoreLockedError: another broker has taken the store meanwhile.
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
    """Return whether this process itself holds the store: the file's lock does not tell that."""
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


def check_profile(files: Files, path: Path, sizes: dict[str, int]) -> None:
    """Compare the configured sizes with the remembered ones; change nothing.

    Args:
        sizes: RocketMQ's key names with their values in bytes or counts.

    Raises:
        StoreProfileError: a size differs.
        CorruptFileError: the profile is damaged.
    """
    known = _known(files, path)
    for key, value in sizes.items():
        if key in known and known[key] != value:
            raise StoreProfileError(
                f"{path.parent.parent} was written with {key}={known[key]}, "
                f"the configuration says {value}; start with --set {key}={known[key]}"
            )


def save_profile(files: Files, path: Path, sizes: dict[str, int]) -> None:
    """Remember the sizes that are new, after all files turned out to have them."""
    known = _known(files, path)
    if sizes.keys() - known.keys():
        files.make_folder(path.parent)
        files.replace(path, encode_sidecar(Kind.PROFILE, {**known, **sizes}), backup=False)


def _known(files: Files, path: Path) -> dict[str, Any]:
    try:
        return read_sidecar(files, path, Kind.PROFILE, dict[str, Any]) or {}
    except CorruptFileError as error:
        raise CorruptFileError(
            path,
            error.position,
            f"{error.why}; put a good copy in its place, or remove it: then the sizes of the files "
            "are compared with the configuration",
        ) from error
